-- Goal: with onetrip.concurrency = locking each changed or locked row is locked at the leader first, once, until the transaction ends.
-- Method: another session, in the same mode and with a short lock_timeout, tries the same rows; this node is the leader.
CREATE SCHEMA locking;
SET search_path = locking;
\setenv PGHOST :HOST
\setenv PGPORT :PORT
\setenv PGUSER :USER
\setenv PGDATABASE :DBNAME
\setenv PGOPTIONS '-c search_path=locking -c onetrip.concurrency=locking -c lock_timeout=200 -c deadlock_timeout=10s'
CREATE TABLE t (id int PRIMARY KEY, v int);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES t ON DELETE CASCADE);
CREATE TABLE without_key (a int, b int);
CREATE TABLE parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
INSERT INTO t SELECT g, 0 FROM generate_series(1, 9) g;
INSERT INTO child SELECT g, g FROM generate_series(1, 9) g;
INSERT INTO without_key VALUES (1, 1), (2, 2);
INSERT INTO parts VALUES (1, 0), (11, 0);
-- What the other session says of a statement. A wait in line says so in its DETAIL; a wait for PostgreSQL's own lock would not.
\set other '\\! psql -XAtq -v SHOW_CONTEXT=never -c'
\set others_trips 'SELECT count FROM onetrip.crossings WHERE cause = ''row lock'''

-- By session, role, database, function, and for one transaction.
SHOW onetrip.concurrency;
SET onetrip.concurrency = careful;
CREATE ROLE locker;
ALTER ROLE locker SET onetrip.concurrency = locking;
DROP ROLE locker;
CREATE FUNCTION bump(which int) RETURNS void LANGUAGE sql SET onetrip.concurrency = locking AS
    'UPDATE locking.t SET v = v + 1 WHERE id = which';
BEGIN;
SELECT bump(9);
:other "UPDATE t SET v = 1 WHERE id = 9"
COMMIT;
:other "UPDATE t SET v = v + 1 WHERE id = 9 RETURNING v"
BEGIN;
SET LOCAL onetrip.concurrency = locking;
UPDATE t SET v = 1 WHERE id = 1;
:other "UPDATE t SET v = 2 WHERE id = 1"
:other "UPDATE t SET v = 2 WHERE id = 2 RETURNING v"
ROLLBACK;
:other "UPDATE t SET v = v + 2 WHERE id = 1 RETURNING v"

-- Each way to change or lock a row.
SET onetrip.concurrency = locking;
BEGIN;
DELETE FROM t WHERE id = 3;
-- The cascade too.
:other "UPDATE t SET v = 2 WHERE id = 3"
:other "UPDATE child SET id = 33 WHERE id = 3"
SELECT id FROM t WHERE id = 4 FOR UPDATE;
:other "SELECT id FROM t WHERE id = 4 FOR SHARE"
SELECT id FROM t WHERE id = 5 FOR SHARE;
:other "SELECT id FROM t WHERE id = 5 FOR SHARE"
:other "SELECT id FROM t WHERE id = 5 FOR NO KEY UPDATE NOWAIT"
:other "SELECT id FROM t WHERE id IN (4, 5, 6) FOR UPDATE SKIP LOCKED"
-- A foreign key asks for nothing.
:other "INSERT INTO child VALUES (50, 5)"
INSERT INTO t VALUES (6, 0) ON CONFLICT (id) DO UPDATE SET v = t.v + 1;
:other "UPDATE t SET v = 2 WHERE id = 6"
DECLARE c CURSOR FOR SELECT id FROM t WHERE id = 7 FOR UPDATE;
FETCH c;
UPDATE t SET v = 7 WHERE CURRENT OF c;
:other "UPDATE t SET v = 2 WHERE id = 7"
UPDATE without_key SET b = 3 WHERE a = 1;
:other "UPDATE without_key SET b = 4 WHERE a = 1"
:other "UPDATE without_key SET b = 4 WHERE a = 2 RETURNING b"
UPDATE parts SET id = 12 WHERE id = 1;
:other "UPDATE parts SET v = 1 WHERE id = 1"
:other "UPDATE parts SET v = 1 WHERE id = 11 RETURNING v"
ROLLBACK;

