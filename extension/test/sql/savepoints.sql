-- Goal: changes, keys and bytes of a rolled-back savepoint leave the write set; those of a released one stay.
-- Method: nest, roll back and release; PL/pgSQL's exception blocks are savepoints too.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA savepoints;
SET search_path = savepoints;
CREATE TABLE t (id int PRIMARY KEY);
CREATE TABLE other (id int PRIMARY KEY);

BEGIN;
SAVEPOINT before_anything;
INSERT INTO t VALUES (1);
ROLLBACK TO before_anything;
SELECT onetrip.pending_bytes(), (SELECT count(*) FROM onetrip.pending_keys());
INSERT INTO t VALUES (2);
SELECT onetrip.pending_bytes() AS bytes \gset
SAVEPOINT a;
INSERT INTO t VALUES (3);
SAVEPOINT b;
INSERT INTO other VALUES (4);
RELEASE b;
:operations;
ROLLBACK TO a;
SELECT onetrip.pending_bytes() = :bytes AS back_where_it_was;
:operations;
-- A table that was first used in what was rolled back is introduced again.
INSERT INTO other VALUES (5);
SAVEPOINT c;
INSERT INTO other VALUES (6);
ROLLBACK TO c;
INSERT INTO other VALUES (7);
RELEASE a;
:keys;
:operations;
COMMIT;
SELECT * FROM t;
SELECT * FROM other ORDER BY id;

-- A key taken inside a rolled-back savepoint and again after it is there once.
BEGIN;
SAVEPOINT s;
SELECT FROM t WHERE id = 2 FOR UPDATE;
ROLLBACK TO s;
SELECT count(*) FROM onetrip.pending_keys();
SELECT FROM t WHERE id = 2 FOR UPDATE;
:keys;
COMMIT;
-- One taken before it stays.
BEGIN;
SELECT FROM t WHERE id = 2 FOR UPDATE;
SAVEPOINT s;
SELECT FROM t WHERE id = 2 FOR UPDATE;
ROLLBACK TO s;
:keys;
COMMIT;

-- Exception blocks.
BEGIN;
DO $$
BEGIN
    FOR i IN 10..13 LOOP
        BEGIN
            INSERT INTO t VALUES (i);
            IF i % 2 = 1 THEN RAISE division_by_zero; END IF;
        EXCEPTION WHEN division_by_zero THEN NULL;
        END;
    END LOOP;
END $$;
:keys;
:operations;
COMMIT;

-- Many, nested.
BEGIN;
DO $$
BEGIN
    FOR i IN 100..299 LOOP
        BEGIN
            INSERT INTO t VALUES (i);
            BEGIN
                INSERT INTO t VALUES (1000 + i);
                RAISE division_by_zero;
            EXCEPTION WHEN division_by_zero THEN NULL;
            END;
        EXCEPTION WHEN unique_violation THEN NULL;
        END;
    END LOOP;
END $$;
SELECT count(*) FROM unit.operations();
:keys;
COMMIT;
SELECT count(*) FROM t;

-- DDL in a rolled-back savepoint leaves the write set together with its rows.
BEGIN;
INSERT INTO t VALUES (500);
SAVEPOINT s;
ALTER TABLE t ADD COLUMN note text;
INSERT INTO t VALUES (501, 'x');
ROLLBACK TO s;
INSERT INTO t VALUES (502);
:operations;
COMMIT;

-- No transaction leaves anything to the next.
SELECT onetrip.pending_bytes(), (SELECT count(*) FROM onetrip.pending_keys());
SET client_min_messages = warning;
DROP SCHEMA savepoints CASCADE;
