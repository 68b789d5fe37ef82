-- Goal: a statement about an extension is recorded with the version that the extension has here, and so is each extension that CASCADE installs.
-- Method: look at what a transaction has captured, with the server's own default versions written as DEFAULT.
CREATE VIEW unit_recorded AS
    SELECT coalesce((SELECT replace(operation, quote_literal(default_version), 'DEFAULT') FROM pg_available_extensions
                     WHERE operation ~ ('EXTENSION (IF NOT EXISTS )?"?' || name || '"?( |$)')), operation) AS operation
    FROM unit.operations() AS operation;

-- Without a version, in every spelling; a version given stays, and so does the schema.
BEGIN;
CREATE EXTENSION hstore;
create extension if not exists "uuid-ossp" with schema public;
CREATE EXTENSION citext VERSION '1.4';
CREATE SCHEMA apart;
CREATE EXTENSION pg_trgm SCHEMA apart VERSION "1.5";
SELECT * FROM unit_recorded;
SELECT extversion FROM pg_extension WHERE extname = 'citext';
ROLLBACK;

-- The extension exists already: nothing is installed, so no version has to be recorded.
CREATE EXTENSION citext VERSION '1.4';
BEGIN;
CREATE EXTENSION IF NOT EXISTS citext CASCADE;
CREATE EXTENSION citext;
ROLLBACK;

-- An update, to a given version and to the default.
BEGIN;
ALTER EXTENSION citext UPDATE TO '1.5';
ALTER EXTENSION citext UPDATE;
SELECT * FROM unit_recorded;
SELECT extversion = default_version AS to_the_default FROM pg_extension JOIN pg_available_extensions ON name = extname
    WHERE extname = 'citext';
ROLLBACK;

-- What CASCADE installs comes first, each as a statement of its own, into the same schema; a rollback to the savepoint removes them all.
BEGIN;
CREATE SCHEMA apart;
SAVEPOINT before;
CREATE EXTENSION earthdistance SCHEMA apart CASCADE;
SELECT * FROM unit_recorded;
SELECT extname, extnamespace::regnamespace, extversion = default_version AS default
    FROM pg_extension JOIN pg_available_extensions ON name = extname WHERE extname IN ('cube', 'earthdistance') ORDER BY 1;
ROLLBACK TO before;
SELECT * FROM unit_recorded;
SELECT count(*) FROM pg_extension WHERE extname IN ('cube', 'earthdistance');
-- The required extension exists already.
CREATE EXTENSION cube;
CREATE EXTENSION earthdistance CASCADE;
SELECT * FROM unit_recorded;
ROLLBACK;

-- Errors are the server's own.
\set VERBOSITY terse
CREATE EXTENSION earthdistance;
CREATE EXTENSION no_such_thing CASCADE;
CREATE EXTENSION hstore VERSION 'none';
ALTER EXTENSION no_such_thing UPDATE;
ALTER EXTENSION hstore UPDATE;

-- In a function, in a read-only transaction, and by a role that may not.
CREATE FUNCTION install() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CREATE EXTENSION hstore; END $$;
BEGIN;
SELECT install();
SELECT * FROM unit_recorded;
ROLLBACK;
BEGIN READ ONLY;
CREATE EXTENSION hstore;
ROLLBACK;
CREATE ROLE unit_nobody;
SET ROLE unit_nobody;
CREATE EXTENSION earthdistance CASCADE;
RESET ROLE;

DROP ROLE unit_nobody;
DROP EXTENSION citext;
DROP FUNCTION install();
DROP VIEW unit_recorded;
