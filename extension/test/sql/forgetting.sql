-- Goal: what a process keeps from one transaction to the next is not taken for the next one's.
-- Method: a mark of the evictor's that comes too late.
CREATE SCHEMA forgetting;
SET search_path = forgetting;
CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t VALUES (1);
UPDATE t SET id = 2;
SELECT * FROM t;

-- A mark that was meant for the previous transaction: this one stays what it was (1: it writes, 0: it does not).
BEGIN;
INSERT INTO t VALUES (3);
SELECT unit.evict_last();
COMMIT;
SELECT unit.evict_last();
BEGIN;
SELECT unit.evict_last();
INSERT INTO t VALUES (4);
SELECT unit.evict_last();
ROLLBACK;
SELECT * FROM t ORDER BY id;
DROP SCHEMA forgetting CASCADE;
