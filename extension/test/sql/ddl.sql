-- Goal: a utility statement is recorded once, as text, in order with rows, or it is refused, or it is local; never anything else.
-- Method: look at the operations and keys of open transactions, and at SQLSTATEs.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA ddl;
SET search_path = ddl;
SET client_min_messages = warning;
CREATE ROLE ddl_owner;

-- In order with rows; sub-commands (sequence, index, view) are part of their statement.
BEGIN;
CREATE TABLE t (id serial PRIMARY KEY, v text UNIQUE);
INSERT INTO t VALUES (1, 'one');
CREATE SCHEMA ddl_inner CREATE TABLE a (id int PRIMARY KEY) CREATE VIEW b AS SELECT id FROM a;
SAVEPOINT s;
CREATE TABLE gone (id int);
ROLLBACK TO s;
ALTER TABLE t ALTER COLUMN v SET NOT NULL;
INSERT INTO t VALUES (2, 'two');
:operations;
COMMIT;
ALTER TABLE t ADD COLUMN w int DEFAULT 7;

-- Each statement of a query string is recorded by itself; comments around it do not matter; likewise if a function runs it.
BEGIN;
/* before */ CREATE INDEX i1 ON t (w) /* behind */; -- more
SELECT 1 AS one\; COMMENT ON TABLE t IS 'two; words'\; DROP INDEX i1;
DO $$ BEGIN FOR n IN 1 .. 2 LOOP EXECUTE format('CREATE TABLE loop_%s (id int PRIMARY KEY)', n); END LOOP; INSERT INTO loop_2 VALUES (1); END $$;
CREATE FUNCTION atomic(a int) RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT a + 1; SELECT a + 2; END;
:operations;
ROLLBACK;

-- The role that runs a statement travels; a password does not.
BEGIN;
GRANT ALL ON SCHEMA ddl TO ddl_owner;
SET LOCAL ROLE ddl_owner;
CREATE TABLE owned (id int PRIMARY KEY);
RESET ROLE;
CREATE ROLE ddl_login LOGIN PASSWORD 'it''s secret' VALID UNTIL 'infinity';
ALTER ROLE ddl_login ENCRYPTED PASSWORD e'it\'s \x73ecret too';
ALTER ROLE ddl_login PASSWORD 'md5aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa';
ALTER ROLE ddl_login PASSWORD NULL;
SELECT count(*) AS recorded, count(*) FILTER (WHERE operation LIKE '%secret%') AS in_clear,
       count(*) FILTER (WHERE operation ~ $$SCRAM-SHA-256\$\d+:.*VALID UNTIL 'infinity'$$) AS verifiers_in_place
FROM unit.operations() AS operation;
SELECT operation FROM unit.operations() AS operation WHERE operation LIKE '%owned%' OR operation LIKE '%md5%';
ROLLBACK;

-- Only roles that are here are dropped elsewhere: others may be a server's own.
BEGIN;
CREATE ROLE "Here";
CREATE ROLE here_too;
DROP ROLE IF EXISTS nowhere, "nowhere, too";
DROP ROLE IF EXISTS here_too;
DROP ROLE IF EXISTS "Here", nowhere /* of them */;
:operations;
ROLLBACK;

-- CREATE TABLE AS: the table, then its rows; also without rows, under EXPLAIN, and when no table is made.
BEGIN;
CREATE TABLE made (i, "T x") WITH (fillfactor = 50) AS SELECT 1, 'x' COLLATE "C" UNION ALL SELECT 2, NULL;
CREATE UNLOGGED TABLE empty AS SELECT NULL::numeric(5, 2) AS n WITH NO DATA;
SELECT 3 AS three INTO into_table;
CREATE TABLE placed TABLESPACE pg_default AS SELECT 3 AS three;
EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) CREATE TABLE explained AS SELECT 4 AS four;
CREATE TABLE IF NOT EXISTS made AS SELECT 5;
CREATE TEMP TABLE temporary AS SELECT 6;
CREATE MATERIALIZED VIEW seen AS SELECT i FROM made;
REFRESH MATERIALIZED VIEW seen;
:operations;
ROLLBACK;

