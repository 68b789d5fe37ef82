-- Goal: where ALTER TABLE gives values that other regions could not compute, or do not have, the rows travel, and no region computes any.
-- Method: capture the statement, roll it back, apply what was captured, and compare; the default fails where it is applied.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA add_column;
SET search_path = add_column;
CREATE FUNCTION drawn() RETURNS float VOLATILE LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('check_function_bodies') = 'off' THEN RAISE 'computed where it is applied'; END IF;
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
-- The parent may be a foreign table.
CREATE FOREIGN DATA WRAPPER nothing;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
CREATE FOREIGN TABLE far (id int) SERVER nowhere;
CREATE TABLE near () INHERITS (far);
INSERT INTO near VALUES (1), (2);
CALL travels('ALTER TABLE far ADD COLUMN r float DEFAULT drawn()', 'near');
CALL travels('ALTER FOREIGN TABLE far ADD COLUMN s float DEFAULT drawn(), ADD COLUMN n bigserial', 'near');
SELECT count(r), count(s), count(DISTINCT n) FROM near;
-- Without rows that travel there is nothing to send.
CREATE TABLE unfilled (id int);
BEGIN;
ALTER TABLE unfilled ADD COLUMN r float DEFAULT random();
SELECT left(unit.operations(), 66) AS operation;
ROLLBACK;

-- STABLE is not enough either: the value may be another one in other regions, and even computing it may fail there.
CREATE FUNCTION here() RETURNS text STABLE LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('check_function_bodies') = 'off' THEN RAISE 'computed where it is applied'; END IF;
    RETURN pg_backend_pid() || current_setting('work_mem') || session_user;
