# Goal: when a table's cached description is invalidated at any moment, as GRANT and VACUUM do, all work on the table
#       still succeeds: rows with long values are applied and captured, indexes are built, the table is rewritten.
# Method: do these over and over while another session changes a row of pg_attribute.  A crash shows in the server's log.

query "CREATE SCHEMA rebuilt;
       CREATE TABLE rebuilt.t (id int PRIMARY KEY, v text, w text) WITH (fillfactor = 90);
       ALTER TABLE rebuilt.t ALTER v SET STORAGE EXTERNAL, ALTER w SET STORAGE EXTERNAL;
       INSERT INTO rebuilt.t SELECT g, repeat('v', 5000), repeat('w', 5000) FROM generate_series(1, 2) g;
       CREATE TABLE rebuilt.indexed AS SELECT g AS id, g AS v FROM generate_series(1, 2000) g;
       -- Its query has to lock a table each time, and locking a table processes invalidation messages.
       CREATE FUNCTION rebuilt.same(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS \$\$
       BEGIN
           EXECUTE 'SELECT FROM pg_catalog.pg_language WHERE oid = ' || v;
           RETURN v;
       END \$\$;
       -- While a row of this table is captured, the function of its index looks at the table, in SERIALIZABLE.
       CREATE TABLE rebuilt.lying (id int PRIMARY KEY, v int);
       CREATE FUNCTION rebuilt.lies(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS \$\$
       DECLARE
           there int;
       BEGIN
           EXECUTE 'SELECT v FROM rebuilt.lying WHERE id = ' || n INTO there;
           RETURN n;
       END \$\$;
       CREATE UNIQUE INDEX lying_by_lies ON rebuilt.lying (rebuilt.lies(v));
       -- While a row of this table is captured or read, each label is looked up.  The trigger has the type cache share the
       -- table's description, which is then freed at once when it is replaced, if nobody has it pinned.  (It is so large that
       -- its memory goes back to the system, where AddressSanitizer watches it.)
       DO \$\$ BEGIN
           EXECUTE (SELECT 'CREATE TYPE rebuilt.label AS ENUM (' || string_agg('''l' || i || '''', ', ') || ')' FROM generate_series(1, 2250) i);
           EXECUTE (SELECT 'CREATE TABLE rebuilt.named (id int, a rebuilt.label, b rebuilt.label, c text, '
                        || string_agg('c' || i || ' int', ', ') || ')' FROM generate_series(1, 100) i);
       END \$\$;
       INSERT INTO rebuilt.named (id, a, b, c) SELECT i, ('l' || i)::rebuilt.label, ('l' || 500 + i)::rebuilt.label, 'c' FROM generate_series(1, 500) i;
       CREATE FUNCTION rebuilt.is_about() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN IF TG_OP = ''DELETE'' THEN RETURN OLD; END IF; RETURN NEW; END';
       CREATE TRIGGER is_about BEFORE INSERT OR UPDATE OR DELETE ON rebuilt.named FOR EACH ROW EXECUTE FUNCTION rebuilt.is_about()" ||
    wrong="the schema was not made
"
# An invalidation in the midst of an UPDATE's capture is rare, so there are many UPDATEs.
for _ in $(seq 100); do
    cat <<'SQL'
BEGIN;
INSERT INTO rebuilt.t VALUES (10, repeat('x', 9000), repeat('y', 9000));
UPDATE rebuilt.t SET v = repeat('new', 3000), w = repeat('newer', 3000) WHERE id = 1;
SELECT set_config('rebuilt.operations', encode(unit.write_set(), 'hex'), false) AS operations \gset
ROLLBACK;
SQL
done >"$work/rebuilt.sql"
cat >>"$work/rebuilt.sql" <<'SQL'
SELECT set_config('rebuilt.operations', :'operations', false) \gset
DO $$
DECLARE
    until timestamptz := clock_timestamp() + interval '3 s';
    rows bigint;
    attempts int := 0;
BEGIN
    WHILE clock_timestamp() < until OR attempts <= 100 LOOP
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
END $$;
SET rebuilt.operations = '';
SET client_min_messages = error;
CREATE INDEX by_same ON rebuilt.indexed (rebuilt.same(v));
CLUSTER rebuilt.indexed USING by_same;
VACUUM FULL rebuilt.indexed;
REINDEX INDEX rebuilt.by_same;
SELECT count(*) FROM rebuilt.indexed WHERE v >= 0;
SET enable_seqscan = off;
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO rebuilt.lying SELECT g, g FROM generate_series(1, 3000) g;
SELECT count(*) FROM rebuilt.lying;
ROLLBACK;
RESET enable_seqscan;
CREATE FUNCTION pg_temp.change_named() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO rebuilt.named (id, a, b, c)
        SELECT i, ('l' || 500 + i)::rebuilt.label, ('l' || 1000 + i)::rebuilt.label, 'c' FROM generate_series(501, 1000) i;
    UPDATE rebuilt.named SET c = 'd', a = ('l' || 2000 + id)::rebuilt.label WHERE id <= 250;
    DELETE FROM rebuilt.named WHERE id BETWEEN 251 AND 500;
END $$;
BEGIN;
SELECT pg_temp.change_named() \gset
SELECT set_config('rebuilt.operations', encode(unit.write_set(), 'hex'), false) AS operations \gset
ROLLBACK;
SELECT set_config('rebuilt.operations', :'operations', false) \gset
DO $$
DECLARE
    until timestamptz := clock_timestamp() + interval '3 s';
    got text;
    attempts int := 0;
BEGIN
    WHILE clock_timestamp() < until OR attempts < 2 LOOP
        BEGIN
            IF attempts % 2 = 0 THEN
                PERFORM pg_temp.change_named();
            ELSE
                PERFORM unit.apply(decode(current_setting('rebuilt.operations'), 'hex'));
            END IF;
            attempts := attempts + 1;
            SELECT concat_ws(' ', count(*), sum(id), count(DISTINCT a), count(DISTINCT b), max(c)) INTO got FROM rebuilt.named;
            IF got <> '750 406625 750 750 d' THEN
                RAISE EXCEPTION 'attempt %: %', attempts, got;
            END IF;
            RAISE EXCEPTION USING ERRCODE = 'ZZ001';
        EXCEPTION WHEN SQLSTATE 'ZZ001' THEN NULL;
        END;
    END LOOP;
END $$;
SQL
# Invalidates both tables' cached descriptions, over and over.
PGOPTIONS="-c synchronous_commit=off" query "DO \$\$ BEGIN
           FOR i IN 1..1000000 LOOP
               UPDATE pg_attribute SET attstattarget = i % 100
                   WHERE attrelid IN ('rebuilt.t'::regclass, 'rebuilt.indexed'::regclass, 'rebuilt.lying'::regclass, 'rebuilt.named'::regclass) AND attname = 'id';
               COMMIT;
           END LOOP;
       END \$\$" >"$work/rebuilt.log" 2>&1 &
other=$!
got=$("$bin_dir/psql" -h 127.0.0.1 -p "$port" -U postgres -d onetrip -X -q -A -t -v ON_ERROR_STOP=1 -f "$work/rebuilt.sql" 2>&1 |
    tr '\n' ' ') || true
[ "$got" = "2000 3000 " ] || wrong="${wrong}working on a table whose cached description is invalidated: $got
"
query "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'DO%attstattarget%' AND pid <> pg_backend_pid()" >/dev/null || true
wait "$other" 2>/dev/null || true
grep -q "canceling statement due to user request" "$work/rebuilt.log" ||
    wrong="${wrong}nothing invalidated the tables' cached descriptions: $(cat "$work/rebuilt.log")
"
query "SET client_min_messages = warning; DROP SCHEMA rebuilt CASCADE" || true
