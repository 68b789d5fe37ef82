-- CREATE INDEX CONCURRENTLY, DROP INDEX CONCURRENTLY and DETACH PARTITION CONCURRENTLY.
CREATE TABLE t (id int PRIMARY KEY, v text, w int);
INSERT INTO t SELECT g, 'v' || g, g FROM generate_series(1, 100) g;
\set state 'SELECT c.relname, i.indisvalid, i.indisready, i.indislive FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = ''t''::regclass ORDER BY 1'
CREATE INDEX CONCURRENTLY t_v ON t (v);
CREATE INDEX CONCURRENTLY ON t (lower(v)) WHERE w > 10;
CREATE INDEX CONCURRENTLY IF NOT EXISTS t_v ON t (v);
:state;
SET enable_seqscan = off;
SELECT w FROM t WHERE v = 'v7';
EXPLAIN (COSTS off) SELECT w FROM t WHERE v = 'v7';
INSERT INTO t VALUES (101, 'v101', 101);
SELECT w FROM t WHERE v = 'v101';
SELECT onetrip.rows_not_in_index('t_v'), onetrip.rows_not_in_index('t_lower_idx');
RESET enable_seqscan;
SELECT c.relname, j.statement, j.attempts, j.error FROM onetrip.job_here j JOIN pg_class c ON c.oid = j.index ORDER BY 1;

-- As in PostgreSQL.
BEGIN;
CREATE INDEX CONCURRENTLY ON t (w);
ROLLBACK;
BEGIN;
DROP INDEX CONCURRENTLY t_v;
ROLLBACK;
CREATE INDEX CONCURRENTLY t_v ON t (w);
CREATE INDEX CONCURRENTLY nowhere ON absent (w);
DROP INDEX CONCURRENTLY absent;
DROP INDEX CONCURRENTLY IF EXISTS absent;
DROP INDEX CONCURRENTLY t_v, t_lower_idx;
DROP INDEX CONCURRENTLY t_v CASCADE;
DROP INDEX CONCURRENTLY t_pkey;
CREATE ROLE other_owner;
GRANT CREATE ON SCHEMA public TO other_owner;
SET ROLE other_owner;
CREATE INDEX CONCURRENTLY ON t (w);
DROP INDEX CONCURRENTLY t_v;
CREATE TABLE own (id int PRIMARY KEY);
CREATE INDEX CONCURRENTLY own_id ON own (id);
SELECT count(*) FROM onetrip.job_here;
RESET ROLE;
CREATE TEMP TABLE temporary (id int);
CREATE INDEX CONCURRENTLY temporary_id ON temporary (id);
DROP INDEX CONCURRENTLY temporary_id;
CREATE TEMP TABLE temporary_parted (id int) PARTITION BY LIST (id);
CREATE INDEX temporary_parted_id ON temporary_parted (id);
DROP INDEX CONCURRENTLY temporary_parted_id;
CREATE UNLOGGED TABLE unlogged (id int);
CREATE INDEX CONCURRENTLY unlogged_id ON unlogged (id);
CREATE MATERIALIZED VIEW seen AS SELECT id, v FROM t;
CREATE INDEX CONCURRENTLY seen_v ON seen (v);
SELECT bool_and(indisvalid) FROM pg_index WHERE indexrelid IN ('own_id'::regclass, 'unlogged_id'::regclass, 'seen_v'::regclass);

