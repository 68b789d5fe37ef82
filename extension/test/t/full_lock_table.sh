# Goal: a session that fills the server's lock table, for which no privilege is needed, does not stop the region.
# Method: the apply worker is ended while an idle session has all of it.  The worker cannot start then, and nobody can connect.
conf=$work/nodes/here/postgres/postgresql.conf
printf 'max_locks_per_transaction = 10\nmax_connections = 40\n' >>"$conf"
stop_node
start_node
query "CREATE ROLE filler LOGIN; CREATE TABLE filled (id int PRIMARY KEY)"
worker=$(query "SELECT pid FROM pg_stat_activity WHERE backend_type = 'onetrip apply worker'")
{
    cat <<'SQL'
BEGIN;
DO $$
BEGIN
    FOR g IN 1..1000000 LOOP
        BEGIN
            PERFORM pg_advisory_xact_lock_shared(g);
        EXCEPTION WHEN out_of_memory THEN
            EXIT;
        END;
    END LOOP;
END $$;
\echo full
SQL
    # until the test is over
    for _ in $(seq 1200); do
        [ -e "$work/filler.end" ] && break
        sleep 0.1
    done
} | "$bin_dir/psql" -h 127.0.0.1 -p "$port" -U filler -d onetrip -X -q >"$work/filler.log" 2>&1 &
filler=$!
for _ in $(seq 300); do
    grep -q full "$work/filler.log" && break
    sleep 0.1
done
grep -q full "$work/filler.log" || wrong="the lock table is not full: $(cat "$work/filler.log")
"
kill -TERM "$worker"
said=$(query "SELECT 1" 2>&1) || true
[[ $said == *"out of shared memory"* ]] || wrong="${wrong}somebody can connect: $said
"
for _ in $(seq 300); do
    query "INSERT INTO filled VALUES (1)" >"$work/filled.log" 2>&1 && break
    sleep 0.1
done
[ "$(query "SELECT count(*) FROM filled")" = 1 ] || wrong="${wrong}nothing was committed: $(cat "$work/filled.log")
"
for _ in $(seq 100); do
    [ "$(query "SELECT worker_running FROM onetrip.status")" = t ] && break
    sleep 0.1
done
[ "$(query "SELECT worker_running FROM onetrip.status")" = t ] || wrong="${wrong}there is no apply worker
"
grep -aq "ending process .*: the server's lock table is full" "$work/nodes/here/postgres.log" || wrong="${wrong}the log does not say who was ended
"
touch "$work/filler.end"
wait "$filler" 2>/dev/null || true
query "DROP TABLE filled; DROP ROLE filler"
sed -i '$d' "$conf"
sed -i '$d' "$conf"
stop_node
start_node
