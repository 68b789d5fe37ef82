-- Goal: commands that rewrite or maintain a table keep its rows and do not send them, and capture goes on afterwards.
-- Method: each command, then the rows, then an INSERT whose operations must show. TRUNCATE travels as a statement.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA maintenance;
SET search_path = maintenance;
CREATE TABLE t (id int PRIMARY KEY, name text);
INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 500) g;
DELETE FROM t WHERE id % 2 = 0;

VACUUM t;
VACUUM (FREEZE, ANALYZE) t;
VACUUM FULL t;
SELECT count(*), sum(id), min(name) FROM t;
BEGIN; INSERT INTO t VALUES (1000, 'after VACUUM FULL'); :operations; ROLLBACK;

CLUSTER t USING t_pkey;
SELECT count(*), sum(id), min(name) FROM t;
BEGIN; INSERT INTO t VALUES (1000, 'after CLUSTER'); :operations; ROLLBACK;
BEGIN;
CLUSTER t USING t_pkey;
:operations;
COMMIT;

REINDEX TABLE t;
ANALYZE t;
SELECT reltuples FROM pg_class WHERE oid = 't'::regclass;
BEGIN; INSERT INTO t VALUES (1000, 'after REINDEX'); :operations; ROLLBACK;

-- An ALTER TABLE that rewrites the table is captured as the statement, without rows.
BEGIN;
ALTER TABLE t ALTER COLUMN id TYPE bigint;
:operations;
INSERT INTO t VALUES (1000, 'after a rewrite');
:operations;
ROLLBACK;
SELECT count(*), sum(id) FROM t;

-- TRUNCATE is captured as a statement, in order with rows.
BEGIN;
INSERT INTO t VALUES (1000, 'before');
TRUNCATE t;
INSERT INTO t VALUES (1000, 'after');
:operations;
ROLLBACK;
SELECT count(*) FROM t;
TRUNCATE t;
SELECT count(*) FROM t;

-- CREATE TABLE AS and SELECT INTO: definition, then rows.
BEGIN;
CREATE TABLE made AS SELECT g AS id, 'x' || g AS name FROM generate_series(1, 2) g;
:operations;
COMMIT;
BEGIN;
SELECT 7 AS seven INTO made_too;
:operations;
COMMIT;
SELECT * FROM made ORDER BY id;
SELECT * FROM made_too;

-- A materialized view is filled in each region from its own rows.
CREATE MATERIALIZED VIEW seen AS SELECT count(*) AS n FROM made;
INSERT INTO made VALUES (3, 'x3');
BEGIN;
REFRESH MATERIALIZED VIEW seen;
:operations;
COMMIT;
SELECT * FROM seen;
CREATE UNIQUE INDEX ON seen (n);
REFRESH MATERIALIZED VIEW CONCURRENTLY seen;
SELECT * FROM seen;

SET client_min_messages = warning;
DROP SCHEMA maintenance CASCADE;
