-- Goal: tables that do not travel cost nothing: no keys, no bytes, no proposal at COMMIT.
-- Method: temporary, unlogged and heap tables, and a database that is local.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA not_replicated;
SET search_path = not_replicated;
CREATE TEMP TABLE temporary (id int PRIMARY KEY, v text);
CREATE TEMP TABLE vanishing (id int PRIMARY KEY) ON COMMIT DELETE ROWS;
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY, v text);
CREATE TABLE plain (id int PRIMARY KEY, v text) USING heap;
CREATE TABLE t (id int PRIMARY KEY);
SELECT proposals FROM onetrip.status \gset before_

BEGIN;
INSERT INTO temporary VALUES (1, 'x');
INSERT INTO vanishing VALUES (1);
INSERT INTO unlogged VALUES (1, 'x');
INSERT INTO plain VALUES (1, 'x');
UPDATE temporary SET v = 'y';
UPDATE unlogged SET v = 'y';
UPDATE plain SET v = 'y';
SELECT id FROM temporary FOR UPDATE;
SELECT id FROM unlogged FOR UPDATE;
SELECT id FROM plain FOR UPDATE;
DELETE FROM temporary;
DELETE FROM unlogged;
DELETE FROM plain;
SELECT onetrip.pending_bytes(), (SELECT count(*) FROM onetrip.pending_keys());
COMMIT;
TRUNCATE temporary;
TRUNCATE unlogged;
TRUNCATE plain;
CREATE TEMP TABLE more AS SELECT 1 AS one;
CREATE INDEX ON more (one);
DROP TABLE more;
-- They need no primary key, and SERIALIZABLE works as usual.
CREATE TEMP TABLE loose (a int);
INSERT INTO loose VALUES (1);
UPDATE loose SET a = 2;
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE loose SET a = 3;
INSERT INTO plain VALUES (2, 'serializable');
COMMIT;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;

-- Together with a onetrip table, only that one travels.
BEGIN;
INSERT INTO temporary VALUES (2, 'x');
INSERT INTO plain VALUES (3, 'x');
INSERT INTO t VALUES (1);
:keys;
:operations;
COMMIT;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
SELECT id, v FROM plain ORDER BY id;

-- The server's other databases are local: heap is the default there, a onetrip table needs the extension first.
\set replicated :DBNAME
\c postgres
SHOW default_table_access_method;
CREATE TABLE local_table (a int);
INSERT INTO local_table VALUES (1);
UPDATE local_table SET a = 2;
CREATE MATERIALIZED VIEW local_view AS SELECT a FROM local_table;
BEGIN;
REFRESH MATERIALIZED VIEW local_view;
TRUNCATE local_table;
REFRESH MATERIALIZED VIEW local_view WITH NO DATA;
COMMIT;
DROP TABLE local_table CASCADE;
-- What all databases have in common is changed on this server only.
CREATE ROLE not_replicated_role;
-- A schema of somebody's that is called like the extension's.
SET client_min_messages = error;
DROP SCHEMA IF EXISTS onetrip;
RESET client_min_messages;
CREATE SCHEMA onetrip AUTHORIZATION not_replicated_role;
SET ROLE not_replicated_role;
CREATE TABLE onetrip.t (id int PRIMARY KEY);
BEGIN;
LOCK TABLE onetrip.t;
COMMIT;
RESET ROLE;
DROP SCHEMA onetrip CASCADE;
ALTER ROLE not_replicated_role RENAME TO not_replicated_too;
COMMENT ON ROLE not_replicated_too IS 'here';
ALTER DATABASE :replicated SET work_mem = '5MB';
ALTER DATABASE :replicated RESET ALL;
ALTER DATABASE postgres CONNECTION LIMIT 1000;
ALTER DATABASE postgres CONNECTION LIMIT -1;
GRANT CONNECT ON DATABASE :replicated TO not_replicated_too;
REVOKE CONNECT ON DATABASE :replicated FROM not_replicated_too;
COMMENT ON DATABASE :replicated IS NULL;
GRANT SET ON PARAMETER log_min_messages TO not_replicated_too;
REVOKE SET ON PARAMETER log_min_messages FROM not_replicated_too;
-- Likewise if the statement names roles only, and they own something shared, or may do something with it.
SELECT datdba::regrole AS owner FROM pg_database WHERE datname = :'replicated' \gset
CREATE SCHEMA not_replicated AUTHORIZATION not_replicated_too;
CREATE SCHEMA not_replicated_2 AUTHORIZATION not_replicated_too;
GRANT CONNECT ON DATABASE postgres TO not_replicated_too;
REASSIGN OWNED BY not_replicated_too TO CURRENT_USER;
DROP OWNED BY not_replicated_too;
ALTER DATABASE :replicated OWNER TO not_replicated_too;
GRANT SET ON PARAMETER log_min_messages TO not_replicated_too;
REASSIGN OWNED BY not_replicated_too TO :owner;
DROP OWNED BY not_replicated_too;
DROP OWNED BY not_replicated_too;
GRANT CREATE ON TABLESPACE pg_default TO not_replicated_too;
DROP OWNED BY not_replicated_too;
DROP SCHEMA not_replicated, not_replicated_2;
DROP ROLE not_replicated_too;
\c :replicated
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
SET search_path = not_replicated;

-- A table belongs to the region unless its access method is onetrip, by that name.
CREATE ACCESS METHOD not_replicated_too TYPE TABLE HANDLER onetrip.access_method_handler;

-- C code that changes a replicated table at COMMIT, after the entry was made, or found not to be needed: no region gets half of
-- it.
CREATE TABLE late (id int PRIMARY KEY);
SELECT unit.write_at_drop('INSERT INTO not_replicated.late VALUES (1)');
BEGIN;
CREATE TEMP TABLE passing (id int) ON COMMIT DROP;
COMMIT;
SELECT unit.write_at_drop('INSERT INTO not_replicated.late VALUES (2)');
BEGIN;
CREATE TEMP TABLE passing (id int) ON COMMIT DROP;
INSERT INTO late VALUES (3);
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
DO $$
BEGIN
    FOR i IN 1..1000 LOOP
        EXIT WHEN EXISTS (SELECT FROM late WHERE id = 3);
        COMMIT;
        PERFORM pg_sleep(0.02);
    END LOOP;
END $$;
SELECT * FROM late;
INSERT INTO late VALUES (4);

SET client_min_messages = warning;
DROP SCHEMA not_replicated CASCADE;
