-- Goal: each function of the extension answers what docs/functions.md says, and takes garbage with a clear error.
-- Method: call each one, as a superuser and as a user with no privileges, in and out of transactions.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA functions;
SET search_path = functions;
CREATE TABLE t (id int PRIMARY KEY);

-- position(): moves with each committed change, by reading not.
SELECT onetrip.position() AS position \gset before_
INSERT INTO t VALUES (1);
SELECT onetrip.position() > :before_position AS moved;
SELECT onetrip.position() = (SELECT applied FROM onetrip.status) AS same, (SELECT durable <= applied FROM onetrip.status) AS durable;
BEGIN; INSERT INTO t VALUES (2); ROLLBACK;

-- advance(): an entry without changes.
SELECT onetrip.position() AS position \gset before_
BEGIN;
SELECT onetrip.advance();
SELECT onetrip.advance();
SELECT "table", mode FROM onetrip.pending_keys();
SELECT onetrip.pending_bytes();
COMMIT;
SELECT onetrip.position() > :before_position AS moved;
SELECT onetrip.position() AS position \gset before_
BEGIN; SELECT onetrip.advance(); ROLLBACK;
BEGIN READ ONLY; SELECT onetrip.advance(); COMMIT;

-- outcome(): garbage, a transaction never seen, nothing.
SELECT onetrip.outcome('');
SELECT onetrip.outcome('garbage');
SELECT onetrip.outcome('1-2');
SELECT onetrip.outcome('1-2-3-4');
SELECT onetrip.outcome('1-2-3 ');
SELECT onetrip.outcome('-1-2-3');
SELECT onetrip.outcome('1-g-3');
SELECT onetrip.outcome('99999999999-1-1');
SELECT onetrip.outcome('1-11111111111111111-1');
SELECT onetrip.outcome(repeat('1', 60));
SELECT onetrip.outcome(NULL) IS NULL AS null;
SELECT onetrip.outcome('4294967295-ffffffffffffffff-ffffffffffffffff');
SELECT onetrip.outcome('7-1-1');
BEGIN; SELECT onetrip.outcome('7-1-1'); INSERT INTO t VALUES (3); COMMIT;

-- status.
SELECT region <> '' AS region, node_id > 0 AS node_id, applying IS NULL AS idle, worker_running, evictions >= 0 AS evictions, handovers FROM onetrip.status;

-- export_snapshot_at(): refused where it cannot be.
BEGIN ISOLATION LEVEL READ COMMITTED;
INSERT INTO t VALUES (10);
SELECT onetrip.export_snapshot_at(0);
ROLLBACK;

-- Without privileges.
CREATE ROLE onetrip_test_user;
SET ROLE onetrip_test_user;
SELECT onetrip.position() > 0 AS position;
SELECT count(*) FROM onetrip.pending_keys();
SELECT onetrip.pending_bytes();
SELECT onetrip.outcome('7-1-1');
SELECT worker_running FROM onetrip.status;
SELECT onetrip.advance();
SELECT onetrip.export_snapshot_at(1);
RESET ROLE;
DROP ROLE onetrip_test_user;

-- In a database that is local they say so.
\set replicated :DBNAME
\c postgres
CREATE EXTENSION onetrip;
SELECT onetrip.position();
SELECT onetrip.pending_bytes();
SELECT onetrip.advance();
SELECT onetrip.outcome('1-1-1');
SELECT * FROM onetrip.status;
CREATE TABLE stray (a int) USING onetrip;
INSERT INTO stray VALUES (1);
SELECT * FROM stray;
DROP TABLE stray;
DROP EXTENSION onetrip;
-- All regions have one encoding.
CREATE DATABASE functions_latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0;
\c functions_latin1
CREATE EXTENSION onetrip;
\c postgres
DROP DATABASE functions_latin1;
\c :replicated

SET client_min_messages = warning;
DROP SCHEMA functions CASCADE;
