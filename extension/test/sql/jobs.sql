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

-- A function of the index takes advisory locks of the session; the worker does not keep them.
CREATE FUNCTION locks(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1 FROM pg_advisory_lock($1)';
CREATE INDEX CONCURRENTLY t_locks ON t (locks(w));
SELECT indisvalid FROM pg_index WHERE indexrelid = 't_locks'::regclass;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid();
SELECT pg_advisory_unlock_all();
DROP INDEX t_locks;

-- A job gives way to who has waited for it for deadlock_timeout, and is left alone for a minute after that.
CREATE FUNCTION waits(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
    IF NOT pg_try_advisory_xact_lock(6) THEN RAISE 'not now'; END IF;
    WHILE NOT pg_try_advisory_xact_lock(7) LOOP PERFORM pg_sleep(0.1); END LOOP;
    RETURN n;
END $$;
CREATE PROCEDURE until_job_waits() LANGUAGE plpgsql AS $$ BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'onetrip job worker' AND wait_event = 'PgSleep');
        COMMIT;
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
SELECT pg_advisory_lock(6), pg_advisory_lock(7);
CREATE INDEX CONCURRENTLY t_waits ON t (waits(w));
SELECT pg_advisory_unlock(6);
CALL until_job_waits();
SET lock_timeout = '20s';
ALTER TABLE t ADD COLUMN x int;
CALL until_job_waits();
SELECT attempts > 1 AS again, error, sqlstate FROM onetrip.job_here WHERE index = 't_waits'::regclass;
SET lock_timeout = '1500ms';
ALTER TABLE t DROP COLUMN x;
RESET lock_timeout;
SELECT pg_advisory_unlock(7);
DO $$ BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN EXISTS (SELECT FROM pg_index WHERE indexrelid = 't_waits'::regclass AND indisvalid);
        COMMIT;
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
SELECT indisvalid FROM pg_index WHERE indexrelid = 't_waits'::regclass;
DROP INDEX t_waits;
ALTER TABLE t DROP COLUMN x;

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
-- One that fails for an owner who is no superuser: the worker is who it was, says so, and builds the next one.
INSERT INTO own VALUES (1), (2);
SET ROLE other_owner;
CREATE UNIQUE INDEX CONCURRENTLY own_twice ON own ((id * 0));
\echo :LAST_ERROR_SQLSTATE
CREATE INDEX CONCURRENTLY own_next ON own (id);
SELECT indexrelid::regclass, indisvalid FROM pg_index WHERE indrelid = 'own'::regclass ORDER BY 1;
DROP INDEX CONCURRENTLY own_twice;
RESET ROLE;

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
-- What another node has told of another index of this name is of rows that were in another table.
BEGIN;
INSERT INTO onetrip.job_report (node_id, index, region, "table", statement, state, attempts, error, since)
SELECT 9, index, 'gone', "table", statement, state, 1, 'a value of before', since - interval '1 day'
  FROM onetrip.job_report WHERE index = 'public.t_fails';
SELECT error FROM onetrip.jobs WHERE node_id = 9;
COMMIT;
-- That one is no member, so this is forgotten: at the worker's start, and every few minutes.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'onetrip job worker';
DO $$ BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN NOT EXISTS (SELECT FROM onetrip.job_report WHERE node_id = 9);
        COMMIT;
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
SELECT index, region FROM onetrip.job_report WHERE node_id = 9 OR index = 'public.t_fails';
SET ROLE other_owner;
SELECT region, "table", index, state, attempts > 0 AS tried, error FROM onetrip.jobs WHERE state = 'failed';
-- Nor does he whom row security keeps from some of its rows.
RESET ROLE;
GRANT SELECT ON t TO other_owner;
SET ROLE other_owner;
SELECT error FROM onetrip.jobs WHERE state = 'failed';
RESET ROLE;
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
SET ROLE other_owner;
SELECT error FROM onetrip.jobs WHERE state = 'failed';
RESET ROLE;
ALTER TABLE t DISABLE ROW LEVEL SECURITY;
REVOKE SELECT ON t FROM other_owner;
-- PostgreSQL would build it as another index, in this region only.  Here its job tries again at once.
REINDEX INDEX CONCURRENTLY t_fails;
\echo :LAST_ERROR_SQLSTATE
SELECT relname FROM pg_class WHERE relname ^@ 't_fails' ORDER BY 1;
SET statement_timeout = '20s';
CREATE OR REPLACE FUNCTION fails(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN 1; END $$;
REINDEX INDEX CONCURRENTLY t_fails;
RESET statement_timeout;
SELECT indisvalid FROM pg_index WHERE indexrelid = 't_fails'::regclass;
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
SELECT conname, pg_get_constraintdef(oid), convalidated FROM pg_constraint WHERE conrelid = 'part'::regclass AND contype = 'c';
DO $$ BEGIN ALTER TABLE parted DETACH PARTITION part CONCURRENTLY; END $$;
CREATE TEMP TABLE temporary_part PARTITION OF temporary_parted FOR VALUES IN (1);
ALTER TABLE temporary_parted DETACH PARTITION temporary_part CONCURRENTLY;

-- Event triggers fire once.
CREATE FUNCTION says() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '% %', tg_event, tg_tag; END $$;
CREATE EVENT TRIGGER says_start ON ddl_command_start EXECUTE FUNCTION says();
CREATE EVENT TRIGGER says_end ON ddl_command_end EXECUTE FUNCTION says();
CREATE INDEX CONCURRENTLY t_w ON t (w);
-- But for those that come before both steps of DETACH CONCURRENTLY.
ALTER TABLE parted ATTACH PARTITION part FOR VALUES IN (1);
ALTER TABLE parted DETACH PARTITION part CONCURRENTLY;
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

-- REINDEX CONCURRENTLY: each index gets another file, and keeps its OID and what depends on it.
CREATE TABLE r (id int PRIMARY KEY, v text, w int, x int, EXCLUDE (x WITH =));
INSERT INTO r SELECT g, 'v' || g, g, g FROM generate_series(1, 1000) g;
CREATE INDEX r_v ON r (v);
CREATE UNIQUE INDEX r_w ON r (abs(w)) INCLUDE (v) WHERE w <> 0;
CREATE TABLE refers (id int REFERENCES r);
COMMENT ON INDEX r_v IS 'kept';
ALTER TABLE r CLUSTER ON r_v;
CREATE TABLE before (oid, name, file) USING heap AS
    SELECT c.oid, c.relname, c.relfilenode FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid WHERE i.indrelid = 'r'::regclass;
\set files 'SELECT c.relname, b.oid IS NOT NULL AS same_oid, b.file <> c.relfilenode AS new_file, i.indisvalid, i.indisready FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid LEFT JOIN before b ON b.oid = c.oid AND b.name = c.relname WHERE i.indrelid = ''r''::regclass ORDER BY 1'
REINDEX INDEX CONCURRENTLY r_v;
:files;
REINDEX (CONCURRENTLY, VERBOSE) TABLE r;
:files;
SELECT obj_description('r_v'::regclass, 'pg_class'), count(*) FILTER (WHERE indisclustered) FROM pg_index WHERE indrelid = 'r'::regclass;
SELECT onetrip.rows_not_in_index('r_v'), onetrip.rows_not_in_index('r_w'), onetrip.rows_not_in_index('r_pkey');
INSERT INTO r VALUES (1001, 'new', 7, 1001);
INSERT INTO refers VALUES (1000);
INSERT INTO refers VALUES (1001);
SELECT count(*) FROM onetrip.job_here j WHERE j.statement ^@ 'REINDEX' AND EXISTS (SELECT FROM pg_index WHERE indexrelid = j.index);
-- As in PostgreSQL.
BEGIN;
REINDEX INDEX CONCURRENTLY r_v;
ROLLBACK;
REINDEX INDEX CONCURRENTLY r_x_excl;
REINDEX INDEX CONCURRENTLY absent;
REINDEX INDEX CONCURRENTLY r;
REINDEX TABLE CONCURRENTLY r_v;
REINDEX TABLE CONCURRENTLY pg_class;
REINDEX SYSTEM CONCURRENTLY onetrip;
REINDEX (CONCURRENTLY, TABLESPACE pg_default) INDEX r_v;
REINDEX (CONCURRENTLY, NONSENSE) INDEX r_v;
SET default_transaction_read_only = on;
REINDEX INDEX CONCURRENTLY r_v;
RESET default_transaction_read_only;
SET ROLE other_owner;
REINDEX INDEX CONCURRENTLY r_v;
REINDEX TABLE CONCURRENTLY r;
REINDEX INDEX CONCURRENTLY own_id;
RESET ROLE;
REINDEX INDEX CONCURRENTLY temporary_parted_id;
REINDEX TABLE CONCURRENTLY temporary;
REINDEX INDEX CONCURRENTLY unlogged_id;
REINDEX TABLE CONCURRENTLY seen;
CREATE SCHEMA s;
CREATE TABLE s.one (id int PRIMARY KEY, v int UNIQUE);
CREATE TABLE s.two (id int, v int) PARTITION BY LIST (id);
CREATE TABLE s.two_1 PARTITION OF s.two FOR VALUES IN (1);
CREATE INDEX two_v ON s.two (v);
INSERT INTO before SELECT c.oid, c.relname, c.relfilenode FROM pg_class c WHERE c.relnamespace = 's'::regnamespace AND c.relkind = 'i';
\set in_schema 'SELECT c.relname, b.file <> c.relfilenode AS new_file FROM pg_class c LEFT JOIN before b ON b.oid = c.oid WHERE c.relnamespace = ''s''::regnamespace AND c.relkind IN (''i'', ''I'') ORDER BY 1'
REINDEX INDEX CONCURRENTLY s.two_v;
:in_schema;
REINDEX SCHEMA CONCURRENTLY s;
:in_schema;
SELECT inhparent::regclass, inhrelid::regclass FROM pg_inherits WHERE inhrelid = 's.two_1_v_idx'::regclass;
DROP SCHEMA s CASCADE;
-- A function of the index fails: the old one stays in use, and the other one is dropped with it.
CREATE FUNCTION may_fail(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
    IF current_setting('test.fail', true) = 'yes' THEN RAISE 'failed'; END IF; RETURN n; END $$;
CREATE INDEX r_fails ON r (may_fail(w));
ALTER FUNCTION may_fail SET test.fail = 'yes';
REINDEX INDEX CONCURRENTLY r_fails;
SELECT relname, indisvalid FROM pg_index JOIN pg_class c ON c.oid = indexrelid WHERE relname ^@ 'r_fails' ORDER BY 1;
REINDEX INDEX r_fails_reindex;
REINDEX TABLE CONCURRENTLY r;
DROP INDEX r_fails;
SELECT to_regclass('r_fails_reindex');
DROP TABLE before, refers, r;
-- The index of a TOAST table, too, whose table may have no other one.
CREATE TABLE wide (id int PRIMARY KEY, v text);
ALTER TABLE wide ALTER v SET STORAGE EXTERNAL;
CREATE SCHEMA s;
CREATE TABLE s.only_wide (v text);
CREATE TABLE s.narrow (v int);
CREATE MATERIALIZED VIEW s.seen AS SELECT 'seen'::text;
INSERT INTO wide SELECT g, repeat(g::text, 3000) FROM generate_series(1, 10) g;
INSERT INTO s.only_wide SELECT v FROM wide;
CREATE VIEW toast_indexes AS SELECT t.oid::regclass AS of, i.indexrelid, c.relfilenode, i.indisvalid FROM pg_class t
    JOIN pg_index i ON i.indrelid = t.reltoastrelid JOIN pg_class c ON c.oid = i.indexrelid;
CREATE TABLE before USING heap AS SELECT indexrelid, relfilenode FROM toast_indexes;
\set toast 'SELECT a.of, a.indexrelid = b.indexrelid AS same_oid, a.relfilenode <> b.relfilenode AS new_file, a.indisvalid FROM toast_indexes a LEFT JOIN before b USING (indexrelid) WHERE of IN (''wide''::regclass, ''s.only_wide''::regclass, ''s.seen''::regclass) ORDER BY 1'
BEGIN;
REINDEX TABLE CONCURRENTLY s.only_wide;
ROLLBACK;
REINDEX INDEX CONCURRENTLY wide_pkey;
REINDEX TABLE CONCURRENTLY s.narrow;
:toast;
REINDEX TABLE CONCURRENTLY wide;
:toast;
REINDEX SCHEMA CONCURRENTLY s;
:toast;
SET enable_seqscan = off;
INSERT INTO wide VALUES (11, repeat('11', 3000));
SELECT count(*) FROM wide WHERE v = repeat(id::text, 3000);
RESET enable_seqscan;
SELECT onetrip.rows_not_in_index(indexrelid::regclass) FROM toast_indexes WHERE of = 'wide'::regclass;
SELECT count(*) FROM onetrip.job_here j WHERE j.statement ^@ 'REINDEX' AND EXISTS (SELECT FROM pg_index WHERE indexrelid = j.index);
DROP SCHEMA s CASCADE;
DROP TABLE wide, before CASCADE;
-- Names that begin alike, quotes, DEFERRABLE, and an index that is named as if REINDEX had left it.
CREATE TABLE "odd ""names" (id int, v int, UNIQUE (v) DEFERRABLE INITIALLY DEFERRED);
CREATE INDEX a_name_that_is_nearly_as_long_as_names_can_be_in_postgresql__1 ON "odd ""names" (id);
CREATE INDEX a_name_that_is_nearly_as_long_as_names_can_be_in_postgresql__2 ON "odd ""names" (id, v);
CREATE INDEX "of ""it" ON "odd ""names" ((id + v));
CREATE INDEX left_ccnew1 ON "odd ""names" (v, id);
INSERT INTO "odd ""names" SELECT g, g FROM generate_series(1, 100) g;
REINDEX TABLE CONCURRENTLY "odd ""names";
UPDATE "odd ""names" SET v = v + 1;
INSERT INTO "odd ""names" VALUES (0, 2);
SELECT c.relname, i.indisvalid, i.indimmediate, onetrip.rows_not_in_index(c.oid::regclass) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE i.indrelid = '"odd ""names"'::regclass ORDER BY 1;
DROP TABLE "odd ""names";
-- Functions of an index are run as the table's owner, also those that PostgreSQL runs to simplify its expressions.
CREATE FUNCTION says_who(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
    ASSERT current_user = 'other_owner', format('called by %s', current_user); RETURN n; END $$;
CREATE TABLE of_other (id int PRIMARY KEY);
ALTER TABLE of_other OWNER TO other_owner;
CREATE INDEX of_other_who ON of_other ((says_who(id) + says_who(1))) WHERE says_who(id) > says_who(0);
REINDEX TABLE CONCURRENTLY of_other;
REINDEX INDEX CONCURRENTLY of_other_who;
DROP TABLE of_other;
DROP FUNCTION says_who;