-- A savepoint that is rolled back gives back what was locked in it, and not what was locked before.
BEGIN;
UPDATE t SET v = 1 WHERE id = 1;
SAVEPOINT s;
UPDATE t SET v = 2 WHERE id IN (1, 2);
ROLLBACK TO s;
:other "UPDATE t SET v = 3 WHERE id = 2 RETURNING v"
:other "UPDATE t SET v = 3 WHERE id = 1"
SAVEPOINT s;
UPDATE t SET v = 2 WHERE id = 8;
RELEASE s;
DO $$BEGIN
    UPDATE locking.t SET v = 3 WHERE id = 4;
    RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN NULL;
END$$;
:other "UPDATE t SET v = 3 WHERE id = 8"
:other "UPDATE t SET v = 3 WHERE id = 4 RETURNING v"
COMMIT;
SELECT * FROM t ORDER BY id;

-- What is local asks nobody.
CREATE TEMP TABLE mine (id int PRIMARY KEY, v int);
INSERT INTO mine VALUES (1, 0);
SET onetrip.max_trips = 0;
UPDATE mine SET v = 1;
UPDATE t SET v = 1 WHERE id = 1;
RESET onetrip.max_trips;

-- Repeatable read: a row that changed while it waited is too new.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT v FROM t WHERE id = 1;
:other "UPDATE t SET v = 10 WHERE id = 1"
UPDATE t SET v = v + 1 WHERE id = 1;
ROLLBACK;
-- Nobody else was asked: the leader is here.
:others_trips;
-- READ ONLY is refused for the statement that was sent.
BEGIN READ ONLY;
UPDATE t SET v = v + 1 WHERE id = 1;
ROLLBACK;
-- What heap does not give to SKIP LOCKED is not kept at the leader either: whoever wants it then is told so by heap alone.
BEGIN;
SET LOCAL onetrip.concurrency = optimistic;
SELECT id FROM t WHERE id = 7 FOR UPDATE;
\! psql -XAtq -v SHOW_CONTEXT=never -c BEGIN -c "SELECT id FROM t WHERE id IN (7, 8) ORDER BY id FOR UPDATE SKIP LOCKED" -c "\\! psql -XAtq -v SHOW_CONTEXT=never -c 'SELECT id FROM t WHERE id = 7 FOR UPDATE NOWAIT' -c 'SELECT id FROM t WHERE id = 8 FOR UPDATE NOWAIT'" -c ROLLBACK
ROLLBACK;
-- A connection that has ended takes the locks along, and what is touched again is asked for again.
BEGIN;
SELECT FROM t WHERE id IN (1, 2) FOR UPDATE;
SELECT unit.use_socket(NULL);
UPDATE t SET v = 2 WHERE id = 1;
:other "UPDATE t SET v = 3 WHERE id = 1"
ROLLBACK;
-- A statement of very many rows leaves room for the locks of others.
CREATE TABLE many (id int PRIMARY KEY, v int);
INSERT INTO many SELECT g, 0 FROM generate_series(1, 100001) g;
BEGIN;
UPDATE many SET v = 1 WHERE id <= 100000;
UPDATE many SET v = 2;
UPDATE many SET v = 3;
ROLLBACK;
-- EXPLAIN (ANALYZE, DIST) says how many locks a statement asked for; those that it has already are not asked for again.
CREATE TABLE billed (id int PRIMARY KEY, v int);
INSERT INTO billed SELECT g, 0 FROM generate_series(1, 9) g;
\set bill 'EXPLAIN (ANALYZE, DIST, COSTS OFF, TIMING OFF, SUMMARY OFF, FORMAT YAML)'
\pset tuples_only on
\pset format unaligned
BEGIN;
\o | grep -o 'Row Locks.*'
:bill UPDATE billed SET v = 1 WHERE id <= 3;
:bill UPDATE billed SET v = 2 WHERE id <= 4;
:bill SELECT * FROM billed WHERE id = 4 FOR SHARE;
\o
ROLLBACK;
-- And nothing of it to a transaction that asks for none.
SET onetrip.concurrency = optimistic;
\o | grep -c 'Row Locks'
:bill UPDATE billed SET v = 1 WHERE id <= 3;
\o
SET client_min_messages = warning;
DROP SCHEMA locking CASCADE;
