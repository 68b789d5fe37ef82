-- Goal: a volatile default of ADD COLUMN gives the same values everywhere: the rows travel, and no region computes any.
-- Method: capture the statement, roll it back, apply what was captured, and compare; the default fails where it is applied.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA add_column;
SET search_path = add_column;
CREATE FUNCTION drawn() RETURNS float VOLATILE LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('session_replication_role') = 'replica' THEN RAISE 'computed where it is applied'; END IF;
    RETURN random();
END $$;
CREATE TABLE t (id int PRIMARY KEY, v text, w int GENERATED ALWAYS AS (id * 2) STORED);
CREATE INDEX ON t ((length(v)));
ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
CREATE TABLE refers (id int PRIMARY KEY REFERENCES t);
CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'fired'; END $$;
INSERT INTO t VALUES (1, 'one'), (2, NULL), (3, repeat('long', 3000));
CREATE TRIGGER never BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION never();
INSERT INTO refers VALUES (1), (3);
-- Runs the statement, and applies in its place what was captured.
CREATE PROCEDURE travels(statement text, relation regclass) LANGUAGE plpgsql AS $$
DECLARE here text; there text; operations bytea;
BEGIN
    BEGIN
        EXECUTE statement;
        EXECUTE format('SELECT string_agg(x::text, '','' ORDER BY x::text) FROM %s x', relation) INTO here;
        operations := unit.write_set();
        RAISE SQLSTATE 'ZZ001';
    EXCEPTION WHEN SQLSTATE 'ZZ001' THEN NULL;
    END;
    PERFORM unit.apply(operations);
    EXECUTE format('SELECT string_agg(x::text, '','' ORDER BY x::text) FROM %s x', relation) INTO there;
    RAISE NOTICE '%: %', statement, CASE WHEN here = there THEN 'same' ELSE here || ' is not ' || there END;
END $$;

BEGIN;
ALTER TABLE t ADD COLUMN fixed float DEFAULT drawn() * 0;
SELECT left(unit.operations(), 66) AS operation;
ROLLBACK;
CALL travels('ALTER TABLE t ADD COLUMN r float NOT NULL DEFAULT drawn() CHECK (r >= 0)', 't');
CALL travels('ALTER TABLE t ADD COLUMN u uuid UNIQUE NOT NULL DEFAULT gen_random_uuid(), ADD COLUMN d float DEFAULT drawn()', 't');
CALL travels('ALTER TABLE IF EXISTS t ADD COLUMN IF NOT EXISTS n bigserial', 't');
CALL travels('ALTER TABLE t ADD COLUMN i int GENERATED ALWAYS AS IDENTITY', 't');
CREATE DOMAIN lot AS float DEFAULT drawn() CHECK (VALUE >= 0);
CALL travels('ALTER TABLE t ADD COLUMN l lot', 't');
SELECT count(*), count(DISTINCT r), count(DISTINCT u), count(DISTINCT d), count(DISTINCT n), count(DISTINCT i), count(DISTINCT l), sum(w) FROM t;
SELECT count(*) FROM refers JOIN t USING (id);
SELECT onetrip.rows_not_in_index('t_pkey');
SET enable_seqscan = off;
SELECT id FROM t WHERE u = (SELECT u FROM t WHERE id = 3);
SELECT id, length(v) FROM t WHERE length(v) = 12000;
RESET enable_seqscan;

-- Rows of the same transaction, partitions, and children; a child with rows of its own in each region computes its own.
CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (10) TO (20);
INSERT INTO parted VALUES (1), (11), (12);
CALL travels('ALTER TABLE parted ADD COLUMN r float DEFAULT drawn()', 'parted');
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child () INHERITS (parent);
CREATE TABLE own_child () INHERITS (parent) USING heap;
INSERT INTO parent VALUES (1);
INSERT INTO child VALUES (2), (3);
INSERT INTO own_child VALUES (4);
BEGIN;
INSERT INTO child VALUES (5);
UPDATE parent SET id = 6 WHERE id = 1;
ALTER TABLE parent ADD COLUMN r float DEFAULT random();
DELETE FROM child WHERE id = 2;
SELECT unit.write_set() AS operations \gset
SELECT md5(string_agg(x::text, ',' ORDER BY id)) AS sum FROM parent x WHERE tableoid <> 'own_child'::regclass \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'operations');
SELECT md5(string_agg(x::text, ',' ORDER BY id)) = :'sum' AS same FROM parent x WHERE tableoid <> 'own_child'::regclass;
SELECT count(r) FROM own_child;
ROLLBACK;
-- Without rows that travel there is nothing to send.
CREATE TABLE unfilled (id int);
BEGIN;
ALTER TABLE unfilled ADD COLUMN r float DEFAULT random();
SELECT left(unit.operations(), 66) AS operation;
ROLLBACK;

-- Limits.
ALTER TABLE t ADD COLUMN x float DEFAULT random(), ALTER COLUMN r DROP DEFAULT;
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE t ADD COLUMN x text DEFAULT current_setting('work_mem'), ADD COLUMN y float DEFAULT random();
CREATE TYPE pg_temp.label AS ENUM ('a');
ALTER TABLE t ADD COLUMN x text DEFAULT random()::text || 'a'::pg_temp.label::text;
INSERT INTO parent SELECT g FROM generate_series(100, 5000) g;
SET onetrip.max_write_set = '64kB';
ALTER TABLE parent ADD COLUMN r float DEFAULT random();
RESET onetrip.max_write_set;
\d parent
-- An event trigger may do other things meanwhile, but not change the rows.
CREATE TABLE noted (what text);
CREATE FUNCTION meddles() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO add_column.noted VALUES (tg_event);
    IF current_setting('add_column.meddles', true) = tg_event THEN INSERT INTO add_column.parted VALUES (13); END IF;
END $$;
CREATE EVENT TRIGGER meddles_first ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION meddles();
CREATE EVENT TRIGGER meddles_last ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION meddles();
CREATE EVENT TRIGGER meddles_rewrite ON table_rewrite EXECUTE FUNCTION meddles();
BEGIN;
ALTER TABLE parted ADD COLUMN e float DEFAULT drawn();
SELECT left(unit.operations(), 18) AS operation;
COMMIT;
SET add_column.meddles = 'ddl_command_start';
ALTER TABLE parted ADD COLUMN f float DEFAULT drawn();
SET add_column.meddles = 'ddl_command_end';
ALTER TABLE parted ADD COLUMN f float DEFAULT drawn();
SET client_min_messages = warning;
DROP EVENT TRIGGER meddles_first;
DROP EVENT TRIGGER meddles_last;
DROP EVENT TRIGGER meddles_rewrite;
DROP SCHEMA add_column CASCADE;
