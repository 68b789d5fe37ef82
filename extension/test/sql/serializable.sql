-- Goal: a SERIALIZABLE transaction says what it has read: single rows where it looked for them by their key, else the table; what it did not read it does not name.
-- Method: each way of reading, and what pending_keys() shows of it.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA serializable;
SET search_path = serializable;
CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v int);
CREATE INDEX ON t (v);
CREATE TABLE covering (id bigint PRIMARY KEY, u smallint, v int);
CREATE UNIQUE INDEX ON covering (u) INCLUDE (v);
CREATE UNIQUE INDEX ON covering (v) WHERE v > 7;
CREATE UNIQUE INDEX ON covering ((v + 1));
CREATE TABLE numbers (id int PRIMARY KEY, n numeric UNIQUE);
INSERT INTO numbers VALUES (1, 1.0);
VACUUM ANALYZE numbers;
CREATE TABLE two (a int, b text, v int, PRIMARY KEY (a, b));
CREATE TABLE no_key (v int);
CREATE TABLE by_unique (u bigint NOT NULL UNIQUE, v int);
CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t);
CREATE TABLE parted (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (100) TO (200);
CREATE MATERIALIZED VIEW mat AS SELECT count(*) FROM t;
CREATE TABLE local_one (id int PRIMARY KEY) USING heap;
INSERT INTO t SELECT g, g, g % 10 FROM generate_series(1, 2000) g;
INSERT INTO covering SELECT g, g, g FROM generate_series(1, 100) g;
INSERT INTO two VALUES (1, 'a', 1), (1, 'b', 2);
INSERT INTO no_key VALUES (1);
INSERT INTO by_unique SELECT g, g FROM generate_series(1, 100) g;
INSERT INTO parted SELECT g, g FROM generate_series(1, 199) g;
INSERT INTO child VALUES (1, 1);
VACUUM ANALYZE covering;
ANALYZE t, two, no_key, by_unique, parted, child;

-- Runs the statement in a transaction of its own, and shows what it has read.
CREATE FUNCTION reads_now() RETURNS text LANGUAGE sql AS
    $$SELECT coalesce(string_agg(line, ', ' ORDER BY line), 'nothing') FROM
        (SELECT format('%s %s x %s', "table"::regclass, mode, count(*)) AS line FROM onetrip.pending_keys()
         WHERE mode LIKE 'READ%' GROUP BY "table", mode) AS x$$;
CREATE PROCEDURE reads(statement text) LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL SERIALIZABLE;
    EXECUTE statement;
    RAISE NOTICE '%: %', statement, reads_now();
    ROLLBACK;
END $$;

-- By the key.
CALL reads('SELECT * FROM t WHERE id = 5');
CALL reads('SELECT v FROM t WHERE id = 5 AND v + 0 = 77');
CALL reads('SELECT id FROM t WHERE id = 5');
CALL reads('SELECT * FROM t WHERE id = 99999');
CALL reads('SELECT * FROM t WHERE id IN (5, 6, 7, 99999)');
CALL reads('SELECT * FROM t WHERE id = ANY (ARRAY[5, NULL])');
CALL reads('SELECT * FROM t WHERE id = NULL');
CALL reads('SELECT * FROM t WHERE id = (SELECT 5)');
CALL reads('UPDATE t SET v = 0 WHERE id = 5');
CALL reads('DELETE FROM child WHERE id = 1');
CALL reads('SELECT * FROM t WHERE id = 5 FOR UPDATE');
SET onetrip.concurrency = locking;
CALL reads('UPDATE t SET v = 0 WHERE id = 5');
CALL reads('DELETE FROM child WHERE id = 1');
CALL reads('SELECT * FROM t WHERE id = 5 FOR UPDATE');
RESET onetrip.concurrency;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
CALL reads('SELECT * FROM two WHERE a = 1 AND b = ''a''');
CALL reads('SELECT * FROM two WHERE b = ''a'' AND a = ANY (ARRAY[1, 2, 3])');
CALL reads('SELECT * FROM by_unique WHERE u = 5::bigint');
CALL reads('SELECT * FROM by_unique WHERE u = 5');
CALL reads('SELECT * FROM covering WHERE u = 5::bigint');
CALL reads('SELECT * FROM covering WHERE u = 70000');
CALL reads('SELECT * FROM covering WHERE u = ANY (ARRAY[4, 5, 70000])');
CALL reads('SELECT * FROM covering WHERE id = 5::smallint');
-- By another unique index: the value, and the row if it is there.
CALL reads('SELECT * FROM t WHERE u = 5');
CALL reads('SELECT u FROM t WHERE u = 5');
CALL reads('SELECT * FROM t WHERE u = 99999');
CALL reads('SELECT * FROM parted WHERE id = 150');
CALL reads('SELECT * FROM (VALUES (5), (7), (99999)) x (i) JOIN t ON t.id = x.i');
CALL reads('SELECT * FROM t a JOIN t b ON b.id = a.v WHERE a.id = 7');

-- A subplan that the scans of several partitions share.
CALL reads('SELECT * FROM parted p WHERE p.v = (SELECT v FROM t WHERE t.id = p.id) AND p.id IN (5, 150)');
-- Many at once.
CALL reads('SELECT * FROM t WHERE id = ANY (ARRAY(SELECT generate_series(1, 900)))');
CALL reads('SELECT * FROM t WHERE id = ANY (ARRAY(SELECT generate_series(1, 100000)))');

-- By something else, or only a part of it: the table.
CALL reads('SELECT * FROM two WHERE a = 1');
CALL reads('SELECT * FROM t WHERE id < 5');
CALL reads('SELECT * FROM t WHERE id = 5::numeric');
CALL reads('SELECT u, v FROM covering WHERE u = 5');
CALL reads('SELECT * FROM covering WHERE v = 9');
CALL reads('SELECT n FROM numbers WHERE n = 1');
CALL reads('SELECT id FROM numbers WHERE n = 1');
CALL reads('SELECT * FROM covering WHERE v + 1 = 9');
CALL reads('SELECT * FROM t WHERE v = 5');
CALL reads('SELECT max(id) FROM t');
CALL reads('SELECT * FROM t WHERE id > 99999');
CALL reads('SELECT id FROM t WHERE id BETWEEN 99998 AND 99999');
CALL reads('SELECT * FROM parted WHERE v = 150');
CALL reads('SELECT * FROM by_unique a JOIN by_unique b ON a.u = b.u');
RESET enable_seqscan;
RESET enable_bitmapscan;
CALL reads('SELECT * FROM no_key');
CALL reads('SELECT * FROM t WHERE id % 2 = 0');
CALL reads('SELECT * FROM t TABLESAMPLE SYSTEM (1)');
CALL reads('SELECT * FROM t WHERE ctid = ''(0,1)''');
CALL reads('SELECT * FROM t WHERE ctid < ''(0,9)''');
CALL reads('SELECT * FROM t WHERE id = 5 OR v = 3');
CALL reads('SELECT * FROM mat');
CALL reads('INSERT INTO no_key SELECT v FROM t WHERE v = 1');
CALL reads('UPDATE t SET v = 0 WHERE v = 1');
CALL reads('CREATE TABLE made AS SELECT * FROM no_key');
CALL reads('MERGE INTO no_key USING t ON t.id = no_key.v WHEN MATCHED THEN UPDATE SET v = 2');
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET force_parallel_mode = on;
CALL reads('SELECT count(*) FROM t');
CALL reads('SELECT * FROM t WHERE id = 5');
RESET force_parallel_mode;
RESET min_parallel_table_scan_size;
RESET parallel_tuple_cost;
RESET parallel_setup_cost;
-- In functions and triggers, by cursors and prepared statements, and in savepoints that are rolled back.
CREATE FUNCTION looks(which int) RETURNS int LANGUAGE plpgsql AS
    $$BEGIN RETURN v FROM t WHERE id = which; END$$;
CALL reads('SELECT looks(5) + looks(6)');
CALL reads('DO $x$ DECLARE c CURSOR FOR SELECT * FROM t WHERE id = 5; r record; BEGIN OPEN c; FETCH c INTO r; CLOSE c; END $x$');
CALL reads('DO $x$ BEGIN PERFORM 1 / (v - v) FROM t WHERE id = 5; EXCEPTION WHEN division_by_zero THEN NULL; END $x$');
PREPARE by_id (int) AS SELECT v FROM t WHERE id = $1;
BEGIN ISOLATION LEVEL SERIALIZABLE;
EXECUTE by_id (5);
EXECUTE by_id (6);
SELECT reads_now();
DECLARE rows CURSOR FOR SELECT v FROM t WHERE id > 7;
SELECT reads_now();
FETCH 1 FROM rows;
SELECT reads_now();
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
COPY (SELECT v FROM t WHERE id = 5) TO STDOUT;
SELECT reads_now();
COPY no_key TO STDOUT;
SELECT reads_now();
COMMIT;
-- More rows than are remembered: the table.
CALL reads('SELECT count(looks(g)) FROM generate_series(1, 1000) g');
CALL reads('SELECT count(looks(g)) FROM generate_series(1, 1001) g');

-- What is not read: what is only written or checked, what does not run, and what is no onetrip table.
CALL reads('INSERT INTO t VALUES (10000, 10000, 1)');
CALL reads('INSERT INTO no_key VALUES (1)');
CALL reads('EXPLAIN SELECT * FROM t');
CALL reads('SELECT CASE WHEN random() < 2 THEN 0 ELSE (SELECT v FROM t WHERE id = 5) END');
CALL reads('SELECT * FROM local_one');
CALL reads('SELECT count(*) FROM pg_class');
CALL reads('SELECT count(*) FROM onetrip.status');
CALL reads('SELECT count(*) FROM onetrip.jobs');
CALL reads('CREATE TABLE x (i int)');
CALL reads('CREATE INDEX ON t (v, u)');
CALL reads('ANALYZE t');
CALL reads('TRUNCATE no_key');
-- What is in the way of a new row.
CALL reads('INSERT INTO t VALUES (5, 5, 5) ON CONFLICT DO NOTHING');
CALL reads('INSERT INTO t VALUES (20000, 5, 5) ON CONFLICT (u) DO NOTHING');
CALL reads('INSERT INTO t VALUES (5, 5, 5) ON CONFLICT (id) DO UPDATE SET v = 5');
CALL reads('DO $x$ BEGIN INSERT INTO t VALUES (20000, 5, 5); EXCEPTION WHEN unique_violation THEN NULL; END $x$');
CALL reads('DO $x$ BEGIN INSERT INTO t VALUES (20000, 5, 5) ON CONFLICT (id) DO NOTHING; EXCEPTION WHEN unique_violation THEN NULL; END $x$');
CALL reads('DO $x$ BEGIN INSERT INTO t SELECT g, g, 0 FROM generate_series(20001, 21001) g ON CONFLICT DO NOTHING; EXCEPTION WHEN unique_violation THEN NULL; END $x$');
-- Who deletes the row takes no key of what a user's function has computed.
CREATE FUNCTION same(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1; END';
CREATE TABLE by_function (id int PRIMARY KEY, v int);
CREATE UNIQUE INDEX ON by_function (same(v));
INSERT INTO by_function VALUES (1, 1);
CALL reads('DO $x$ BEGIN INSERT INTO by_function VALUES (2, 1); EXCEPTION WHEN unique_violation THEN NULL; END $x$');
CALL reads('INSERT INTO by_function VALUES (2, 2)');
-- A foreign key is checked by the parent's row, which is locked; if it is missing, that was read.
CALL reads('INSERT INTO child VALUES (2, 7)');
CALL reads('SELECT 1 FROM ONLY t x WHERE id OPERATOR(pg_catalog.=) 7 FOR KEY SHARE OF x LIMIT 1');
CALL reads('DO $x$ BEGIN INSERT INTO child VALUES (3, 99999); EXCEPTION WHEN foreign_key_violation THEN NULL; END $x$');
CALL reads('SELECT 1 FROM ONLY t x WHERE id = 7 AND v + 0 = 7 FOR KEY SHARE OF x');
CALL reads('SELECT v FROM ONLY t x WHERE id = 7 FOR KEY SHARE OF x');
CALL reads('SELECT 1 FROM ONLY t x WHERE id = 7 FOR SHARE OF x');
CALL reads('SELECT 1 FROM ONLY t x WHERE id OPERATOR(pg_catalog.=) 7 FOR KEY SHARE OF x SKIP LOCKED LIMIT 1');
-- At other levels nothing is noted.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM t;
SELECT reads_now();
COMMIT;

-- In one region PostgreSQL's own checks come first.
SELECT count(*) FROM onetrip.conflicts WHERE "table" LIKE 'serializable.%';
-- COMMIT, also with nothing changed, and PREPARE TRANSACTION.
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM t;
UPDATE t SET v = 0 WHERE id = 5;
SELECT reads_now();
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT count(*) FROM t;
COMMIT;
SELECT v FROM t WHERE id = 5;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM t;
UPDATE two SET v = 0;
PREPARE TRANSACTION 'has read';
\set VERBOSITY terse
INSERT INTO t VALUES (20000, 20000, 1);
\set VERBOSITY default
\echo :LAST_ERROR_SQLSTATE
INSERT INTO child VALUES (20000, 1);
COMMIT PREPARED 'has read';
INSERT INTO t VALUES (20000, 20000, 1);
SELECT sum(v) FROM two;
-- Who may not keep writers away may not prepare what has read either.
CREATE ROLE serializable_reader;
GRANT USAGE ON SCHEMA serializable TO serializable_reader;
GRANT SELECT ON t TO serializable_reader;
GRANT SELECT, UPDATE ON two TO serializable_reader;
SET ROLE serializable_reader;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT v FROM t WHERE id = 5;
UPDATE two SET v = 1;
PREPARE TRANSACTION 'may not';
\echo :LAST_ERROR_SQLSTATE
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT v FROM t WHERE id = 5;
UPDATE two SET v = 1;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
UPDATE two SET v = 2;
PREPARE TRANSACTION 'may';
ROLLBACK PREPARED 'may';
-- Nor if others have read for it, unless they may; nor before it had the right on the parent.
RESET ROLE;
CREATE FUNCTION looks_for_all(which int) RETURNS int LANGUAGE plpgsql SECURITY DEFINER SET search_path = serializable AS
    $$BEGIN RETURN v FROM t WHERE id = which; END$$;
GRANT SELECT ON parted_1, parted_2 TO serializable_reader;
SET ROLE serializable_reader;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT looks_for_all(5);
UPDATE two SET v = 3;
PREPARE TRANSACTION 'may, by the owner';
ROLLBACK PREPARED 'may, by the owner';
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT looks_for_all(5);
SELECT v FROM t WHERE id = 5;
UPDATE two SET v = 3;
PREPARE TRANSACTION 'may not';
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT v FROM parted_2 WHERE id = 150;
UPDATE two SET v = 3;
PREPARE TRANSACTION 'may not';
RESET ROLE;
GRANT DELETE ON parted TO serializable_reader;
SET ROLE serializable_reader;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT v FROM parted_2 WHERE id = 150;
UPDATE two SET v = 3;
PREPARE TRANSACTION 'may, on the parent';
ROLLBACK PREPARED 'may, on the parent';
RESET ROLE;
REVOKE ALL ON SCHEMA serializable FROM serializable_reader;
REVOKE ALL ON t, two, parted, parted_1, parted_2 FROM serializable_reader;
DROP ROLE serializable_reader;
-- Before format level 1 it is refused where something is read, whatever reads it; not where nothing is.
SELECT unit.use_level(0);
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO no_key VALUES (2);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO child VALUES (20001, 7);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT v FROM t WHERE id = 5;
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT u FROM t WHERE u = 5;
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM no_key;
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SAVEPOINT s;
INSERT INTO no_key VALUES (3);
ROLLBACK TO s;
SELECT 1 AS no_table;
COMMIT;
SELECT unit.use_level(1);
-- A transaction whose reads are before an entry that it does not see.
SET default_transaction_isolation = serializable;
UPDATE t SET v = v + 1 WHERE id = 5 RETURNING v;
SELECT v FROM t WHERE id = 5;
DROP SCHEMA serializable CASCADE;
