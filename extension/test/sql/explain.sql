-- Goal: EXPLAIN (ANALYZE, DIST) says what a statement adds to its transaction: rows, bytes, keys, round trips.
-- Method: the kinds of statements, in each format, against what onetrip.pending_* say; what is not asked for is not printed.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA explain;
SET search_path = explain;
CREATE TABLE place (id int PRIMARY KEY, name text);
CREATE TABLE visit (id int PRIMARY KEY, place int REFERENCES place, v int);
CREATE TABLE here (id int PRIMARY KEY) USING heap;
INSERT INTO place VALUES (1, 'one'), (2, 'two');
-- The lines that are the same in each run.
CREATE FUNCTION bill(statement text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE line text; on_ boolean := false;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (ANALYZE, DIST, COSTS OFF, TIMING OFF, SUMMARY OFF) ' || statement LOOP
        on_ := on_ OR line = 'Distribution:';
        IF on_ THEN RETURN NEXT line; END IF;
    END LOOP;
END $$;
CREATE FUNCTION bill_json(statement text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE bill json;
BEGIN
    EXECUTE 'EXPLAIN (ANALYZE, DIST, FORMAT JSON) ' || statement INTO bill;
    RETURN bill -> 1 -> 'Distribution';
END $$;
-- Whether the bill's bytes and keys are what the transaction has pending, from an empty one.
CREATE FUNCTION bill_is_true(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE bill json := bill_json(statement);
BEGIN
    RETURN format('rows %s, bytes %s, keys %s', bill ->> 'Rows Captured',
        (bill ->> 'Write Set')::bigint = onetrip.pending_bytes(),
        (SELECT sum(value::bigint) FROM json_each_text(bill -> 'Keys')) = (SELECT count(*) FROM onetrip.pending_keys()));
END $$;
-- Reading costs nothing.
SELECT bill('SELECT * FROM place');
SELECT bill('INSERT INTO visit SELECT n, 1, n FROM generate_series(1, 3) n');
SELECT bill('UPDATE visit SET v = v + 1 WHERE id < 3');
SELECT bill('SELECT * FROM visit WHERE id = 1 FOR UPDATE');
SELECT bill('DELETE FROM visit WHERE id = 3');
-- A table that is not replicated is not captured.
SELECT bill('INSERT INTO here VALUES (1)');
-- Each statement has its own part; what COMMIT takes is the transaction's.
BEGIN;
SELECT bill('INSERT INTO visit VALUES (10, 2, 1)');
SELECT bill('SELECT count(*) FROM visit');
ROLLBACK;
BEGIN;
CREATE TABLE made (id int);
SELECT bill('SELECT count(*) FROM visit');
ROLLBACK;
SELECT bill_is_true('INSERT INTO visit SELECT n, 2, n FROM generate_series(100, 250) n');
SELECT bill_is_true('UPDATE visit SET v = -v WHERE id >= 100');
SELECT bill_is_true('SELECT * FROM visit FOR SHARE');
SELECT bill_is_true('DELETE FROM visit WHERE id >= 100');
-- A rule's queries have a bill each.
CREATE TABLE noted (id int);
CREATE RULE note AS ON INSERT TO here DO ALSO INSERT INTO noted VALUES (NEW.id);
SELECT bill('INSERT INTO here VALUES (2)');
-- A function of the query that explains something itself gets no bill that it has not asked for.
CREATE FUNCTION plain() RETURNS int LANGUAGE plpgsql AS $$
DECLARE line text; n int := 0;
BEGIN
    FOR line IN EXPLAIN (ANALYZE, COSTS OFF) SELECT * FROM place LOOP n := n + (line = 'Distribution:')::int; END LOOP;
    RETURN n;
END $$;
SELECT bill('SELECT plain()');
SELECT plain();
-- In REPEATABLE READ, the position is not known.
BEGIN ISOLATION LEVEL REPEATABLE READ;
EXPLAIN (ANALYZE, DIST, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT 1;
ROLLBACK;
-- A fresh read: the query that calls the function asks, the one that the function explains does not ask again.
SET onetrip.read = fresh;
SELECT bill ->> 'Round Trips' AS trips, (bill ->> 'Snapshot Position')::bigint > 0 AS position,
       (bill -> 'Fresh Read' ->> 'Asked Other Regions')::float > 0 AS asked,
       (bill -> 'Fresh Read' ->> 'Waited Until Shown')::float >= 0 AS waited
  FROM bill_json('SELECT * FROM place') bill;
RESET onetrip.read;
SELECT bill_json('SELECT * FROM place') -> 'Fresh Read' IS NULL AS has_not_asked;
-- The other formats.
BEGIN ISOLATION LEVEL REPEATABLE READ;
EXPLAIN (ANALYZE, DIST, COSTS OFF, TIMING OFF, SUMMARY OFF, FORMAT YAML) INSERT INTO noted VALUES (7);
EXPLAIN (ANALYZE, DIST, COSTS OFF, TIMING OFF, SUMMARY OFF, FORMAT XML) INSERT INTO noted VALUES (8);
COMMIT;
-- Without the option, with it turned off, and where it cannot be.
EXPLAIN (ANALYZE, DIST OFF, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT 1;
EXPLAIN (DIST) SELECT 1;
EXPLAIN (ANALYZE, DIST maybe) SELECT 1;
-- EXECUTE: the sum of what was prepared, with its parameters; also under CREATE TABLE AS.
PREPARE prepared(int) AS UPDATE visit SET v = v + $1 WHERE id <= $1;
SELECT bill ->> 'Rows Captured' AS rows FROM (SELECT bill_json('EXECUTE prepared(' || n || ')') FROM generate_series(0, 2) n) b(bill);
SELECT bill('EXECUTE prepared(1 + 1)');
EXPLAIN (ANALYZE, DIST) EXECUTE absent;
PREPARE selected(int) AS SELECT n FROM generate_series(1, $1) n;
SELECT bill ->> 'Rows Captured' AS rows FROM bill_json('CREATE TABLE executed AS EXECUTE selected(4)') bill;
SELECT count(*) FROM executed;
EXPLAIN (ANALYZE OFF, DIST OFF, COSTS OFF) EXECUTE selected(1);
-- CREATE TABLE AS runs under EXPLAIN as well, in every region.
SELECT bill ->> 'Rows Captured' AS rows, bill ->> 'Round Trips at COMMIT' AS trips
  FROM bill_json('CREATE TABLE filled AS SELECT n FROM generate_series(1, 3) n') bill;
SELECT count(*) FROM filled;
-- A statement that fails leaves nothing behind.
EXPLAIN (ANALYZE, DIST, COSTS OFF, TIMING OFF, SUMMARY OFF) INSERT INTO visit VALUES (1, 1, 1);
EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT 1;
DROP SCHEMA explain CASCADE;
