-- Goal: a table made without USING is replicated, also while default_table_access_method is heap; onetrip.new_tables = local makes it local.
-- Method: every statement that makes a table, under each pair of settings; what was captured is applied again under other settings.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA new_tables;
SET search_path = new_tables;
SET client_min_messages = warning;
CREATE TYPE pair AS (a int, b text);
CREATE TABLE parted (id int) PARTITION BY LIST (id);
CREATE TABLE parent (id int);
PREPARE rows AS SELECT 5 AS five;
CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler;
CREATE FUNCTION plain_sql() RETURNS void LANGUAGE sql AS 'CREATE TABLE by_sql (id int); SELECT 2 AS two INTO by_into';
CREATE PROCEDURE makes() LANGUAGE plpgsql AS $$
BEGIN
    CREATE TABLE usual (id int PRIMARY KEY, v text);
    CREATE TABLE IF NOT EXISTS usual (id int);
    CREATE TABLE typed OF pair;
    CREATE TABLE part PARTITION OF parted FOR VALUES IN (1);
    CREATE TABLE sub PARTITION OF parted FOR VALUES IN (2) PARTITION BY LIST (id);
    CREATE TABLE sub_part PARTITION OF sub DEFAULT;
    CREATE TABLE child () INHERITS (parent);
    CREATE TABLE alike (LIKE parent INCLUDING ALL);
    CREATE TABLE from_query AS SELECT 1 AS one;
    CREATE TABLE from_nothing AS SELECT 1 AS one WITH NO DATA;
    EXECUTE 'CREATE TABLE from_prepared AS EXECUTE rows';
    EXECUTE 'EXPLAIN (ANALYZE) CREATE TABLE explained AS SELECT 3 AS three';
    CREATE MATERIALIZED VIEW seen AS SELECT 4 AS four;
    CREATE SCHEMA new_tables_inner CREATE TABLE a (id int PRIMARY KEY) CREATE TABLE b (id int REFERENCES a) CREATE TABLE said (id int) USING heap;
    PERFORM plain_sql();
    CREATE TABLE said_heap (id int) USING heap;
    CREATE TABLE said_heap_too USING heap AS SELECT 1 AS one;
    CREATE TABLE said_onetrip (id int) USING onetrip;
    CREATE MATERIALIZED VIEW said_other USING other AS SELECT 4 AS four;
    CREATE UNLOGGED TABLE unlogged (id int);
    CREATE TEMP TABLE temporary (id int);
END $$;
CREATE VIEW made AS
    SELECT coalesce(amname, 'none') AS access_method, string_agg(relname, ' ' ORDER BY relname COLLATE "C") AS tables
    FROM pg_class LEFT JOIN pg_am a ON a.oid = relam
    WHERE relkind IN ('r', 'm', 'p') AND relname NOT IN ('parted', 'parent')
    AND (relnamespace IN ('new_tables'::regnamespace, pg_my_temp_schema()) OR relnamespace = to_regnamespace('new_tables_inner'))
    GROUP BY amname ORDER BY amname;

-- As the replicated database has it.
SHOW default_table_access_method;
SHOW onetrip.new_tables;
BEGIN;
CALL makes();
TABLE made;
SELECT unit.write_set() AS as_it_is \gset
ROLLBACK;
-- As a dump sets it: the same.
BEGIN;
SET LOCAL default_table_access_method = heap;
CALL makes();
TABLE made;
SELECT unit.write_set() AS under_heap \gset
ROLLBACK;
-- Local, whatever PostgreSQL's own default is.
BEGIN;
SET LOCAL onetrip.new_tables = local;
CALL makes();
TABLE made;
SELECT unit.write_set() AS local \gset
ROLLBACK;
BEGIN;
SET LOCAL onetrip.new_tables = local;
SET LOCAL default_table_access_method = heap;
CALL makes();
SELECT access_method FROM made;
ROLLBACK;
-- Another access method is taken at its word.
BEGIN;
SET LOCAL default_table_access_method = other;
CALL makes();
TABLE made;
SELECT unit.write_set() AS other \gset
ROLLBACK;
BEGIN;
SET LOCAL default_table_access_method = other;
SET LOCAL onetrip.new_tables = local;
CREATE TABLE usual (id int);
TABLE made;
ROLLBACK;

