-- Goal: whatever goes wrong leaves nothing pending, and transactions inside procedures and cursors WITH HOLD work.
-- Method: failures at each stage; DO and procedures with COMMIT; WITH HOLD; one proposal per COMMIT that changed something.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA errors;
SET search_path = errors;
CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v > 0));
INSERT INTO t VALUES (1, 1);
SELECT proposals FROM onetrip.status \gset before_

INSERT INTO t VALUES (2, 2), (1, 1);
INSERT INTO t VALUES (2, -1);
INSERT INTO t VALUES (NULL, 1);
UPDATE t SET v = 1 / (id - 1);
SELECT onetrip.pending_bytes(), (SELECT count(*) FROM onetrip.pending_keys());
BEGIN;
INSERT INTO t VALUES (2, 2);
SELECT 1 / 0;
INSERT INTO t VALUES (3, 3);
COMMIT;
SELECT onetrip.pending_bytes(), (SELECT count(*) FROM onetrip.pending_keys());
-- A trigger that raises at COMMIT.
CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$;
CREATE CONSTRAINT TRIGGER never AFTER UPDATE ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION never();
SELECT proposals FROM onetrip.status \gset before_
BEGIN;
UPDATE t SET v = 5 WHERE id = 1;
COMMIT;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
SELECT * FROM t;
-- A deferred trigger that changes rows at COMMIT: captured.
CREATE TABLE late (id int PRIMARY KEY);
CREATE OR REPLACE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO late VALUES (new.id); RETURN NULL; END $$;
SELECT onetrip.position() AS position \gset before_
BEGIN;
UPDATE t SET v = 5 WHERE id = 1;
:keys;
COMMIT;
SELECT onetrip.position() > :before_position AS moved, (SELECT count(*) FROM late) AS late;
DROP TRIGGER never ON t;

-- DO and procedures with transactions of their own.
SELECT proposals FROM onetrip.status \gset before_
DO $$
BEGIN
    FOR i IN 10..15 LOOP
        INSERT INTO t VALUES (i, i);
        IF i % 3 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
    END LOOP;
END $$;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
SELECT id FROM t ORDER BY id;
CREATE PROCEDURE p(n int) LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT id FROM t WHERE id >= 10 ORDER BY id LOOP
        UPDATE t SET v = v + n WHERE id = r.id;
        COMMIT;
    END LOOP;
    COMMIT;
END $$;
SELECT proposals FROM onetrip.status \gset before_
CALL p(100);
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
SELECT sum(v) FROM t;
-- An error in a later transaction does not undo the earlier ones.
DO $$ BEGIN INSERT INTO t VALUES (20, 20); COMMIT; INSERT INTO t VALUES (20, 20); END $$;
SELECT v FROM t WHERE id = 20;

-- A held cursor is filled at COMMIT, from what the transaction sees.
BEGIN;
INSERT INTO t VALUES (30, 30);
DECLARE held CURSOR WITH HOLD FOR SELECT id FROM t WHERE id >= 20 ORDER BY id;
FETCH 1 FROM held;
COMMIT;
DELETE FROM t WHERE id = 30;
FETCH ALL FROM held;
CLOSE held;
-- One that locks rows.
BEGIN;
DECLARE locking CURSOR FOR SELECT id FROM t WHERE id >= 10 ORDER BY id FOR UPDATE;
FETCH 2 FROM locking;
:keys;
UPDATE t SET v = 1 WHERE CURRENT OF locking;
:operations;
COMMIT;

-- AND CHAIN; several statements in one message; a captured change with RETURNING.
BEGIN; INSERT INTO t VALUES (40, 40); COMMIT AND CHAIN; INSERT INTO t VALUES (41, 41); ROLLBACK AND CHAIN; SELECT onetrip.pending_bytes(); COMMIT;
SELECT count(*) FROM t WHERE id IN (40, 41);
INSERT INTO t VALUES (50, 50)\; INSERT INTO t VALUES (51, 51);
INSERT INTO t VALUES (52, 52)\; SELECT 1 / 0;
SELECT id FROM t WHERE id >= 50 ORDER BY id;

-- ON COMMIT DELETE ROWS of a temporary table, in a transaction that is proposed.
CREATE TEMP TABLE vanishing (id int) ON COMMIT DELETE ROWS;
BEGIN;
INSERT INTO vanishing VALUES (1);
INSERT INTO t VALUES (60, 60);
COMMIT;
SELECT count(*) FROM vanishing;
-- NOTIFY in such a transaction, too.
BEGIN;
INSERT INTO t VALUES (61, 61);
NOTIFY news;
COMMIT;

-- A function of an entry can raise whatever it likes: only what the server below it raises passes.
SELECT fault, string_agg(file, ' ' ORDER BY file)
FROM unnest(ARRAY['md.c', 'smgr.c', 'buffile.c', 'logtape.c', 'slru.c', 'lock.c', 'dynahash.c', 'generation.c', 'slab.c', 'bump.c', 'dsm_impl.c', 'predicate.c', 'copydir.c', 'dfmgr.c', 'pl_exec.c', 'lmgr.c']) AS file,
    unit.fault(file, '53200')
GROUP BY fault ORDER BY fault;
-- A file that is not there; one that cannot be read or written (EACCES, EROFS, EDQUOT; 2 is ENOENT); a library; limits.
SELECT file, sqlstate, error, message, unit.fault(file, sqlstate, error, message)
FROM (VALUES
    ('md.c', '58P01', 2, 'base/1/2'), ('md.c', '58P02', 17, 'base/1/2'), ('md.c', '58P01', 2, 'pg_tblspc/1/2'), ('md.c', '58030', 5, 'base/1/2'),
    ('genfile.c', '58P01', 2, 'nothing'), ('dfmgr.c', '58P01', 2, 'library'), ('dfmgr.c', '42883', 0, 'another library'),
    ('fd.c', '42501', 13, ''), ('md.c', '42501', 30, ''), ('md.c', 'XX000', 122, ''), ('mcxt.c', 'XX000', 13, ''), ('lmgr.c', '42501', 13, ''),
    ('fd.c', '53400', 0, ''), ('postgres.c', '57014', 0, ''), ('libpq.c', '08006', 0, ''), ('lock.c', '22012', 0, ''),
    ('varsup.c', '54000', 0, ''), ('multixact.c', '54000', 0, ''), ('heaptoast.c', '54000', 0, ''), ('aset.c', '53200', 0, '')) AS f (file, sqlstate, error, message);

SELECT onetrip.pending_bytes(), (SELECT count(*) FROM onetrip.pending_keys());
SET client_min_messages = warning;
DROP SCHEMA errors CASCADE;
