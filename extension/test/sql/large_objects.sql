-- Goal: what a transaction does to large objects is captured, and applying it gives the same objects.
-- Method: operations and keys of each kind of change; then random transactions, each rolled back and applied from its write set.
\set VERBOSITY terse
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE FUNCTION lo_state() RETURNS text LANGUAGE sql AS $$
    SELECT COALESCE((SELECT string_agg(format('%s %s %s', oid, lomowner::regrole, lomacl), ', ' ORDER BY oid)
                       FROM pg_largeobject_metadata WHERE oid < 100), '') || ' | ' ||
           COALESCE((SELECT string_agg(format('%s.%s %s %s', loid, pageno, length(data), md5(data)), ', ' ORDER BY loid, pageno)
                       FROM pg_largeobject WHERE loid < 100), '') $$;
CREATE FUNCTION lo_cut(loid oid, size int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    fd int := lo_open(loid, x'20000'::int);
BEGIN
    PERFORM lo_truncate(fd, size);
    RETURN lo_close(fd);
END $$;
CREATE ROLE lo_one;
CREATE ROLE lo_two;
GRANT USAGE ON SCHEMA unit TO lo_one;

-- The index cannot be searched, and PostgreSQL does not try to.
SELECT pg_get_indexdef('pg_catalog.onetrip_large_objects'::regclass);
SET enable_seqscan = off;
EXPLAIN (COSTS OFF) SELECT * FROM pg_largeobject WHERE loid = 1;
EXPLAIN (COSTS OFF) SELECT count(loid) FROM pg_largeobject WHERE pageno = 1;
RESET enable_seqscan;

CREATE TABLE lo_other (id oid);
CREATE INDEX ON lo_other USING onetrip_large_object (id);
DROP TABLE lo_other;

-- A new object: its key is all it needs.
BEGIN;
SELECT lo_from_bytea(1, decode(repeat('00', 5000), 'hex'));
:operations;
:keys;
COMMIT;

-- What a superuser writes into the table itself must be pages, too.
INSERT INTO pg_largeobject VALUES (1, -1, 'x');
UPDATE pg_largeobject SET data = decode(repeat('00', 2049), 'hex') WHERE loid = 1 AND pageno = 0;
UPDATE pg_largeobject SET data = decode(repeat('00', 2048), 'hex') WHERE loid = 1 AND pageno = 0;

-- Nor does it move a page.
UPDATE pg_largeobject SET pageno = 7 WHERE loid = 1 AND pageno = 2;
UPDATE pg_largeobject SET loid = 2 WHERE loid = 1;
WITH moved AS (UPDATE pg_largeobject SET pageno = pageno + 1 WHERE loid = 1 RETURNING 1) SELECT count(*) FROM moved;
MERGE INTO pg_largeobject l USING (SELECT 1) one ON loid = 1 AND pageno = 2 WHEN MATCHED THEN UPDATE SET pageno = 7;
SELECT lo_state();

-- Pages have keys of their own. What is written again replaces what was written just before.
BEGIN;
SELECT lo_put(1, 0, 'a');
SELECT lo_put(1, 1, 'b');
SELECT lo_put(1, 2047, 'cd');
SELECT lo_put(1, 4100, 'e');
:operations;
:keys;
SAVEPOINT a;
SELECT lo_put(1, 4100, 'f');
SELECT lo_put(1, 4100, 'g');
:operations;
ROLLBACK TO a;
:operations;
SELECT lo_put(1, 4100, 'h');
SELECT lo_put(1, 9000, 'i');
:operations;
:keys;
COMMIT;
SELECT lo_state();

-- A change to the same bytes has a key too, although PostgreSQL would leave indexes alone.
BEGIN;
SELECT lo_put(1, 9000, 'i');
SELECT lo_put(1, 9000, 'i');
:operations;
:keys;
ROLLBACK;

-- A short page may be where the object is cut, if there are later ones: page 2 is short, page 4 the last one.
BEGIN;
SELECT lo_put(1, 4101, 'x');
:operations;
:keys;
SELECT lo_cut(1, 2100);
:operations;
:keys;
SAVEPOINT a;
SELECT lo_put(1, 6000, 'y');
SELECT lo_cut(1, 0);
:operations;
ROLLBACK TO a;
:operations;
COMMIT;
SELECT lo_state();

-- Into a hole, behind the end, and to nothing.
BEGIN;
SELECT lo_put(1, 20000, 'z');
SELECT lo_cut(1, 10000);
:operations;
COMMIT;
SELECT lo_state();
BEGIN;
SELECT lo_cut(1, 30000);
SELECT lo_cut(1, 0);
SELECT lo_unlink(1);
:operations;
:keys;
COMMIT;
SELECT lo_state();

-- Owners by name; statements run everywhere, and what they do is not captured besides.
SET ROLE lo_one;
BEGIN;
SELECT lo_create(2);
:operations;
:keys;
COMMIT;
BEGIN;
GRANT SELECT ON LARGE OBJECT 2 TO lo_two;
COMMENT ON LARGE OBJECT 2 IS 'two';
SELECT substr(operation, 1, 40) FROM unit.operations() AS operation;
:keys;
COMMIT;
RESET ROLE;
SELECT lo_state();
ALTER LARGE OBJECT 2 OWNER TO lo_two;
REASSIGN OWNED BY lo_two TO lo_one;
SELECT lo_state();
BEGIN;
DROP OWNED BY lo_one;
SELECT substr(operation, 1, 40) FROM unit.operations() AS operation;
COMMIT;
SELECT lo_state();

-- A setting with which others may do so travels.
SELECT lo_from_bytea(2, 'two');
SET lo_compat_privileges = on;
SET ROLE lo_two;
BEGIN;
COMMENT ON LARGE OBJECT 2 IS 'by another role';
RESET ROLE;
SELECT unit.write_set() AS commented \gset
ROLLBACK;
RESET ROLE;
RESET lo_compat_privileges;
SELECT unit.apply(:'commented');
SELECT obj_description(2, 'pg_largeobject');
SHOW lo_compat_privileges;
SELECT lo_unlink(2);

-- Numbers have this node's remainder, wherever the counter of OIDs is; it is never set back.
SELECT lo_create(0) AS first, lo_creat(-1) AS second \gset
SELECT unit.skip_oids(134217729);
CREATE TABLE lo_before (id int);
SELECT lo_from_bytea(0, 'third') AS third \gset
CREATE TABLE lo_after (id int);
SELECT lo % 64 = current_setting('onetrip.node_id')::int % 64 AS has_remainder FROM unnest(ARRAY[:first, :second, :third]) lo;
SELECT :first <> :second AS differ, 'lo_before'::regclass::oid < 'lo_after'::regclass::oid AS in_order;
SELECT lo_unlink(:first), lo_unlink(:second), lo_unlink(:third);
DROP TABLE lo_before, lo_after;

-- Prepared: the number is taken until it ends.
BEGIN;
SELECT lo_from_bytea(3, 'prepared');
SELECT lo_put(3, 5000, 'hole');
SELECT lo_cut(3, 3000);
PREPARE TRANSACTION 'lo';
SELECT lo_state();
SELECT lo_create(3);
\echo :LAST_ERROR_SQLSTATE
COMMIT PREPARED 'lo';
SELECT lo_state();
SELECT lo_unlink(3);

-- What would be done in every region.
CREATE TABLE lo_table (id int PRIMARY KEY, v bytea);
INSERT INTO lo_table VALUES (1, 'one');
ALTER TABLE lo_table ALTER v TYPE oid USING lo_from_bytea(4, v);
\echo :LAST_ERROR_SQLSTATE
CREATE TABLE lo_made AS SELECT id, lo_from_bytea(4, v) AS v FROM lo_table;
SELECT lo_state();
ALTER TABLE lo_table ADD COLUMN w int DEFAULT lo_unlink(4);
\echo :LAST_ERROR_SQLSTATE
CREATE FUNCTION lo_in_index(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM lo_put(4, 0, ''indexed''); RETURN $1; END';
CREATE INDEX lo_index ON lo_table (lo_in_index(id));
\echo :LAST_ERROR_SQLSTATE
TRUNCATE lo_table;
CREATE INDEX lo_index ON lo_table (lo_in_index(id));
INSERT INTO lo_table VALUES (2);
\echo :LAST_ERROR_SQLSTATE
BEGIN READ ONLY;
SELECT lo_put(4, 0, 'x');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
SELECT lo_state();
DROP TABLE lo_table, lo_made;
SELECT lo_unlink(4);

-- Maintenance of the index.
SELECT lo_from_bytea(5, 'five');
VACUUM (FULL, ANALYZE) pg_largeobject;
REINDEX TABLE pg_largeobject;
CLUSTER pg_largeobject USING pg_largeobject_loid_pn_index;
VACUUM ANALYZE pg_largeobject;
BEGIN;
SELECT lo_put(5, 0, 'V');
:operations;
COMMIT;
SELECT lo_unlink(5);

-- Random transactions: what is rolled back and then applied gives what it gave.
CREATE FUNCTION lo_step() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    n int := 10 + random() * 2;
    exists boolean := EXISTS (SELECT FROM pg_largeobject_metadata WHERE oid = n);
    dice float := random();
BEGIN
    IF dice < 0.15 AND exists THEN
        PERFORM lo_unlink(n);
    ELSIF dice < 0.4 AND exists THEN
        PERFORM lo_cut(n, CASE WHEN random() < 0.3 THEN 2048 * (random() * 4)::int ELSE (random() * 9000)::int END);
    ELSIF dice < 0.9 AND exists THEN
        PERFORM lo_put(n, (random() * 9000)::int, decode(repeat(md5(random()::text), (random() * 200)::int), 'hex'));
    ELSIF exists AND dice < 0.93 THEN
        EXECUTE format('GRANT UPDATE ON LARGE OBJECT %s TO lo_two', n);
    ELSIF NOT exists THEN
        PERFORM lo_from_bytea(n, decode(repeat('ab', (random() * 9000)::int), 'hex'));
    END IF;
    IF random() < 0.3 THEN
        BEGIN
            PERFORM lo_step();
            IF random() < 0.5 THEN
                RAISE EXCEPTION USING ERRCODE = 'ZZ000';
            END IF;
        EXCEPTION WHEN SQLSTATE 'ZZ000' THEN NULL;
        END;
    END IF;
END $$;
CREATE FUNCTION lo_random(steps int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    before text := lo_state();
    here text;
    captured bytea;
    applied text;
BEGIN
    BEGIN
        FOR i IN 1 .. steps LOOP
            PERFORM lo_step();
        END LOOP;
        here := lo_state();
        captured := unit.write_set();
        RAISE EXCEPTION USING ERRCODE = 'ZZ001';
    EXCEPTION WHEN SQLSTATE 'ZZ001' THEN NULL;
    END;
    IF lo_state() <> before THEN
        RETURN 'not rolled back';
    END IF;
    PERFORM unit.apply(captured);
    applied := lo_state();
    RETURN CASE WHEN applied = here THEN 'equal' ELSE format('%s: %s became %s', before, here, applied) END;
END $$;
SELECT setseed(0.26);
SELECT outcome, count(*) FROM (SELECT lo_random(1 + i % 12) AS outcome FROM generate_series(1, 300) AS i) AS all_of_them GROUP BY 1;
SELECT count(lo_unlink(oid)) <= 3 AS deleted FROM pg_largeobject_metadata WHERE oid < 100;
DROP FUNCTION lo_random, lo_step, lo_in_index, lo_cut, lo_state;
REVOKE USAGE ON SCHEMA unit FROM lo_one;
DROP ROLE lo_one, lo_two;