-- The apply worker makes the same of what was captured, whatever is set where it runs.
BEGIN;
SET LOCAL onetrip.new_tables = local;
SET LOCAL default_table_access_method = other;
SELECT unit.apply(:'as_it_is');
TABLE made;
ROLLBACK;
BEGIN;
SET LOCAL onetrip.new_tables = local;
SELECT unit.apply(:'under_heap');
TABLE made;
ROLLBACK;
BEGIN;
SET LOCAL default_table_access_method = heap;
SELECT unit.apply(:'local');
TABLE made;
ROLLBACK;
BEGIN;
SELECT unit.apply(:'other');
TABLE made;
ROLLBACK;

-- A statement that is kept and run again, under settings that have changed meanwhile.
CREATE FUNCTION again() RETURNS void LANGUAGE plpgsql AS 'BEGIN DROP TABLE IF EXISTS usual; CREATE TABLE usual (id int PRIMARY KEY); END';
SELECT again();
TABLE made;
SET onetrip.new_tables = local;
SELECT again();
TABLE made;
RESET onetrip.new_tables;
SELECT again();
TABLE made;
DROP TABLE usual;

-- Its rows travel, or they do not.
SET default_table_access_method = heap;
CREATE TABLE travels (id int PRIMARY KEY);
CREATE MATERIALIZED VIEW results AS SELECT 4 AS four;
SET onetrip.new_tables = local;
CREATE TABLE stays (id int PRIMARY KEY);
RESET default_table_access_method;
CREATE TABLE stays_too AS SELECT 1 AS one;
RESET onetrip.new_tables;
BEGIN;
INSERT INTO travels VALUES (1);
INSERT INTO stays VALUES (1);
INSERT INTO stays_too VALUES (1);
REFRESH MATERIALIZED VIEW results;
:operations;
COMMIT;

-- The script of an extension.
BEGIN;
SET LOCAL default_table_access_method = heap;
CREATE EXTENSION address_standardizer_data_us;
SELECT DISTINCT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname LIKE 'us\_%' AND relkind = 'r';
ROLLBACK;
BEGIN;
SET LOCAL onetrip.new_tables = local;
CREATE EXTENSION address_standardizer_data_us;
SELECT DISTINCT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname LIKE 'us\_%' AND relkind = 'r';
SELECT unit.write_set() AS extension \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'extension');
SELECT DISTINCT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname LIKE 'us\_%' AND relkind = 'r';
ROLLBACK;

-- An event trigger changes the settings before the statement has done anything: that counts, here and where it is applied.
CREATE FUNCTION sets() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM set_config('onetrip.new_tables', 'local', true); END $$;
CREATE EVENT TRIGGER sets ON ddl_command_start WHEN TAG IN ('CREATE TABLE', 'CREATE MATERIALIZED VIEW') EXECUTE FUNCTION sets();
BEGIN;
CREATE TABLE usual (id int);
SET LOCAL onetrip.new_tables = replicated;
CREATE MATERIALIZED VIEW seen AS SELECT 4 AS four;
TABLE made;
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
DROP EVENT TRIGGER sets;
BEGIN;
SELECT unit.apply(:'write_set');
TABLE made;
ROLLBACK;

-- The database may lose its own setting: PostgreSQL's default is heap then, and means the same.
ALTER DATABASE onetrip RESET ALL;
\c
SET search_path = new_tables;
SHOW default_table_access_method;
BEGIN;
CREATE TABLE usual (id int);
SELECT access_method FROM made WHERE tables ~ 'usual';
ROLLBACK;
ALTER DATABASE onetrip SET default_table_access_method = 'onetrip';
-- For all tables of a role.
CREATE ROLE new_tables_role;
ALTER ROLE new_tables_role SET onetrip.new_tables = local;
SELECT rolconfig FROM pg_roles WHERE rolname = 'new_tables_role';
DROP ROLE new_tables_role;
-- FROM CURRENT takes the value along, since it travels.
BEGIN;
SET LOCAL onetrip.new_tables = local;
CREATE FUNCTION keeps() RETURNS text LANGUAGE sql SET onetrip.new_tables FROM CURRENT AS $$SELECT current_setting('onetrip.new_tables')$$;
SET LOCAL onetrip.new_tables = replicated;
SELECT keeps();
ROLLBACK;
SET onetrip.new_tables = heap;

-- The server's other databases are as PostgreSQL makes them.
\set replicated :DBNAME
\c postgres
CREATE TABLE usual (id int);
SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname = 'usual';
DROP TABLE usual;
\c :replicated

SET client_min_messages = warning;
DROP SCHEMA new_tables CASCADE;
DROP ACCESS METHOD other;