-- EXPLAIN ANALYZE EXECUTE makes a table without another utility call: refused, unless the table is temporary.
PREPARE makes AS SELECT 1 AS one INTO made;
PREPARE makes_of_two AS SELECT 1 AS one INTO made UNION SELECT 2;
PREPARE makes_temporary AS SELECT 1 AS one INTO TEMP made;
PREPARE reads AS SELECT 1 AS one;
BEGIN;
EXECUTE makes;
:operations;
ROLLBACK;
EXPLAIN ANALYZE EXECUTE makes;
\echo :LAST_ERROR_SQLSTATE
EXPLAIN ANALYZE EXECUTE makes_of_two;
EXPLAIN ANALYZE CREATE TEMP TABLE other AS EXECUTE makes;
DO $$ DECLARE line text; BEGIN FOR line IN EXECUTE 'EXPLAIN ANALYZE EXECUTE makes' LOOP END LOOP; END $$;
SELECT to_regclass('made');
BEGIN;
DO $$ DECLARE line text; BEGIN FOR line IN EXECUTE 'EXPLAIN ANALYZE EXECUTE makes_temporary' LOOP END LOOP; END $$;
DO $$ DECLARE line text; BEGIN FOR line IN EXECUTE 'EXPLAIN ANALYZE EXECUTE reads' LOOP END LOOP; END $$;
DO $$ DECLARE line text; BEGIN FOR line IN EXECUTE 'EXPLAIN ANALYZE CREATE TABLE read AS EXECUTE reads' LOOP END LOOP; END $$;
:operations;
SELECT one FROM made;
ROLLBACK;
DEALLOCATE ALL;
-- So is whatever C code makes without a statement.
SELECT pg_import_system_collations('ddl');
\echo :LAST_ERROR_SQLSTATE
SELECT unit.make_table('made', false);
\echo :LAST_ERROR_SQLSTATE
CREATE TABLE made AS SELECT unit.make_table('made_by_the_way', false)::text;
SELECT unit.make_table('made', true);
DROP TABLE made;

-- TRUNCATE is recorded, without the schema key, for each onetrip table that it empties, whichever tables it names.
CREATE UNLOGGED TABLE unlogged (id int);
CREATE TABLE plain (id serial PRIMARY KEY) USING heap;
CREATE TABLE of_plain (id serial PRIMARY KEY, plain int REFERENCES plain);
CREATE TABLE of_unlogged () INHERITS (unlogged);
CREATE TEMP TABLE passing (id serial);
BEGIN;
TRUNCATE t RESTART IDENTITY CASCADE;
:operations;
:keys;
ROLLBACK;
BEGIN;
TRUNCATE ONLY unlogged, passing RESTART IDENTITY;
TRUNCATE passing;
:operations;
TRUNCATE plain CASCADE;
:operations;
ROLLBACK;
BEGIN;
TRUNCATE unlogged, passing;
:operations;
ROLLBACK;
BEGIN;
TRUNCATE t, of_plain, plain, passing RESTART IDENTITY;
:operations;
ROLLBACK;
-- C code that empties one without the statement is refused.
SELECT unit.truncate('plain');
\echo :LAST_ERROR_SQLSTATE
SELECT unit.truncate('passing');
SELECT unit.truncate('unlogged');
\echo :LAST_ERROR_SQLSTATE
DROP TABLE of_plain, of_unlogged;
DROP TABLE passing;

