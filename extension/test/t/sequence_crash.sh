# Goal: a value that a transaction without an entry gave to a client is not given out again after PostgreSQL has crashed.
# Method: a transaction with an entry makes PostgreSQL write a WAL record of the sequence, and does not flush it; the next
#         transaction draws a value that this record covers; then the server is killed at once.  Or the entry makes the
#         sequence: its WAL is flushed up to there, and the commit record is not.

# crash_and_draw ROUND SEQUENCE DRAWN
crash_and_draw() {
    local again=
    kill -KILL "$postmaster"
    for _ in $(seq $((READY_SECONDS * 5))); do
        again=$(query "SELECT nextval('$2')" 2>/dev/null) && break
        sleep 0.2
    done
    if ! [ "${again:-0}" -gt "$3" ]; then
        wrong="${wrong}round $1, $2: $3 was drawn, after the crash ${again:-nothing}
"
    fi
}

query "CREATE SCHEMA crash; CREATE SEQUENCE crash.s; CREATE TABLE crash.t (id bigint PRIMARY KEY)"
for round in 1 2 3; do
    postmaster=$(head -n 1 "$work/nodes/here/postgres/postmaster.pid")
    # Draws past the values that the last WAL record covers, so that the next transaction writes one.
    query "SELECT count(nextval('crash.s')) FROM generate_series(1, 40)" >/dev/null
    query "INSERT INTO crash.t VALUES ((SELECT max(nextval('crash.s')) FROM generate_series(1, 33)))"
    crash_and_draw $round crash.s "$(query "SELECT nextval('crash.s')")"

    postmaster=$(head -n 1 "$work/nodes/here/postgres/postmaster.pid")
    drawn=$("$bin_dir/psql" -h 127.0.0.1 -p "$port" -U postgres -d onetrip -X -q -A -t -v ON_ERROR_STOP=1 <<END
BEGIN;
CREATE SEQUENCE crash.new_$round;
INSERT INTO crash.t SELECT -nextval('crash.new_$round') - 1000 * $round FROM generate_series(1, 5);
SELECT pg_switch_wal() \\gset
COMMIT;
SELECT nextval('crash.new_$round');
END
    )
    crash_and_draw $round crash.new_$round "$drawn"
done
query "SET client_min_messages = warning; DROP SCHEMA crash CASCADE"
