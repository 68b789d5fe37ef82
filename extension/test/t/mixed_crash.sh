# Goal: a transaction that changed replicated and local tables is not torn by a crash, whatever synchronous_commit says.
# Method: it commits with synchronous_commit = off, nothing else flushes WAL, and the server is killed at once; the log
#         brings its replicated rows back, so its local ones must be there.
query "CREATE TABLE mixed_ours (id int PRIMARY KEY); CREATE TABLE mixed_own (id int) USING heap"
query "ALTER SYSTEM SET wal_writer_delay = '10s'"
query "SELECT pg_reload_conf()" >/dev/null
query "SELECT pg_sleep(0.5)" >/dev/null
postmaster=$(head -n 1 "$work/nodes/here/postgres/postmaster.pid")
query "SET synchronous_commit = off; BEGIN; INSERT INTO mixed_ours VALUES (1); INSERT INTO mixed_own VALUES (1); COMMIT"
kill -KILL "$postmaster"
found=
for _ in $(seq $((READY_SECONDS * 5))); do
    found=$(query "SELECT count(*) FROM mixed_own" 2>/dev/null) && break
    sleep 0.2
done
[ "$found" = 1 ] || wrong="${wrong}rows of the local table after the crash: ${found:-none can be read}
"
query "ALTER SYSTEM RESET wal_writer_delay"
query "SELECT pg_reload_conf()" >/dev/null
query "SET client_min_messages = warning; DROP TABLE mixed_ours; DROP TABLE mixed_own"
