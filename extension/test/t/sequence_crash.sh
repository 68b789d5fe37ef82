# Goal: a value that a transaction without an entry gave to a client is not given out again after PostgreSQL has crashed.
# Method: a transaction with an entry makes PostgreSQL write a WAL record of the sequence, and does not flush it; the next
#         transaction draws a value that this record covers; then the server is killed at once.
query "CREATE SCHEMA crash; CREATE SEQUENCE crash.s; CREATE TABLE crash.t (id bigint PRIMARY KEY)"
for round in 1 2 3; do
    postmaster=$(head -n 1 "$work/nodes/here/postgres/postmaster.pid")
    # Draws past the values that the last WAL record covers, so that the next transaction writes one.
    query "SELECT count(nextval('crash.s')) FROM generate_series(1, 40)" >/dev/null
    query "INSERT INTO crash.t VALUES ((SELECT max(nextval('crash.s')) FROM generate_series(1, 33)))"
    drawn=$(query "SELECT nextval('crash.s')")
    kill -KILL "$postmaster"
    again=
    for _ in $(seq $((READY_SECONDS * 5))); do
        again=$(query "SELECT nextval('crash.s')" 2>/dev/null) && break
        sleep 0.2
    done
    if ! [ "${again:-0}" -gt "$drawn" ]; then
        wrong="${wrong}round $round: $drawn was drawn, after the crash ${again:-nothing}
"
    fi
done
query "SET client_min_messages = warning; DROP SCHEMA crash CASCADE"