END $$;
CREATE TABLE stable (id int PRIMARY KEY, v text);
INSERT INTO stable VALUES (1, 'stable');
CALL travels('ALTER TABLE stable ADD COLUMN a text DEFAULT here() NOT NULL, ADD COLUMN IF NOT EXISTS v text DEFAULT here(), ADD COLUMN b text DEFAULT current_schemas(true)::text CHECK (b <> '''')', 'stable');
CALL travels('ALTER TABLE stable ADD COLUMN o oid DEFAULT ''stable''::regclass::oid, ADD COLUMN s name DEFAULT session_user, ADD COLUMN p text DEFAULT current_setting(''work_mem'')', 'stable');
INSERT INTO stable (id) VALUES (2);
SELECT count(*), count(DISTINCT (a, b, o, s, p)) FROM stable;
\d stable
-- Functions of the server that turn values into JSON or text call the cast that somebody has made of their type, of an element's or
-- of a column's.
CREATE TYPE feeling AS ENUM ('a');
CREATE TYPE feelings AS (m feeling);
CREATE DOMAIN feeling_domain AS feeling;
CREATE FUNCTION feeling_json(feeling) RETURNS json VOLATILE LANGUAGE sql AS 'SELECT to_json(add_column.drawn())';
CREATE FUNCTION feeling_text(feeling) RETURNS text VOLATILE LANGUAGE sql AS 'SELECT add_column.drawn()::text';
CREATE CAST (feeling AS json) WITH FUNCTION feeling_json(feeling);
CREATE CAST (feeling AS text) WITH FUNCTION feeling_text(feeling);
CREATE TABLE casts (id int PRIMARY KEY, m feeling);
INSERT INTO casts VALUES (1, 'a'), (2, 'a');
CALL travels('ALTER TABLE casts ADD COLUMN a json DEFAULT to_json(''a''::feeling)', 'casts');
CALL travels('ALTER TABLE casts ADD COLUMN b jsonb DEFAULT to_jsonb(ARRAY[''a''::feeling_domain])', 'casts');
CALL travels('ALTER TABLE casts ADD COLUMN c json DEFAULT json_build_array(1, ROW(''a'')::feelings)', 'casts');
CALL travels('ALTER TABLE casts ADD COLUMN d json DEFAULT row_to_json(ROW(1, ROW(''a''::feeling)))', 'casts');
CALL travels('ALTER TABLE casts ADD COLUMN e jsonb DEFAULT jsonb_build_array(VARIADIC ARRAY[''a''::feeling, ''a''::feeling])', 'casts');
CALL travels('ALTER TABLE casts ADD COLUMN f text DEFAULT ''a''::feeling || ''b''', 'casts');
CALL travels('ALTER TABLE casts ADD COLUMN g text DEFAULT quote_literal(''a''::feeling)', 'casts');
CALL travels('ALTER TABLE casts ALTER m TYPE json USING to_json(m)', 'casts');
SELECT count(*), count(DISTINCT a::text), count(DISTINCT b), count(DISTINCT c::text), count(DISTINCT d::text), count(DISTINCT e), count(DISTINCT f), count(DISTINCT g), count(DISTINCT m::text) FROM casts;
-- Of the server's own types nobody can have made one, and one that is IMMUTABLE gives the same everywhere.
CREATE FUNCTION feelings_text(feelings) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT ''feelings''';
CREATE CAST (feelings AS text) WITH FUNCTION feelings_text(feelings);
BEGIN;
ALTER TABLE casts ADD COLUMN h json DEFAULT json_build_object('a', ROW(1, now()), 'b', ARRAY['(1,2)'::point]), ADD COLUMN i text DEFAULT ROW('a')::feelings || 'b';
SELECT left(unit.operations(), 66) AS operation;
ROLLBACK;

-- A child that has the column already keeps its own default, and rows of its own get their own values.
CREATE TABLE stable_parent (id int);
CREATE TABLE stable_child (c text DEFAULT 'own') INHERITS (stable_parent);
CREATE TABLE stable_own () INHERITS (stable_parent) USING heap;
INSERT INTO stable_parent VALUES (1);
INSERT INTO stable_own VALUES (3);
BEGIN;
ALTER TABLE stable_parent ADD COLUMN c text DEFAULT upper(pg_backend_pid()::text);
SELECT unit.write_set() AS operations \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'operations');
SELECT tableoid::regclass, c = pg_backend_pid()::text AS pid FROM stable_parent;
SELECT adrelid::regclass, pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid::regclass::text LIKE 'stable\_%' ORDER BY 1;
ROLLBACK;

-- Together with other commands, and as USING; a generated column shows an OID.
CALL travels('ALTER TABLE t ADD COLUMN x float DEFAULT drawn(), ALTER COLUMN r DROP DEFAULT, ADD CHECK (x >= 0), ALTER v SET STORAGE MAIN', 't');
CREATE TABLE converted (id int PRIMARY KEY, v float, refers int REFERENCES t);
INSERT INTO converted VALUES (1, 2, 1), (2, 3, 3);
CALL travels('ALTER TABLE converted ALTER v TYPE text USING (v * drawn())::text, ADD UNIQUE (v), ADD COLUMN o regclass GENERATED ALWAYS AS (tableoid) STORED', 'converted');
CALL travels('ALTER TABLE converted ALTER v TYPE text USING v || current_setting(''work_mem'')', 'converted');
CALL travels('ALTER TABLE converted ALTER id TYPE numeric USING id + extract(epoch FROM statement_timestamp())', 'converted');
CALL travels('ALTER TABLE converted ALTER v TYPE text USING ''converted''::regclass::oid::text || xmin || id, ADD COLUMN n bigint GENERATED ALWAYS AS (''converted''::regclass::oid::bigint) STORED', 'converted');
CALL travels('ALTER TABLE parted ALTER r TYPE text USING r::text || drawn()', 'parted');
SELECT count(DISTINCT id), count(DISTINCT v), count(DISTINCT o), max(o::text), max(n) = 'converted'::regclass::oid AS is_oid FROM converted;

-- A column that the same statement drops is new again, and one that it gives another type has that by then.
CREATE TABLE replaced (id int PRIMARY KEY, v text, doc text);
INSERT INTO replaced VALUES (1, 'one', '{"k": 1}'), (2, 'two', NULL);
CALL travels('ALTER TABLE replaced DROP COLUMN v, ADD COLUMN IF NOT EXISTS v float DEFAULT drawn()', 'replaced');
CALL travels('ALTER TABLE replaced ADD COLUMN IF NOT EXISTS v bigserial, DROP COLUMN v', 'replaced');
CALL travels('ALTER TABLE replaced DROP COLUMN v, ADD COLUMN v text DEFAULT here()', 'replaced');
-- Of a child the column stays, with its own default.
CREATE TABLE replaced_parent (id int, k int);
CREATE TABLE replaced_child (k int DEFAULT 7) INHERITS (replaced_parent);
CREATE TABLE replaced_identity (k int GENERATED BY DEFAULT AS IDENTITY) INHERITS (replaced_parent);
CREATE TABLE replaced_too () INHERITS (replaced_parent);
CALL travels('ALTER TABLE replaced_parent DROP COLUMN k, ADD COLUMN k int DEFAULT 5', 'replaced_parent');
SELECT adrelid::regclass, pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid::regclass::text LIKE 'replaced\_%' ORDER BY 1;
CREATE TABLE of_name (id int PRIMARY KEY, r regclass);
INSERT INTO of_name VALUES (1, 't');
CALL travels('ALTER TABLE of_name ALTER r TYPE regclass, ADD g bigint GENERATED ALWAYS AS (r::bigint) STORED', 'of_name');
SELECT g = 't'::regclass::oid AS is_oid FROM of_name;
ALTER TABLE of_name DROP g;
BEGIN;
ALTER TABLE of_name ALTER r TYPE regclass, ADD h bigint GENERATED ALWAYS AS (r::bigint) STORED;
SELECT count(*) FROM unit.operations() o WHERE o LIKE 'C %';
ROLLBACK;
CALL travels('ALTER TABLE replaced ALTER doc TYPE jsonb USING doc::jsonb, ADD COLUMN k text GENERATED ALWAYS AS (doc->>''k'') STORED', 'replaced');

-- Names that something temporary hides mean something else in other regions: the rows travel, or are refused.
CREATE TABLE hidden (id int);
CREATE TYPE mood AS ENUM ('ok');
CREATE TABLE names (id int PRIMARY KEY, n text, r regclass, m mood DEFAULT 'ok');
INSERT INTO names VALUES (1, 'hidden', 'hidden');
CREATE TEMP TABLE hidden (id int);
BEGIN;
ALTER TABLE names ALTER n TYPE regclass USING n::regclass;
ROLLBACK;
BEGIN;
ALTER TABLE names ALTER r TYPE text;
SELECT left(unit.operations(), 66) AS operation;
ROLLBACK;
BEGIN;
ALTER TABLE names ADD t text DEFAULT 'add_column.hidden'::regclass::text, ADD a text DEFAULT ARRAY['add_column.hidden'::regclass]::text;
SELECT left(unit.operations(), 66) AS operation;
ROLLBACK;
ALTER TABLE names ADD f regclass DEFAULT to_regclass('hidden');
BEGIN;
ALTER TABLE names ALTER r TYPE xml USING xmlelement(name r, r);
SELECT count(*) FROM unit.operations() o WHERE o LIKE 'C %';
ROLLBACK;
-- Labels of an enum have nothing to do with it.
BEGIN;
ALTER TABLE names ALTER m DROP DEFAULT, ALTER m TYPE text;
SELECT count(*) FROM unit.operations() o WHERE o LIKE 'C %';
ROLLBACK;
DROP TABLE pg_temp.hidden;

-- What was each region's own until now: SET LOGGED, SET ACCESS METHOD.  The opposite keeps the rows.
CREATE UNLOGGED TABLE own (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text);
INSERT INTO own (v) SELECT repeat('x', 3000 * g) FROM generate_series(1, 3) g;
BEGIN;
INSERT INTO own (v) VALUES ('in the same transaction');
SAVEPOINT s;
INSERT INTO own (v) VALUES ('not');
ROLLBACK TO s;
SELECT unit.operations();
ALTER TABLE own SET LOGGED;
SELECT left(unit.operations(), 100) AS operation;
SELECT md5(string_agg(x::text, ',' ORDER BY id)) AS sum, unit.write_set() AS operations FROM own x \gset
ROLLBACK;
BEGIN;
INSERT INTO own (v) VALUES ('of this region');
SELECT unit.apply(:'operations');
SELECT relpersistence, (SELECT md5(string_agg(x::text, ',' ORDER BY id)) = :'sum' FROM own x) AS same FROM pg_class WHERE oid = 'own'::regclass;
SELECT onetrip.rows_not_in_index('own_pkey');
ROLLBACK;
-- The COMMIT would fail if it took the rows that did not travel for some that bypassed the access method.
BEGIN;
INSERT INTO own (v) VALUES ('in the same transaction');
ALTER TABLE own SET LOGGED, ADD COLUMN r float DEFAULT drawn();
INSERT INTO own (v) VALUES ('replicated');
COMMIT;
ALTER TABLE own SET LOGGED;
SELECT count(*), count(DISTINCT r), bool_and(relpersistence = 'p') FROM own, pg_class WHERE pg_class.oid = 'own'::regclass;
BEGIN;
UPDATE own SET v = '' WHERE id = 1;
ALTER TABLE own SET UNLOGGED;
UPDATE own SET v = '' WHERE id = 2;
SELECT unit.operations();
COMMIT;
CREATE TABLE of_heap (id int PRIMARY KEY, v text) USING heap;
INSERT INTO of_heap VALUES (1, 'x');
CALL travels('ALTER TABLE of_heap SET ACCESS METHOD onetrip', 'of_heap');
SELECT amname FROM pg_class JOIN pg_am ON pg_am.oid = relam WHERE relname = 'of_heap';
BEGIN;
ALTER TABLE of_heap SET ACCESS METHOD heap;
INSERT INTO of_heap VALUES (2, 'y');
SELECT unit.operations();
COMMIT;
-- A table that foreign keys of others refer to, by other columns.
BEGIN;
ALTER TABLE t ALTER r TYPE float USING random();
SELECT count(*) > 0 AS all_differ FROM t HAVING count(*) = count(DISTINCT r);
SELECT left(unit.operations(), 18) AS operation;
SELECT unit.write_set() AS drawn, md5(array_agg(t ORDER BY id)::text) AS here FROM t \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'drawn'::bytea);
SELECT md5(array_agg(t ORDER BY id)::text) = :'here' AS same FROM t;
ROLLBACK;
CREATE TABLE split (v float, gone int, id int PRIMARY KEY) PARTITION BY LIST (id);
ALTER TABLE split DROP COLUMN gone;
CREATE TABLE split_1 PARTITION OF split FOR VALUES IN (1);
CREATE TABLE refers_to_split (id int PRIMARY KEY REFERENCES split);
INSERT INTO split VALUES (1, 1);
INSERT INTO refers_to_split VALUES (1);
ALTER TABLE split ALTER v TYPE text USING random()::text;
-- Limits.
ALTER TABLE t ALTER r TYPE float USING random(), ALTER id TYPE bigint;
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE refers_to_split DROP CONSTRAINT refers_to_split_id_fkey, ADD FOREIGN KEY (id) REFERENCES split_1;
ALTER TABLE split ALTER v TYPE float USING random();
CREATE TABLE keyed (v float, id int UNIQUE);
CREATE TABLE refers_to_keyed (id int PRIMARY KEY REFERENCES keyed (id));
INSERT INTO keyed VALUES (1, 1);
ALTER TABLE keyed ALTER id TYPE bigint USING (id + random())::bigint;
DROP TABLE split, refers_to_split, keyed, refers_to_keyed;
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
