# Goal: a table whose cached description is thrown away at any moment of applying a row, as a VACUUM does it, takes the row
#       all the same, with its long values.
# Method: apply an insert and an update with values out of line over and over, while another session changes the table's row
#       in pg_class.  A crash shows in the server's log.

query "CREATE SCHEMA rebuilt;
       CREATE TABLE rebuilt.t (id int PRIMARY KEY, v text, w text) WITH (fillfactor = 90);
       ALTER TABLE rebuilt.t ALTER v SET STORAGE EXTERNAL, ALTER w SET STORAGE EXTERNAL;
       INSERT INTO rebuilt.t SELECT g, repeat('v', 5000), repeat('w', 5000) FROM generate_series(1, 2) g" ||
    wrong="the schema was not made
"
cat >"$work/rebuilt.sql" <<'SQL'
BEGIN;
INSERT INTO rebuilt.t VALUES (10, repeat('x', 9000), repeat('y', 9000));
UPDATE rebuilt.t SET v = repeat('new', 3000), w = repeat('newer', 3000) WHERE id = 1;
SELECT set_config('rebuilt.operations', encode(unit.write_set(), 'hex'), false) AS operations \gset
ROLLBACK;
SELECT set_config('rebuilt.operations', :'operations', false) \gset
DO $$
DECLARE
    until timestamptz := clock_timestamp() + interval '3 s';
    rows bigint;
    attempts int := 0;
BEGIN
    WHILE clock_timestamp() < until LOOP
        BEGIN
            PERFORM unit.apply(decode(current_setting('rebuilt.operations'), 'hex'));
            attempts := attempts + 1;
            SELECT count(*) INTO rows FROM rebuilt.t
                WHERE (v, w) IN ((repeat('x', 9000), repeat('y', 9000)), (repeat('new', 3000), repeat('newer', 3000)));
            IF rows <> 2 THEN
                RAISE EXCEPTION 'attempt %: % rows are as they came', attempts, rows;
            END IF;
            RAISE EXCEPTION USING ERRCODE = 'ZZ001';
        EXCEPTION WHEN SQLSTATE 'ZZ001' THEN NULL;
        END;
    END LOOP;
    PERFORM set_config('rebuilt.attempts', (attempts > 100)::text, false);
END $$;
SELECT current_setting('rebuilt.attempts');
SQL
query "DO \$\$ BEGIN
           FOR i IN 1..1000000 LOOP
               UPDATE pg_class SET reltuples = i WHERE oid = 'rebuilt.t'::regclass;
               COMMIT;
           END LOOP;
       END \$\$" >"$work/rebuilt.log" 2>&1 &
other=$!
got=$("$bin_dir/psql" -h 127.0.0.1 -p "$port" -U postgres -d onetrip -X -q -A -t -v ON_ERROR_STOP=1 -f "$work/rebuilt.sql" 2>&1) ||
    got="an error: $got"
[ "$got" = true ] || wrong="${wrong}applying while the table is described anew: $got
"
query "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'DO%reltuples%' AND pid <> pg_backend_pid()" >/dev/null || true
wait "$other" 2>/dev/null || true
grep -q "canceling statement due to user request" "$work/rebuilt.log" ||
    wrong="${wrong}nothing described the table anew: $(cat "$work/rebuilt.log")
"
query "SET client_min_messages = warning; DROP SCHEMA rebuilt CASCADE" || true
