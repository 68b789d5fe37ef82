-- Goal: a row lock makes a key of the same mode and no operation; a lock that was not taken makes none.
-- Method: each mode, with and without rows; SKIP LOCKED and NOWAIT are in specs/.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA row_locks;
SET search_path = row_locks;
CREATE TABLE t (id int PRIMARY KEY, amount int);
CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t);
INSERT INTO t VALUES (1, 1), (2, 2);
INSERT INTO child VALUES (1, 1);

BEGIN; SELECT id FROM t WHERE id = 1 FOR KEY SHARE; :keys; SELECT onetrip.pending_bytes(); COMMIT;
BEGIN; SELECT id FROM t WHERE id = 1 FOR SHARE; :keys; COMMIT;
BEGIN; SELECT id FROM t WHERE id = 1 FOR NO KEY UPDATE; :keys; COMMIT;
BEGIN; SELECT id FROM t WHERE id = 1 FOR UPDATE; :keys; COMMIT;
-- All rows; no row; only the rows of one table of a join.
BEGIN; SELECT id FROM t ORDER BY id FOR UPDATE; :keys; COMMIT;
BEGIN; SELECT id FROM t WHERE id = 99 FOR UPDATE; :keys; COMMIT;
BEGIN; SELECT t.id FROM t JOIN child ON child.t = t.id FOR UPDATE OF child; :keys; COMMIT;
-- A stronger lock on the same row is one more key, the same hash.
BEGIN;
SELECT id FROM t WHERE id = 1 FOR KEY SHARE;
SELECT id FROM t WHERE id = 1 FOR UPDATE;
SELECT id FROM t WHERE id = 1 FOR UPDATE;
:keys;
SELECT count(DISTINCT hash) FROM onetrip.pending_keys();
COMMIT;
-- The mode of an UPDATE's own lock: the key column set but not changed counts as not changed.
BEGIN; UPDATE t SET id = id, amount = 5 WHERE id = 1; :keys; COMMIT;
BEGIN; UPDATE t SET id = 3 WHERE id = 2; :keys; ROLLBACK;
-- A lock and an update of one row have one hash: they collide with each other.
BEGIN;
SELECT id FROM t WHERE id = 1 FOR SHARE;
UPDATE t SET amount = 6 WHERE id = 1;
DELETE FROM t WHERE id = 2;
SELECT count(DISTINCT hash) FROM onetrip.pending_keys();
ROLLBACK;
-- The base of a key is the applied index, which a transaction between two locks moves.
BEGIN;
SELECT id FROM t WHERE id = 1 FOR SHARE;
SELECT base = onetrip.position() AS base_is_position FROM onetrip.pending_keys();
COMMIT;

DROP TABLE child, t;
DROP SCHEMA row_locks;
