-- Goal: with onetrip.read_only a server refuses every change of replicated data with 25006, whatever a client sets; the rest works.
-- Method: turn it on for this session, try all ways to write, turn it off.
CREATE SCHEMA read_replica;
SET search_path = read_replica;
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE local_t (id int PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY) USING heap;
CREATE UNLOGGED TABLE unlogged_t (id int);
CREATE SEQUENCE s;
CREATE UNLOGGED SEQUENCE unlogged_s;
CREATE TABLE with_serial (id serial PRIMARY KEY);
CREATE FUNCTION draws() RETURNS bigint LANGUAGE sql AS $$SELECT nextval('read_replica.s')$$;
CREATE FUNCTION writes() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET transaction_read_only = off
    AS $$BEGIN INSERT INTO read_replica.t VALUES (9, 'no'); END$$;
CREATE MATERIALIZED VIEW m AS SELECT 1 AS a;
INSERT INTO t VALUES (1, 'one'), (2, 'two');
BEGIN;
SELECT count(*) FROM t;
PREPARE TRANSACTION 'kept';
PREPARE early AS SELECT nextval('s') > 0 AS drawn;
EXECUTE early;
-- What the node tells its server cannot be set by others in a file that regions which join copy.
ALTER SYSTEM SET onetrip.read_only = on;
ALTER SYSTEM SET onetrip.sequence_slot = 3;
ALTER SYSTEM SET onetrip.key_seed = '1';
SELECT unit.use_read_only(true);
SHOW onetrip.read_only;
SHOW in_hot_standby;
SELECT proposals FROM onetrip.status \gset before_

INSERT INTO t VALUES (3, 'no');
\set VERBOSITY sqlstate
SET onetrip.read_only = off;
SET transaction_read_only = off;
BEGIN READ WRITE;
UPDATE t SET v = 'no';
ROLLBACK;
DELETE FROM t WHERE id = 1;
SELECT * FROM t WHERE id = 1 FOR UPDATE;
SELECT * FROM t WHERE id = 1 FOR KEY SHARE;
INSERT INTO t VALUES (1, 'no') ON CONFLICT (id) DO UPDATE SET v = 'no';
MERGE INTO t USING (SELECT 1 AS id) x ON t.id = x.id WHEN MATCHED THEN DELETE;
COPY t FROM STDIN;
4	no
\.
TRUNCATE t;
DO $$ BEGIN SET LOCAL transaction_read_only = off; INSERT INTO t VALUES (5, 'no'); END $$;
SELECT writes();
INSERT INTO with_serial DEFAULT VALUES;
WITH x AS (INSERT INTO t VALUES (6, 'no') RETURNING id) SELECT id FROM x;
-- statements
CREATE TABLE u (id int);
CREATE TABLE u (id int) USING heap;
CREATE TABLE u AS SELECT 1 AS a;
SELECT 1 AS a INTO u;
ALTER TABLE t ADD COLUMN w int;
DROP TABLE t;
CREATE INDEX ON t (v);
CREATE ROLE read_replica_role;
GRANT SELECT ON t TO PUBLIC;
COMMENT ON TABLE t IS 'no';
REFRESH MATERIALIZED VIEW m;
CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE EXTENSION pg_trgm;
-- sequences
SELECT nextval('s');
EXECUTE early;
SELECT draws();
DO $$ BEGIN PERFORM nextval('s'); END $$;
SELECT nextval('unlogged_s');
SELECT setval('s', 100);
SELECT onetrip.setval('s', 100);
SELECT onetrip.nextval('s');
ALTER SEQUENCE s RESTART;
SELECT onetrip.advance();
-- as on a hot standby
NOTIFY heard;
SELECT pg_notify('heard', 'x');
\set VERBOSITY default

-- What is prepared is kept, and ended, in all regions.
BEGIN;
SELECT count(*) FROM t;
PREPARE TRANSACTION 'here';
COMMIT PREPARED 'kept';
ROLLBACK PREPARED 'kept';

-- What is still possible.
SELECT * FROM t ORDER BY id;
INSERT INTO local_t (id) VALUES (1) RETURNING id, n > 0 AS numbered;
TRUNCATE unlogged_t;
INSERT INTO unlogged_t VALUES (1);
CREATE TEMP TABLE mine (id serial, v text);
INSERT INTO mine (v) VALUES ('a') RETURNING id;
SELECT nextval('mine_id_seq');
CREATE TEMP SEQUENCE counting;
SELECT nextval('counting'), setval('counting', 10), nextval('counting');
UPDATE mine SET v = 'b' WHERE id = 1;
ANALYZE t;
REINDEX TABLE t;
BEGIN;
LOCK TABLE t IN SHARE MODE;
COMMIT;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;

-- A transaction that wrote before it became a replica cannot commit after that.
SELECT unit.use_read_only(false);
EXECUTE early;
BEGIN;
INSERT INTO t VALUES (3, 'no');
SELECT unit.use_read_only(true);
COMMIT;
SHOW onetrip.read_only;
SELECT unit.use_read_only(false);
SELECT count(*) FROM t;
INSERT INTO t VALUES (3, 'yes');
ROLLBACK PREPARED 'kept';
SELECT nextval('s') > 0 AS drawn;
SET client_min_messages = warning;
DROP SCHEMA read_replica CASCADE;