-- Local: nothing is recorded.
CREATE TEMP TABLE temporary (id serial PRIMARY KEY, v text);
BEGIN;
CREATE INDEX ON temporary (v);
ALTER TABLE temporary ADD COLUMN w int;
CREATE VIEW over_temporary AS SELECT id FROM temporary;
CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE TYPE pg_temp.pair AS (a int, b int);
CREATE SEQUENCE pg_temp.s;
COMMENT ON COLUMN temporary.v IS 'x';
COMMENT ON TYPE pg_temp.pair IS 'x';
ALTER TYPE pg_temp.pair RENAME TO pair2;
ALTER TYPE pg_temp.pair2 OWNER TO ddl_owner;
GRANT SELECT ON temporary TO ddl_owner;
TRUNCATE temporary;
ALTER TABLE temporary RENAME TO temporary2;
DROP FUNCTION pg_temp.f();
DROP TABLE temporary2 CASCADE;
SET LOCAL work_mem = '1MB';
LOCK TABLE t IN ACCESS SHARE MODE;
DECLARE c CURSOR FOR SELECT 1;
PREPARE p AS SELECT 1;
ANALYZE t;
REINDEX TABLE t;
ALTER DATABASE template1 SET work_mem = '1MB';
ALTER DATABASE template1 RESET work_mem;
SELECT onetrip.pending_bytes();
ROLLBACK;
CLUSTER t USING t_pkey;
VACUUM FULL t;
SELECT onetrip.pending_bytes();

CREATE DOMAIN number AS int;
ALTER DOMAIN number RENAME TO numeral;
ALTER DOMAIN numeral OWNER TO ddl_owner;

-- Permanent definitions cannot refer to temporary objects, since no other region has them.
CREATE TEMP TABLE IF NOT EXISTS temporary (id int);
CREATE TABLE like_temporary (LIKE temporary INCLUDING DEFAULTS);
CREATE FUNCTION of_temporary() RETURNS SETOF temporary LANGUAGE sql AS 'SELECT 1';
CREATE TABLE named_temporary (id pg_temp.pair);
\echo :LAST_ERROR_SQLSTATE
DROP TABLE temporary, t;
\echo :LAST_ERROR_SQLSTATE
DROP TABLE temporary;

-- Keys that do not come from held locks: names that are lost, relations of a renamed schema, relations that use a changed type.
CREATE TABLE renamed (id int PRIMARY KEY);
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE DOMAIN moods AS mood[];
CREATE TYPE holder AS (m mood);
CREATE TABLE moody (id int PRIMARY KEY, m moods);
CREATE TABLE holding (id int PRIMARY KEY, h holder);
BEGIN;
ALTER TYPE mood RENAME VALUE 'good' TO 'fine';
:keys;
ROLLBACK;
BEGIN;
ALTER DOMAIN moods ADD CHECK (cardinality(value) < 5);
:keys;
ROLLBACK;
BEGIN;
ALTER TYPE holder ADD ATTRIBUTE n int;
:keys;
ROLLBACK;
BEGIN;
ALTER SCHEMA ddl_inner RENAME TO ddl_outer;
:keys;
ROLLBACK;
BEGIN;
ALTER TABLE renamed RENAME TO other_name;
ALTER TABLE t SET SCHEMA ddl_inner;
:keys;
ROLLBACK;
BEGIN;
DROP TABLE renamed;
SELECT mode, count(*) FROM onetrip.pending_keys() GROUP BY 1;
ROLLBACK;

-- Refused: what cannot be the same everywhere, or cannot run in one transaction.
INSERT INTO t VALUES (1, 'one') ON CONFLICT DO NOTHING;
CREATE TABLE unfilled (id int);
ALTER TABLE unfilled ADD COLUMN n serial, ADD COLUMN r float DEFAULT random();
ALTER TABLE t ADD COLUMN at timestamptz DEFAULT now();
ALTER TABLE t ALTER COLUMN w TYPE bigint USING w * 2;
CREATE FUNCTION rows_of_t() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) FROM ddl.t';
CREATE TYPE price AS (amount int);
CREATE FUNCTION price(int) RETURNS price LANGUAGE sql STABLE AS 'SELECT ROW($1 * (SELECT count(*) FROM ddl.t))::ddl.price';
CREATE CAST (int AS price) WITH FUNCTION price(int) AS ASSIGNMENT;
CREATE TABLE priced (p int);
ALTER TABLE priced ALTER p TYPE price;
ALTER TABLE priced ALTER p TYPE text;
INSERT INTO priced VALUES ('(7)');
ALTER TABLE unfilled ADD COLUMN counted bigint DEFAULT rows_of_t();
BEGIN;
SET LOCAL ddl.setting = 'x';
ALTER TABLE t ADD COLUMN a text DEFAULT current_setting('ddl.setting'), ADD COLUMN b text DEFAULT current_setting('TimeZone'),
    ADD COLUMN c text DEFAULT format('%s %s', to_char(now(), 'YYYY'), current_user), ADD COLUMN d date DEFAULT 'tomorrow';