-- A function of the index fails: the index is there, and not valid, as in PostgreSQL; a job goes on trying.
CREATE FUNCTION fails(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN 1 / ($1 - 50); END $$;
CREATE INDEX CONCURRENTLY t_fails ON t (fails(w));
:state;
-- Who may not read the table does not see the error, which may contain values.
DO $$ BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN EXISTS (SELECT FROM onetrip.jobs WHERE index = 'public.t_fails' AND state = 'failed');
        COMMIT;
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
SELECT region, "table", index, state, attempts > 0 AS tried, error FROM onetrip.jobs WHERE state = 'failed';
SET ROLE other_owner;
SELECT region, "table", index, state, attempts > 0 AS tried, error FROM onetrip.jobs WHERE state = 'failed';
RESET ROLE;
DROP INDEX CONCURRENTLY t_fails;
DROP INDEX CONCURRENTLY t_v;
DROP INDEX CONCURRENTLY t_lower_idx;
:state;

-- Partitions.
CREATE TABLE parted (id int, v int) PARTITION BY LIST (id);
CREATE TABLE part PARTITION OF parted FOR VALUES IN (1);
CREATE TABLE rest PARTITION OF parted DEFAULT;
CREATE INDEX CONCURRENTLY ON parted (id);
CREATE INDEX parted_v ON parted (v);
DROP INDEX CONCURRENTLY parted_v;
ALTER TABLE parted DETACH PARTITION part CONCURRENTLY;
DROP TABLE rest;
BEGIN;
ALTER TABLE parted DETACH PARTITION part CONCURRENTLY;
ROLLBACK;
ALTER TABLE parted DETACH PARTITION part CONCURRENTLY;
ALTER TABLE parted DETACH PARTITION part FINALIZE;
SELECT count(*) FROM pg_inherits WHERE inhparent = 'parted'::regclass;

-- Event triggers fire once.
CREATE FUNCTION says() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '% %', tg_event, tg_tag; END $$;
CREATE EVENT TRIGGER says_start ON ddl_command_start EXECUTE FUNCTION says();
CREATE EVENT TRIGGER says_end ON ddl_command_end EXECUTE FUNCTION says();
CREATE INDEX CONCURRENTLY t_w ON t (w);
DROP EVENT TRIGGER says_start;
DROP EVENT TRIGGER says_end;

-- A unique index refuses duplicates of this region once it is built, and is valid when all regions have it.
CREATE TABLE u (id int PRIMARY KEY, v int, w text);
INSERT INTO u SELECT g, g, 'w' || g FROM generate_series(1, 100) g;
\set ustate 'SELECT c.relname, i.indisunique, i.indisvalid, i.indisready FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = ''u''::regclass ORDER BY 1'
CREATE UNIQUE INDEX CONCURRENTLY u_v ON u (v);
CREATE UNIQUE INDEX CONCURRENTLY ON u (lower(w)) INCLUDE (v) WHERE v > 10;
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS u_v ON u (v);
CREATE UNIQUE INDEX CONCURRENTLY u_v ON u (w);
:ustate;
INSERT INTO u VALUES (101, 1, 'x');
INSERT INTO u VALUES (101, 1, 'x') ON CONFLICT (v) DO UPDATE SET w = 'changed' RETURNING id, w;
INSERT INTO u VALUES (101, 101, 'W99');
SELECT c.relname, j.statement, j.attempts, j.error, j.sqlstate FROM onetrip.job_here j JOIN pg_class c ON c.oid = j.index
 WHERE c.relname ^@ 'u_' ORDER BY 1;
ALTER TABLE u REPLICA IDENTITY USING INDEX u_v;
ALTER TABLE u ALTER COLUMN v SET NOT NULL;
ALTER TABLE u REPLICA IDENTITY USING INDEX u_v;
UPDATE u SET w = 'again' WHERE id = 1;
DROP INDEX CONCURRENTLY u_v;

-- With duplicates it fails as in PostgreSQL, and a job goes on trying.
INSERT INTO u VALUES (101, 1, 'x');
CREATE UNIQUE INDEX CONCURRENTLY u_v ON u (v);
:ustate;
DO $$ BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN EXISTS (SELECT FROM onetrip.jobs WHERE index = 'public.u_v' AND state = 'failed');
        COMMIT;
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
SELECT state, error FROM onetrip.jobs WHERE index = 'public.u_v';
-- What another region must not find out alone.
INSERT INTO u VALUES (102, 1, 'y') ON CONFLICT (v) DO NOTHING;
ALTER TABLE u ADD UNIQUE USING INDEX u_v;
REINDEX INDEX u_v;
REINDEX INDEX CONCURRENTLY u_v;
REINDEX TABLE u;
REINDEX TABLE CONCURRENTLY u;
ALTER TABLE u ALTER COLUMN id TYPE bigint;
ALTER TABLE u SET UNLOGGED;
ALTER TABLE u ADD COLUMN r float DEFAULT random();
ALTER TABLE u CLUSTER ON u_v;
VACUUM FULL u;
CLUSTER u USING u_pkey;
:ustate;
INSERT INTO u VALUES (103, 2, 'z');
DELETE FROM u WHERE id IN (101, 103);
DO $$ BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN EXISTS (SELECT FROM onetrip.jobs WHERE index = 'public.u_v' AND state = 'done');
        COMMIT;
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
:ustate;
INSERT INTO u VALUES (101, 1, 'x');
REINDEX INDEX u_v;
ALTER TABLE u ADD UNIQUE USING INDEX u_v;

-- Only for rows that are the same in all regions.
CREATE UNIQUE INDEX CONCURRENTLY ON unlogged (id);
CREATE UNIQUE INDEX CONCURRENTLY ON seen (id);
CREATE TABLE heaps (id int) USING heap;
CREATE UNIQUE INDEX CONCURRENTLY ON heaps (id);
CREATE UNIQUE INDEX CONCURRENTLY ON temporary (id);
CREATE UNIQUE INDEX CONCURRENTLY ON parted (id);
CREATE UNIQUE INDEX CONCURRENTLY ON absent (id);
DROP TABLE heaps, u;
