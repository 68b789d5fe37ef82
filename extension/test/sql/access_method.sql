-- Goal: a table with the access method onetrip is a heap in everything that a user sees, and its changes are captured.
-- Method: each way in which wrapping heap can go wrong, followed by an INSERT whose keys must show.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA am;
SET search_path = am;

-- A text column needs a TOAST table with an index, which heap builds only for its own routine.
CREATE TABLE t (id int PRIMARY KEY, name text UNIQUE, amount int);
SELECT c.relname, a.amname, (SELECT amname FROM pg_am WHERE oid = toast.relam) AS toast
    FROM pg_class c JOIN pg_am a ON a.oid = c.relam JOIN pg_class toast ON toast.oid = c.reltoastrelid
    WHERE c.oid = 't'::regclass;
INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 1);

-- After a failed CREATE INDEX, and then a failed REINDEX, in the same session, capture goes on.
CREATE UNIQUE INDEX t_amount ON t (amount);
BEGIN;
INSERT INTO t VALUES (3, 'three', 3);
:keys;
ROLLBACK;
CREATE FUNCTION inverse(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 100 / $1';
CREATE INDEX t_inverse ON t (inverse(amount));
CREATE OR REPLACE FUNCTION inverse(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 100 / ($1 - 1)';
REINDEX INDEX t_inverse;
REINDEX TABLE t;
DROP INDEX t_inverse;
BEGIN;
INSERT INTO t VALUES (3, 'three', 3);
:keys;
:operations;
ROLLBACK;
-- The same inside one transaction, with a savepoint.
CREATE OR REPLACE FUNCTION inverse(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 100 / $1';
CREATE INDEX t_inverse ON t (inverse(amount));
CREATE OR REPLACE FUNCTION inverse(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 100 / ($1 - 1)';
BEGIN;
SAVEPOINT s;
REINDEX INDEX t_inverse;
ROLLBACK TO s;
INSERT INTO t VALUES (3, 'three', 3);
:keys;
ROLLBACK;
DROP INDEX t_inverse;

-- Scans of every kind read the table.
ANALYZE t;
SET enable_seqscan = off;
SELECT * FROM t WHERE id = 2;
SELECT * FROM t WHERE name IN ('one', 'two') ORDER BY id;
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
SELECT * FROM t WHERE id > 0 ORDER BY id;
RESET enable_seqscan;
RESET enable_indexscan;
RESET enable_indexonlyscan;
SELECT * FROM t WHERE ctid = '(0,1)';
SELECT count(*) FROM t TABLESAMPLE SYSTEM (100);

-- Parallel scan and parallel index build.
CREATE TABLE big AS SELECT g AS id, g % 7 AS seven FROM generate_series(1, 20000) g;
ALTER TABLE big ADD PRIMARY KEY (id);
SET min_parallel_table_scan_size = 0;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET max_parallel_workers_per_gather = 2;
SELECT seven, count(*) FROM big GROUP BY 1 ORDER BY 1;
CREATE INDEX big_seven ON big (seven);
SELECT count(*) FROM big WHERE seven = 3;
BEGIN;
INSERT INTO big VALUES (20001, 0);
:keys;
ROLLBACK;

-- Rows that are changed behind the access method's back are noticed at COMMIT, whatever other changes there are; what was rolled back does not count.
CREATE TABLE unseen (id int PRIMARY KEY, n int);
INSERT INTO unseen SELECT g, g FROM generate_series(1, 10) g;
SELECT unit.delete_unseen('unseen', ctid) FROM unseen WHERE id = 1;
\echo :LAST_ERROR_SQLSTATE
BEGIN;
INSERT INTO unseen VALUES (11, 11), (12, 12);
SAVEPOINT s;
UPDATE unseen SET n = 0 WHERE id = 12;
SELECT unit.delete_unseen('unseen', ctid) FROM unseen WHERE id = 2;
ROLLBACK TO s;
INSERT INTO unseen VALUES (12, 0) ON CONFLICT (id) DO UPDATE SET n = 13;
INSERT INTO t (id) VALUES (999);
COMMIT;
BEGIN;
UPDATE unseen SET n = n + 1;
SAVEPOINT s;
DELETE FROM unseen WHERE id = 3;
RELEASE s;
SELECT unit.delete_unseen('unseen', ctid) FROM unseen WHERE id = 2;
COMMIT;
BEGIN;
DELETE FROM unseen WHERE id = 4;
TRUNCATE unseen;
INSERT INTO unseen VALUES (20, 20);
COMMIT;
SELECT * FROM unseen;

SET client_min_messages = warning;
DROP SCHEMA am CASCADE;