ALTER TABLE t ALTER COLUMN v TYPE text USING concat(v, date_trunc('day', now()), to_json(v));
ROLLBACK;
CREATE TABLE parted (id int) PARTITION BY LIST (id);
CREATE TABLE part PARTITION OF parted FOR VALUES IN (1);
CREATE SUBSCRIPTION s CONNECTION '' PUBLICATION p WITH (connect = false, two_phase = true);
CREATE TABLESPACE ts LOCATION '/nowhere';
DROP DATABASE :DBNAME;
ALTER DATABASE :DBNAME RENAME TO x;
DROP EXTENSION onetrip;
CREATE FUNCTION f() RETURNS int LANGUAGE sql SET work_mem FROM CURRENT AS 'SELECT 1';
CREATE FUNCTION f() RETURNS int LANGUAGE sql SET search_path FROM CURRENT AS 'SELECT 1';
-- In other regions SESSION_USER is the worker's user: as a role it is recorded by its name, in an expression it is a definition like any other.
GRANT USAGE, CREATE ON SCHEMA ddl TO ddl_owner;
SET SESSION AUTHORIZATION ddl_owner;
CREATE TABLE "of whom" (id int PRIMARY KEY, who text, "group" int);
BEGIN;
GRANT SELECT ON "of whom" TO PUBLIC, /* SESSION_USER */ SESSION_USER, GROUP session_user;
REVOKE SELECT ON "of whom" FROM GROUP session_user, SESSION_USER CASCADE;
ALTER TABLE "of whom" OWNER TO SESSION_USER;
ALTER DEFAULT PRIVILEGES FOR ROLE SESSION_USER, SESSION_USER GRANT SELECT ON TABLES TO SESSION_USER;
CREATE POLICY a ON "of whom" TO SESSION_USER USING (who IS NOT DISTINCT FROM SESSION_USER OR who IS DISTINCT FROM session_user);
CREATE POLICY b ON "of whom" USING (EXISTS (SELECT FROM "of whom" o GROUP BY session_user, o.who ORDER BY session_user, o.who));
CREATE VIEW "grouped" AS SELECT session_user AS session_user, count(*) OVER (PARTITION BY session_user, "group") FROM "of whom";
CREATE VIEW "in from" AS SELECT f.* FROM SESSION_USER u, ROWS FROM (SESSION_USER) f, ROWS FROM (session_user, current_user) g (a, b) WHERE u IS NOT NULL;
GRANT SELECT ON "in from" TO session_user;
ALTER TABLE "of whom" ADD CHECK (who IS DISTINCT FROM session_user);
CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER never AFTER INSERT ON "of whom" FOR EACH ROW WHEN (new.who IS DISTINCT FROM session_user) EXECUTE FUNCTION never();
RESET SESSION AUTHORIZATION;
:operations;
ROLLBACK;
SET SESSION AUTHORIZATION ddl_owner;
-- Of many it does not take the longer for each.
SET statement_timeout = '10s';
DO $$ BEGIN EXECUTE (SELECT format('CREATE VIEW many AS SELECT 1 AS one WHERE ''x'' IN (%s)', string_agg('session_user', ', ')) FROM generate_series(1, 20000)); END $$;
SELECT length(pg_get_viewdef('many')) > 200000 AS whole;
DROP VIEW many;
RESET statement_timeout;
DROP TABLE "of whom";
CREATE TEMP VIEW me AS SELECT session_user;
RESET SESSION AUTHORIZATION;
DROP VIEW me;
ALTER ROLE ddl_owner RENAME TO "ddl ""owner""";
SET SESSION AUTHORIZATION 'ddl "owner"';
BEGIN;
SET ROLE NONE;
CREATE TABLE by_it (id int);
GRANT SELECT ON by_it TO SESSION_USER;
RESET SESSION AUTHORIZATION;
:operations;
ROLLBACK;
RESET SESSION AUTHORIZATION;
ALTER ROLE "ddl ""owner""" RENAME TO ddl_owner;
SET ROLE ddl_owner;
BEGIN;
CREATE TABLE by_it (id int);
GRANT SELECT ON by_it TO SESSION_USER;
RESET ROLE;
:operations;
ROLLBACK;
RESET ROLE;
REVOKE USAGE, CREATE ON SCHEMA ddl FROM ddl_owner;
-- All settings of the session travel with a statement; there is a limit.
DO $$ BEGIN FOR n IN 1 .. 128 LOOP PERFORM set_config('ddl.n' || n, 'v', false); END LOOP; END $$;
CREATE TABLE many_settings (id int);
\echo :LAST_ERROR_SQLSTATE
DO $$ BEGIN FOR n IN 1 .. 128 LOOP PERFORM set_config('ddl.n' || n, NULL, false); END LOOP; END $$;
-- Text is read again elsewhere, with the settings of when it was run: if it was read here before they were set, it is refused where that makes a difference.
SET standard_conforming_strings = off\; COMMENT ON TABLE t IS 'a\\b';
SET standard_conforming_strings = off\; COMMENT ON TABLE t IS 'ab';
SHOW standard_conforming_strings;
COMMENT ON TABLE t IS 'a\\b';
SELECT obj_description('t'::regclass);
SET standard_conforming_strings = on\; COMMENT ON TABLE t IS 'a\\b';
SET standard_conforming_strings = on\; COMMENT ON TABLE t IS E'a\\b';
COMMENT ON TABLE t IS 'a\\b';
SELECT obj_description('t'::regclass);
COMMENT ON TABLE t IS NULL;
SET standard_conforming_strings = off\; CREATE MATERIALIZED VIEW strings AS SELECT 'a\\b' AS s;
SET standard_conforming_strings = off;
SET standard_conforming_strings = on\; EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) CREATE MATERIALIZED VIEW strings AS SELECT 'a\\b' AS s;
SET standard_conforming_strings = on;
CREATE MATERIALIZED VIEW strings AS SELECT v || 'a\\b\d' AS s, v ~ '\d+' AS m FROM t WITH NO DATA;
DROP MATERIALIZED VIEW strings;
EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) CREATE MATERIALIZED VIEW strings AS SELECT 'a\\b' AS s;
SELECT s FROM strings;
DROP MATERIALIZED VIEW strings;
CREATE TABLE strings AS SELECT E'a\\b' AS s;
DROP TABLE strings;
-- An expression that servers may compute differently is refused as a default for existing rows, and as a conversion of them.
CREATE TABLE with_rows (id int PRIMARY KEY, v text);
INSERT INTO with_rows VALUES (1, 'with_rows');
-- These travel.
SET app.here = 'here';
ALTER TABLE with_rows ADD COLUMN c text DEFAULT current_setting('app.here'), ADD COLUMN d regclass DEFAULT 'with_rows'::regclass,
    ADD COLUMN e timestamptz DEFAULT now(), ADD COLUMN f name DEFAULT current_user, ADD COLUMN g int GENERATED ALWAYS AS (id * 2) STORED;
