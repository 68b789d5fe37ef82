-- Goal: rows of a table with the label 'locking' are locked at the leader by whoever changes them, and those of other tables are not.
-- Method: another session with a short lock_timeout tries the same rows: a wait in line says so in its DETAIL, one for PostgreSQL's lock does not.
CREATE SCHEMA locking_tables;
SET search_path = locking_tables;
\setenv PGHOST :HOST
\setenv PGPORT :PORT
\setenv PGUSER :USER
\setenv PGDATABASE :DBNAME
\setenv PGOPTIONS '-c search_path=locking_tables -c lock_timeout=200 -c deadlock_timeout=10s'
\set other '\\! psql -XAtq -v SHOW_CONTEXT=never -c'
CREATE TABLE hot (id int PRIMARY KEY, v int);
CREATE TABLE cold (id int PRIMARY KEY, v int);
INSERT INTO hot SELECT g, 0 FROM generate_series(1, 9) g;
INSERT INTO cold SELECT g, 0 FROM generate_series(1, 9) g;
-- This session knows both tables already.
UPDATE hot SET v = 1;
UPDATE cold SET v = 1;

-- From the next statement on, and for as long as the label is there.
BEGIN;
SECURITY LABEL FOR onetrip ON TABLE hot IS 'locking';
UPDATE hot SET v = 2 WHERE id = 1;
:other "UPDATE hot SET v = 3 WHERE id = 1"
ROLLBACK;
BEGIN;
UPDATE hot SET v = 2 WHERE id = 1;
:other "UPDATE hot SET v = 3 WHERE id = 1"
ROLLBACK;
SECURITY LABEL FOR onetrip ON TABLE hot IS 'locking';
SELECT provider, objtype, objname, label FROM pg_seclabels WHERE provider = 'onetrip';
\! pg_dump -t locking_tables.hot | grep LABEL
BEGIN;
UPDATE hot SET v = 2 WHERE id < 3;
UPDATE cold SET v = 2 WHERE id < 3;
:other "UPDATE hot SET v = 3 WHERE id = 1"
:other "SELECT FROM hot WHERE id = 2 FOR SHARE"
:other "UPDATE hot SET v = 3 WHERE id = 3 RETURNING v"
:other "UPDATE cold SET v = 3 WHERE id = 1"
:other "UPDATE cold SET v = 3 WHERE id = 3 RETURNING v"
COMMIT;

-- The label follows the table: its name, its schema, its files.
CREATE SCHEMA locking_tables_2;
ALTER TABLE hot RENAME TO warm;
ALTER TABLE warm SET SCHEMA locking_tables_2;
ALTER TABLE locking_tables_2.warm ALTER v TYPE bigint;
TRUNCATE locking_tables_2.warm;
INSERT INTO locking_tables_2.warm SELECT g, 0 FROM generate_series(1, 9) g;
CREATE TABLE hot (id int PRIMARY KEY, v int);
INSERT INTO hot VALUES (1, 0);
BEGIN;
DELETE FROM hot;
SELECT id FROM locking_tables_2.warm WHERE id = 1 FOR UPDATE;
:other "UPDATE hot SET v = 3 WHERE id = 1"
:other "UPDATE locking_tables_2.warm SET v = 3 WHERE id = 1"
COMMIT;
SECURITY LABEL FOR onetrip ON TABLE locking_tables_2.warm IS NULL;
BEGIN;
UPDATE locking_tables_2.warm SET v = 2 WHERE id = 1;
:other "UPDATE locking_tables_2.warm SET v = 3 WHERE id = 1"
COMMIT;
-- And goes with it.
SECURITY LABEL FOR onetrip ON TABLE locking_tables_2.warm IS 'locking';
DROP TABLE locking_tables_2.warm;
SELECT count(*) FROM pg_seclabel WHERE provider = 'onetrip';

-- One of a partitioned table is for its partitions, at any depth, also for those that come later.
CREATE TABLE parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
CREATE TABLE parts_1_1 PARTITION OF parts_1 FOR VALUES FROM (0) TO (5);
CREATE TABLE parts_2 (id int PRIMARY KEY, v int);
INSERT INTO parts VALUES (1, 0);
INSERT INTO parts_2 VALUES (11, 0);
UPDATE parts SET v = 1;
UPDATE parts_2 SET v = 1;
SECURITY LABEL FOR onetrip ON TABLE parts IS 'locking';
BEGIN;
UPDATE parts SET v = 2;
UPDATE parts_2 SET v = 2;
:other "UPDATE parts_1_1 SET v = 3"
:other "UPDATE parts_2 SET v = 3"
ROLLBACK;
ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (10) TO (20);
BEGIN;
UPDATE parts_2 SET v = 2;
:other "UPDATE parts_2 SET v = 3"
ROLLBACK;
ALTER TABLE parts DETACH PARTITION parts_1;
BEGIN;
UPDATE parts_1 SET v = 2;
:other "UPDATE parts_1 SET v = 3"
ROLLBACK;

-- Only the owner, and only for tables whose rows travel.
CREATE ROLE not_the_owner;
GRANT ALL ON SCHEMA locking_tables TO not_the_owner;
GRANT ALL ON cold TO not_the_owner;
SET ROLE not_the_owner;
SECURITY LABEL FOR onetrip ON TABLE cold IS 'locking';
RESET ROLE;
REVOKE ALL ON SCHEMA locking_tables FROM not_the_owner;
REVOKE ALL ON cold FROM not_the_owner;
DROP ROLE not_the_owner;
SECURITY LABEL FOR onetrip ON TABLE cold IS 'LOCKING';
SECURITY LABEL FOR onetrip ON COLUMN cold.v IS 'locking';
SECURITY LABEL FOR onetrip ON SCHEMA locking_tables IS 'locking';
SECURITY LABEL FOR onetrip ON SCHEMA locking_tables IS NULL;
CREATE TEMP TABLE mine (id int PRIMARY KEY);
SECURITY LABEL FOR onetrip ON TABLE mine IS 'locking';
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
SECURITY LABEL FOR onetrip ON TABLE unlogged IS 'locking';
CREATE TABLE plain (id int PRIMARY KEY) USING heap;
SECURITY LABEL FOR onetrip ON TABLE plain IS 'locking';
CREATE VIEW v AS SELECT * FROM cold;
SECURITY LABEL FOR onetrip ON VIEW v IS 'locking';

-- Nothing is asked for other tables, whatever the statement is.
SET onetrip.max_trips = 0;
BEGIN;
UPDATE cold SET v = v + 1;
SELECT count(*) FROM (SELECT FROM cold FOR UPDATE) l;
UPDATE v SET v = 0;
UPDATE mine SET id = id;
DELETE FROM unlogged;
DELETE FROM plain;
UPDATE parts SET v = 1;
ROLLBACK;
RESET onetrip.max_trips;
SET client_min_messages = warning;
DROP SCHEMA locking_tables, locking_tables_2 CASCADE;
