-- Goal: statements whose text is not what other regions run: EXPLAIN ANALYZE of CREATE MATERIALIZED VIEW, IMPORT FOREIGN SCHEMA,
-- LIKE with a temporary table, and functions whose text uses temporary tables.
-- Method: capture the statement, roll it back, apply what was captured, and compare.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA made_elsewhere;
SET search_path = made_elsewhere;

BEGIN;
EXPLAIN (ANALYZE, COSTS off, SUMMARY off, TIMING off) CREATE MATERIALIZED VIEW seen AS SELECT g, random() AS r FROM generate_series(1, 3) g;
EXPLAIN (ANALYZE, COSTS off, SUMMARY off, TIMING off) CREATE MATERIALIZED VIEW unfilled AS SELECT 1 AS one WITH NO DATA;
EXPLAIN (ANALYZE, COSTS off, SUMMARY off, TIMING off) CREATE MATERIALIZED VIEW IF NOT EXISTS seen AS SELECT 1;
SELECT sum(r) AS sum, unit.write_set() AS operations FROM seen \gset
ROLLBACK;
EXPLAIN (COSTS off) CREATE MATERIALIZED VIEW seen AS SELECT 1;
BEGIN;
SELECT unit.apply(:'operations');
SELECT count(*), sum(r) = :sum AS same FROM seen;
SELECT relname, relispopulated FROM pg_class WHERE relnamespace = 'made_elsewhere'::regnamespace AND relkind = 'm' ORDER BY 1;
ROLLBACK;

-- A query that was analyzed under other settings, for PL/pgSQL, or before an event trigger, is analyzed again under those that are recorded.
CREATE FUNCTION sees(explained boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE seen text;
BEGIN
    IF explained THEN
        FOR seen IN EXPLAIN ANALYZE CREATE MATERIALIZED VIEW made_elsewhere.dated AS SELECT '01/02/2026'::date AS d LOOP END LOOP;
    ELSE
        CREATE MATERIALIZED VIEW made_elsewhere.dated AS SELECT '01/02/2026'::date AS d;
    END IF;
    EXECUTE $q$ SELECT to_char(d, 'DD Mon') FROM made_elsewhere.dated $q$ INTO seen;
    RETURN seen;
END $$;
BEGIN;
SELECT sees(false);
ROLLBACK;
BEGIN;
SELECT sees(true);
ROLLBACK;
SET DateStyle = 'ISO, DMY';
BEGIN;
SELECT sees(false);
SELECT unit.write_set() AS operations \gset
ROLLBACK;
BEGIN;
SELECT sees(true);
SELECT unit.write_set() AS explained \gset
ROLLBACK;
RESET DateStyle;
BEGIN;
SELECT unit.apply(:'operations');
REFRESH MATERIALIZED VIEW dated;
SELECT to_char(d, 'DD Mon') FROM dated;
ROLLBACK;
BEGIN;
SELECT unit.apply(:'explained');
REFRESH MATERIALIZED VIEW dated;
SELECT to_char(d, 'DD Mon') FROM dated;
ROLLBACK;
CREATE FUNCTION sets() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN SET DateStyle = 'ISO, DMY'; END $$;
CREATE EVENT TRIGGER sets ON ddl_command_start WHEN TAG IN ('CREATE MATERIALIZED VIEW') EXECUTE FUNCTION sets();
BEGIN;
CREATE MATERIALIZED VIEW dated AS SELECT '01/02/2026'::date AS d;
SELECT to_char(d, 'DD Mon') FROM dated;
SELECT unit.write_set() AS operations \gset
ROLLBACK;
DROP EVENT TRIGGER sets;
BEGIN;
SELECT unit.apply(:'operations');
REFRESH MATERIALIZED VIEW dated;
SELECT to_char(d, 'DD Mon') FROM dated;
ROLLBACK;

CREATE TABLE "Of it" (id int PRIMARY KEY, "V" text COLLATE "C" NOT NULL);
CREATE TABLE other (id int);
CREATE SCHEMA "Imported";
CREATE EXTENSION postgres_fdw SCHEMA made_elsewhere;
DO $$ BEGIN
    EXECUTE format('CREATE SERVER here FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host ''127.0.0.1'', port %L, dbname %L)',
                   current_setting('port'), current_database());
END $$;
CREATE USER MAPPING FOR CURRENT_USER SERVER here OPTIONS (user 'postgres', password_required 'false');
BEGIN;
IMPORT FOREIGN SCHEMA made_elsewhere LIMIT TO ("Of it", other) FROM SERVER here INTO "Imported";
SELECT string_agg(attrelid::regclass || '.' || attname || ' ' || attnotnull, ', ' ORDER BY attrelid::regclass::text, attnum) AS here
FROM pg_attribute WHERE attrelid IN ('"Imported"."Of it"'::regclass, '"Imported".other'::regclass) AND attnum > 0 \gset
SELECT unit.write_set() AS operations \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'operations');
SELECT string_agg(attrelid::regclass || '.' || attname || ' ' || attnotnull, ', ' ORDER BY attrelid::regclass::text, attnum) = :'here' AS same
FROM pg_attribute WHERE attrelid IN ('"Imported"."Of it"'::regclass, '"Imported".other'::regclass) AND attnum > 0;
ROLLBACK;
-- What an event trigger makes meanwhile was not chosen by the wrapper.
CREATE FUNCTION adds() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN CREATE FOREIGN TABLE added (id int) SERVER here; END $$;
CREATE EVENT TRIGGER adds ON ddl_command_end WHEN TAG IN ('IMPORT FOREIGN SCHEMA') EXECUTE FUNCTION adds();
BEGIN;
IMPORT FOREIGN SCHEMA made_elsewhere LIMIT TO (other) FROM SERVER here INTO "Imported";
SELECT unit.operations();
ROLLBACK;
DROP EVENT TRIGGER adds;
IMPORT FOREIGN SCHEMA nowhere FROM SERVER here INTO "Imported";
\echo :LAST_ERROR_SQLSTATE
IMPORT FOREIGN SCHEMA made_elsewhere FROM SERVER here INTO nowhere;
-- Its own error, half way: the first table is not left behind.
CREATE TABLE "Imported".other (id int);
IMPORT FOREIGN SCHEMA made_elsewhere LIMIT TO ("Of it", other) FROM SERVER here INTO "Imported";
SELECT to_regclass('"Imported"."Of it"');

