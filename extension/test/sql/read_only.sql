-- Goal: a transaction that changes nothing never talks to the node.
-- Method: the count of proposals does not change for any way of reading, and grows by one for a change.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA read_only;
SET search_path = read_only;
CREATE TABLE t (id int PRIMARY KEY, v int);
CREATE SEQUENCE unused;
INSERT INTO t VALUES (1, 1), (2, 2);
CREATE FUNCTION f(int) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT count(*) FROM t WHERE id > $1); END';
SELECT proposals FROM onetrip.status \gset before_

SELECT * FROM t ORDER BY id;
SELECT f(0);
BEGIN READ ONLY; SELECT count(*) FROM t; COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t; COMMIT;
BEGIN; DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id; FETCH 1 FROM c; COMMIT;
COPY t TO stdout;
EXPLAIN (COSTS off) UPDATE t SET v = 0;
PREPARE q AS SELECT v FROM t WHERE id = $1;
EXECUTE q (1);
-- Changes that hit no row, and changes that are rolled back.
UPDATE t SET v = 0 WHERE id = 99;
DELETE FROM t WHERE id = 99;
INSERT INTO t SELECT * FROM t WHERE false;
BEGIN; UPDATE t SET v = 100; ROLLBACK;
BEGIN; SAVEPOINT s; DELETE FROM t; ROLLBACK TO s; COMMIT;
INSERT INTO t VALUES (1, 1) ON CONFLICT DO NOTHING;
-- Local commands and temporary tables.
SET work_mem = '8MB';
LISTEN news; UNLISTEN news;
ANALYZE t;
CHECKPOINT;
BEGIN; LOCK TABLE t IN EXCLUSIVE MODE; COMMIT;
CREATE TEMP TABLE mine AS SELECT * FROM t;
SELECT count(*) FROM mine;
SELECT pg_advisory_lock(7), pg_advisory_unlock(7);
-- Statements that are in the log are refused in a read-only session, before they wait for others or say anything else.
CREATE TABLE parted (id int) PARTITION BY LIST (id);
CREATE TABLE part PARTITION OF parted FOR VALUES IN (1);
CREATE INDEX t_v ON t (v);
SELECT proposals FROM onetrip.status \gset before_
BEGIN READ ONLY;
CREATE INDEX CONCURRENTLY t_new ON t (v);
ROLLBACK;
SET default_transaction_read_only = on;
CREATE INDEX CONCURRENTLY t_new ON t (v);
CREATE INDEX CONCURRENTLY IF NOT EXISTS t_v ON t (v);
CREATE INDEX CONCURRENTLY ON mine (v);
DROP INDEX CONCURRENTLY t_v;
REINDEX INDEX CONCURRENTLY t_v;
ALTER TABLE parted DETACH PARTITION part CONCURRENTLY;
ALTER TABLE parted DETACH PARTITION part FINALIZE;
CREATE TABLE new AS SELECT 1;
TRUNCATE mine;
RESET default_transaction_read_only;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;

UPDATE t SET v = 10 WHERE id = 1;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
BEGIN; SELECT FROM t WHERE id = 1 FOR KEY SHARE; COMMIT;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;

SET client_min_messages = warning;
DROP SCHEMA read_only CASCADE;
