-- Statements that are transactions of their own are committed before their portal has ended (onetrip.statement_retries); clients
-- notice nothing of that.
SHOW onetrip.statement_retries;
CREATE TABLE counted (id int PRIMARY KEY, v int, wide text);
ALTER TABLE counted ALTER COLUMN wide SET STORAGE EXTERNAL;
INSERT INTO counted SELECT g, 0, repeat('x', 10) FROM generate_series(1, 3) g;
UPDATE counted SET v = v + 1 WHERE id <= 2;
UPDATE counted SET v = v + 1 WHERE id = 3 RETURNING id, v;
-- values that are out of line are handed out after the commit
UPDATE counted SET wide = repeat('y', 10000) WHERE id = 1 RETURNING length(wide), md5(wide);
WITH gone AS (DELETE FROM counted WHERE id = 3 RETURNING id) SELECT count(*) FROM gone;
WITH one AS (INSERT INTO counted VALUES (4, 4) RETURNING id) UPDATE counted SET v = 9 WHERE id = 1 RETURNING v;
MERGE INTO counted c USING (VALUES (1, 5), (7, 7)) n (id, v) ON c.id = n.id
    WHEN MATCHED THEN UPDATE SET v = n.v WHEN NOT MATCHED THEN INSERT VALUES (n.id, n.v);
DELETE FROM counted WHERE id = 100;
-- with parameters
PREPARE up(int, int) AS UPDATE counted SET v = $2 WHERE id = $1 RETURNING v;
EXECUTE up(1, 11);
EXECUTE up(2, 12);
SELECT id, v, length(wide) FROM counted ORDER BY id;

-- errors at the end of the transaction are errors of the statement
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES counted DEFERRABLE INITIALLY DEFERRED);
INSERT INTO child VALUES (1, 1000);
INSERT INTO child VALUES (1, 1) RETURNING parent;
SELECT count(*) FROM child;
DELETE FROM counted WHERE id = 1;

-- inside of a block, or with others in one string, nothing is committed early
BEGIN;
UPDATE counted SET v = 100 WHERE id = 1;
ROLLBACK;
UPDATE counted SET v = 101 WHERE id = 1\; SELECT 1 / 0;
SELECT v FROM counted WHERE id = 1;

-- functions with rows of RETURNING in loops and cursors
CREATE FUNCTION each_of() RETURNS SETOF int LANGUAGE plpgsql AS $$
DECLARE
    r record;
    c CURSOR FOR SELECT id FROM counted ORDER BY id FOR UPDATE;
BEGIN
    FOR r IN UPDATE counted SET v = v + 1 RETURNING id LOOP
        RETURN NEXT r.id;
    END LOOP;
    FOR r IN c LOOP
        UPDATE counted SET v = v + 1 WHERE CURRENT OF c;
    END LOOP;
    RAISE EXCEPTION 'nothing of this stays';
END $$;
SELECT each_of();
SELECT id, v FROM counted ORDER BY id;

-- triggers, notices, and tables that are not replicated
CREATE FUNCTION speak() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE '% of %', TG_OP, NEW.id;
    PERFORM set_config('work_mem', '1234kB', true);
    RETURN NEW;
END $$;
CREATE TRIGGER speak AFTER UPDATE ON counted FOR EACH ROW EXECUTE FUNCTION speak();
UPDATE counted SET v = 7 WHERE id = 7;
SHOW work_mem;
CREATE TEMPORARY TABLE mine (id int, v int) ON COMMIT DELETE ROWS;
INSERT INTO mine VALUES (1, 1) RETURNING id;
SELECT count(*) FROM mine;

-- a statement is refused as ever when it wants too much
SET onetrip.max_trips = 0;
UPDATE counted SET v = 8 WHERE id = 7;
RESET onetrip.max_trips;
-- procedures
CREATE PROCEDURE add_up(INOUT n int) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE counted SET v = v + n WHERE id = 7 RETURNING v INTO n;
END $$;
CREATE PROCEDURE by_parts() LANGUAGE plpgsql AS $$
BEGIN
    UPDATE counted SET v = v + 1 WHERE id = 4;
    COMMIT;
    UPDATE counted SET v = v + 1 WHERE id = 2;
    ROLLBACK;
    UPDATE counted SET v = v + 1 WHERE id = 1;
END $$;
SET onetrip.retry_procedures = on;
CALL add_up(100);
CALL by_parts();
DO $$ BEGIN UPDATE counted SET v = v + 1000 WHERE id = 7; END $$;
DO $$ BEGIN UPDATE counted SET v = 0 WHERE id = 7; COMMIT; PERFORM 1 / 0; END $$;
DO $$ BEGIN PERFORM 1; END $$;
RESET onetrip.retry_procedures;
SELECT id, v FROM counted ORDER BY id;

-- one transaction each, with or without
SELECT onetrip.position() AS before \gset
UPDATE counted SET v = 8 WHERE id = 7;
SET onetrip.statement_retries = 0;
UPDATE counted SET v = 9 WHERE id = 7;
SELECT onetrip.position() - :before AS entries;
RESET onetrip.statement_retries;
DROP TABLE child, counted;
DROP FUNCTION each_of(), speak();
DROP PROCEDURE add_up, by_parts;