CREATE TEMP TABLE temporary (id int NOT NULL, gone int, "V" varchar(7) COLLATE "C", a int[] NOT NULL);
ALTER TABLE temporary DROP COLUMN gone;
CREATE TEMP TABLE empty ();
BEGIN;
CREATE TABLE made (x int DEFAULT 1, like temporary, y text);
CREATE TABLE none (LIKE empty);
INSERT INTO made (id, a) VALUES (1, '{2}');
SELECT unit.operations();
SELECT unit.write_set() AS operations \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'operations');
\d made
SELECT * FROM made;
ROLLBACK;
CREATE TABLE made (x int, LIKE empty);
CREATE TABLE made (LIKE temporary INCLUDING ALL);

-- The body of a function is text: what it finds is looked up when it runs.
BEGIN;
CREATE FUNCTION rows_of_temporary() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM temporary';
SELECT rows_of_temporary();
SELECT unit.write_set() AS operations \gset
ROLLBACK;
DROP TABLE temporary;
BEGIN;
SELECT unit.apply(:'operations');
SELECT rows_of_temporary();
ROLLBACK;
-- What is not text depends on the table, and is as temporary.
CREATE TEMP TABLE temporary (id int);
CREATE FUNCTION as_temporary(a int DEFAULT ('temporary'::regclass)::int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION as_temporary() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM temporary; END;
-- As in PostgreSQL: one NOTICE, and the error for a routine of another kind.
CREATE OR REPLACE FUNCTION typed(other.id%TYPE) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE OR REPLACE PROCEDURE typed(int) LANGUAGE sql AS 'SELECT 1';

-- A session may outlive what its setting names.
CREATE ACCESS METHOD passing TYPE TABLE HANDLER heap_tableam_handler;
SET default_table_access_method = passing;
DROP ACCESS METHOD passing;
BEGIN;
CREATE VIEW outlives AS SELECT 1 AS one;
SELECT unit.write_set() AS operations \gset
ROLLBACK;
SELECT unit.apply(:'operations');
SELECT one FROM outlives;
RESET default_table_access_method;

SET client_min_messages = warning;
DROP SCHEMA "Imported" CASCADE;
DROP SCHEMA made_elsewhere CASCADE;
