-- Goal: what a process keeps from one transaction to the next does not grow, and is not taken for the next one's.
-- Method: tables that come and go; a mark of the evictor's that comes too late.
CREATE SCHEMA forgetting;
SET search_path = forgetting;

-- A session knows of tables that it has written, and forgets those that are gone once they are many.
CREATE PROCEDURE come_and_go(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR round IN 1..n LOOP
        FOR i IN 1..50 LOOP
            EXECUTE format('CREATE TABLE t%s ()', i);
            EXECUTE format('INSERT INTO t%s DEFAULT VALUES', i);
        END LOOP;
        COMMIT;
        FOR i IN 1..50 LOOP
            EXECUTE format('DROP TABLE t%s', i);
        END LOOP;
        COMMIT;
    END LOOP;
END $$;
CREATE VIEW known AS SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'onetrip table';
CALL come_and_go(10);
SELECT count BETWEEN 500 AND 599 AS kept FROM known;
CALL come_and_go(12);
SELECT count < 300 AS forgotten FROM known;
CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t VALUES (1);
UPDATE t SET id = 2;
SELECT * FROM t;

-- A mark that was meant for the previous transaction: this one stays what it was (1: it writes, 0: it does not).
BEGIN;
INSERT INTO t VALUES (3);
SELECT unit.evict_last();
COMMIT;
SELECT unit.evict_last();
BEGIN;
SELECT unit.evict_last();
INSERT INTO t VALUES (4);
SELECT unit.evict_last();
ROLLBACK;
SELECT * FROM t ORDER BY id;
DROP SCHEMA forgetting CASCADE;