SELECT c, d, f, g FROM with_rows;
DROP TABLE with_rows;
RESET app.here;
-- A name that contains an OID is different in other regions.
DO $$ BEGIN EXECUTE 'GRANT SELECT ON ' || (SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 't'::regclass) || ' TO ddl_owner';
EXCEPTION WHEN feature_not_supported THEN RAISE WARNING '%', regexp_replace(SQLERRM, '[0-9]+', 'N'); END $$;
CREATE TABLE referring (id int REFERENCES t);
DO $$ BEGIN EXECUTE 'ALTER TABLE referring DISABLE TRIGGER ' || (SELECT quote_ident(min(tgname)) FROM pg_trigger WHERE tgrelid = 'referring'::regclass);
EXCEPTION WHEN feature_not_supported THEN RAISE WARNING '%', regexp_replace(SQLERRM, '[0-9]+', 'N'); END $$;
ALTER TABLE referring ADD CONSTRAINT late UNIQUE (id) DEFERRABLE;
DO $$ BEGIN EXECUTE 'COMMENT ON TRIGGER ' || (SELECT quote_ident(tgname) FROM pg_trigger WHERE tgrelid = 'referring'::regclass
    AND tgname ~ '^Unique') || ' ON referring IS ''late''';
EXCEPTION WHEN feature_not_supported THEN RAISE WARNING '%', regexp_replace(SQLERRM, '[0-9]+', 'N'); END $$;
ALTER TABLE referring DROP CONSTRAINT late;
COMMENT ON TABLE referring IS 'pg_toast.pg_toast_123 in words';
-- Also if it is written as U&"...".
DO $$ BEGIN EXECUTE 'GRANT SELECT ON pg_toast.U&"pg\005f' || (SELECT substr(relname, 4) FROM pg_class WHERE oid = (SELECT reltoastrelid FROM pg_class
    WHERE oid = 't'::regclass)) || '" TO ddl_owner';
