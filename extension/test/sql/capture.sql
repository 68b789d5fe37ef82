-- Goal: each kind of change becomes the operations and keys that docs/agent-protocol.md and capture.c say.
-- Method: one change per transaction, its operations and keys printed, rolled back or committed.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA capture;
SET search_path = capture;
CREATE TABLE t (id int PRIMARY KEY, name text UNIQUE, amount int);

-- Nothing yet.
BEGIN;
:keys;
SELECT onetrip.pending_bytes();
COMMIT;

-- INSERT: one key for each unique value.
BEGIN;
INSERT INTO t VALUES (1, 'one', 10), (2, 'two', 20), (3, NULL, NULL);
:keys;
:operations;
COMMIT;

-- UPDATE of no unique value: a key for the row's identity, in the mode of its lock.
BEGIN;
UPDATE t SET amount = 11 WHERE id = 1;
:keys;
:operations;
COMMIT;

-- UPDATE of a unique value: keys for the old and the new value too.
BEGIN;
UPDATE t SET name = 'uno' WHERE id = 1;
:keys;
:operations;
COMMIT;

-- UPDATE of the identity: the old identity travels.
BEGIN;
UPDATE t SET id = 100 WHERE id = 1;
:keys;
:operations;
ROLLBACK;

-- One row twice in one transaction.
BEGIN;
UPDATE t SET amount = amount + 1 WHERE id = 1;
UPDATE t SET amount = amount + 1 WHERE id = 1;
:keys;
:operations;
ROLLBACK;

-- DELETE: the identity is enough to find the row; all its unique values make keys.
BEGIN;
DELETE FROM t WHERE id = 2;
:keys;
:operations;
ROLLBACK;

-- Insert, change and delete one row in one transaction.
BEGIN;
INSERT INTO t VALUES (4, 'four', 4);
UPDATE t SET amount = 44 WHERE id = 4;
DELETE FROM t WHERE id = 4;
:operations;
COMMIT;

-- COPY.
BEGIN;
COPY t FROM stdin;
10	ten	\N
11	\N	11
\.
:keys;
:operations;
COMMIT;
BEGIN;
COPY t (id) FROM stdin WHERE id = 12;
12
13
\.
:operations;
ROLLBACK;

-- ON CONFLICT.
BEGIN;
INSERT INTO t VALUES (10, 'other', 0) ON CONFLICT DO NOTHING;
:keys;
SELECT onetrip.pending_bytes();
COMMIT;
BEGIN;
INSERT INTO t VALUES (20, 'twenty', 0) ON CONFLICT DO NOTHING;
:keys;
:operations;
ROLLBACK;
BEGIN;
INSERT INTO t VALUES (10, 'other', 99) ON CONFLICT (id) DO UPDATE SET amount = excluded.amount;
:keys;
:operations;
COMMIT;
BEGIN;
INSERT INTO t VALUES (30, 'thirty', 99) ON CONFLICT (id) DO UPDATE SET amount = excluded.amount;
:keys;
:operations;
ROLLBACK;
-- The row is locked though the WHERE of DO UPDATE then leaves it alone.
BEGIN;
INSERT INTO t VALUES (10, 'other', 99) ON CONFLICT (id) DO UPDATE SET amount = 1 WHERE t.amount < 0;
:keys;
SELECT onetrip.pending_bytes();
COMMIT;

-- MERGE with all three actions.
BEGIN;
MERGE INTO t USING (VALUES (1, 5), (2, -1), (50, 50)) AS s (id, amount) ON t.id = s.id
    WHEN MATCHED AND s.amount < 0 THEN DELETE
    WHEN MATCHED THEN UPDATE SET amount = s.amount
    WHEN NOT MATCHED THEN INSERT VALUES (s.id, NULL, s.amount);
:keys;
:operations;
COMMIT;

-- Triggers and functions: what they change is captured where it happens.
CREATE TABLE audit (id int PRIMARY KEY, what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO audit VALUES (new.id, tg_op); new.amount := new.amount * 2; RETURN new; END';
CREATE TRIGGER note BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION note();
BEGIN;
INSERT INTO t VALUES (60, NULL, 6);
:operations;
COMMIT;

-- Updatable view, rule, data-modifying WITH.
CREATE VIEW v AS SELECT id, amount FROM t WHERE amount IS NOT NULL;
BEGIN;
UPDATE v SET amount = 0 WHERE id = 60;
WITH gone AS (DELETE FROM audit RETURNING id) UPDATE t SET amount = 1 FROM gone WHERE t.id = gone.id;
:operations;
COMMIT;

-- A dropped column does not travel, an added one does.
ALTER TABLE audit DROP COLUMN what, ADD COLUMN why text DEFAULT 'because';
BEGIN;
INSERT INTO audit VALUES (61);
:operations;
COMMIT;

-- A table without columns, and one with a system column shown.
CREATE TABLE nothing ();
BEGIN;
INSERT INTO nothing DEFAULT VALUES;
:keys;
:operations;
COMMIT;
SELECT count(*) FROM nothing;
SELECT * FROM t ORDER BY id;

SET client_min_messages = warning;
DROP SCHEMA capture CASCADE;