EXCEPTION WHEN feature_not_supported THEN RAISE WARNING '%', regexp_replace(SQLERRM, '[0-9]+', 'N'); END $$;
DO $$ BEGIN EXECUTE 'ALTER TABLE referring DISABLE TRIGGER U&"!0052' || (SELECT substr(min(tgname), 2) FROM pg_trigger
    WHERE tgrelid = 'referring'::regclass) || '" uescape ''!''';
EXCEPTION WHEN feature_not_supported THEN RAISE WARNING '%', regexp_replace(SQLERRM, '[0-9]+', 'N'); END $$;
CREATE TABLE like_named (id U&"pg!005ftemp" UESCAPE '!' . pair);
CREATE TABLE like_named (id u&"pg\005ftemp_3".pair);
CREATE TABLE pg_templates (U&"d\0061t" int, "pg_temp_x" int);
COMMENT ON COLUMN pg_templates.U&"d\0061t" IS 'x';
COMMENT ON COLUMN U&"pg!005ftemplates" UESCAPE '!'.pg_temp_x IS 'x';
DROP TABLE pg_templates;
CREATE TABLE like_named (id PG_Temp.pair);
CREATE SCHEMA "PG_TEMP";
CREATE TABLE "PG_TEMP".named (id int);
GRANT SELECT ON "PG_TEMP".named TO ddl_owner;
DROP TABLE "PG_TEMP".named;
DROP SCHEMA "PG_TEMP";

-- ALTER TYPE ... CASCADE does the same to the tables of the type: one with rows, one without, a child, one of another owner.
CREATE DOMAIN drawn AS float DEFAULT random();
CREATE DOMAIN fixed AS float DEFAULT 7;
CREATE TYPE row_type AS (a int, b text);
CREATE TABLE typed OF row_type;
CREATE TABLE typed_here OF row_type USING heap;
INSERT INTO typed_here VALUES (1, '1');
ALTER TYPE row_type ADD ATTRIBUTE c drawn CASCADE;
INSERT INTO typed VALUES (1, '1');
ALTER TYPE row_type ADD ATTRIBUTE d drawn;
ALTER TYPE row_type ADD ATTRIBUTE d drawn CASCADE;
\echo :LAST_ERROR_SQLSTATE
ALTER TYPE row_type ADD ATTRIBUTE d fixed CASCADE;
ALTER TYPE row_type ALTER ATTRIBUTE a TYPE price CASCADE;
ALTER TYPE row_type ALTER ATTRIBUTE a TYPE bigint CASCADE;
SELECT a, b, d FROM typed;
CREATE TABLE typed_of_other OF row_type;
ALTER TABLE typed_of_other OWNER TO ddl_owner;
GRANT ALL ON SCHEMA ddl TO ddl_owner;
ALTER TYPE row_type OWNER TO ddl_owner;
ALTER TABLE typed_here OWNER TO ddl_owner;
SET ROLE ddl_owner;
ALTER TYPE row_type ADD ATTRIBUTE e drawn CASCADE;
RESET ROLE;
REVOKE ALL ON SCHEMA ddl FROM ddl_owner;
DROP TABLE typed, typed_here, typed_of_other;

-- Functions that a recorded statement calls may change nothing, since they are called in every region.
CREATE TABLE noted (id serial PRIMARY KEY, what text);
CREATE FUNCTION notes(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO noted (what) VALUES ('n'); RETURN n; END $$;
CREATE FUNCTION makes(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN CREATE TABLE by_the_way (id int); RETURN n; END $$;
CREATE FUNCTION sets(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM setval('noted_id_seq', 100); RETURN n; END $$;
CREATE FUNCTION computes(n int, how text) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN RETURN CASE how WHEN 'notes' THEN notes(n) WHEN 'makes' THEN makes(n) WHEN 'sets' THEN sets(n) END; END $$;
CREATE INDEX ON t (computes(w::int, 'notes'));
\echo :LAST_ERROR_SQLSTATE
CREATE INDEX ON t (computes(w::int, 'makes'));
CREATE INDEX ON t (computes(w::int, 'sets'));
ALTER TABLE t ADD CHECK (computes(w::int, 'notes') > 0);
ALTER TABLE t ALTER w TYPE bigint USING computes(w::int, 'notes');
ALTER TABLE t ADD COLUMN x int DEFAULT computes(1, 'makes');
-- If the results of the statement travel and not the statement, they may change something; they are called once.
BEGIN;
CREATE MATERIALIZED VIEW noting AS SELECT notes(1), makes(2), 'x' AS x;
REFRESH MATERIALIZED VIEW noting WITH NO DATA;
:operations;
ROLLBACK;

-- Triggers of TRUNCATE and event triggers fire where the statement runs; what they do before it is captured before it.
CREATE TABLE emptied (id int PRIMARY KEY, n int REFERENCES t);
CREATE FUNCTION empties() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO noted (what) VALUES (TG_WHEN); INSERT INTO emptied VALUES (8); RETURN NULL; END $$;
CREATE TRIGGER before_it BEFORE TRUNCATE ON emptied EXECUTE FUNCTION empties();
CREATE TRIGGER after_it AFTER TRUNCATE ON emptied EXECUTE FUNCTION empties();
BEGIN;
TRUNCATE t CASCADE;
:operations;
ROLLBACK;
CREATE FUNCTION on_event() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO noted (what) VALUES (TG_EVENT);
    IF TG_TAG = 'CREATE VIEW' THEN EXECUTE 'COMMENT ON TABLE noted IS ' || quote_literal(TG_EVENT); END IF;
END $$;
CREATE EVENT TRIGGER first_start ON ddl_command_start EXECUTE FUNCTION on_event();
CREATE EVENT TRIGGER second_start ON ddl_command_start EXECUTE FUNCTION on_event();
CREATE EVENT TRIGGER at_end ON ddl_command_end EXECUTE FUNCTION on_event();
BEGIN;
CREATE VIEW viewed AS SELECT 1 AS one;
ALTER TABLE noted ALTER what SET NOT NULL;
:operations;
ROLLBACK;
BEGIN;
CREATE EXTENSION tcn;
:operations;
ROLLBACK;
DROP EVENT TRIGGER at_end;
CREATE OR REPLACE FUNCTION on_event() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN IF TG_TAG = 'CREATE FUNCTION' AND TG_EVENT = 'ddl_command_end' THEN CREATE TABLE by_the_way (id int); END IF; END $$;
DROP EVENT TRIGGER first_start;
DROP EVENT TRIGGER second_start;
CREATE EVENT TRIGGER at_end ON ddl_command_end EXECUTE FUNCTION on_event();
CREATE EXTENSION tcn;
\echo :LAST_ERROR_SQLSTATE
DROP EVENT TRIGGER at_end;

-- None of that left anything open.
SELECT onetrip.pending_bytes(), (SELECT count(*) FROM onetrip.pending_keys());
DROP SCHEMA ddl, ddl_inner CASCADE;
DROP OWNED BY ddl_owner;
DROP ROLE ddl_owner;
