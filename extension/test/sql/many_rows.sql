-- Goal: new rows that follow one another are written many at a time, and what comes of them is what comes of them one by one.
-- Method: write sets of this session, applied after it was rolled back; how heap wrote them is in the server's WAL.
CREATE EXTENSION pg_walinspect;
CREATE SCHEMA many;
SET search_path = many, public;
CREATE FUNCTION noise(n int, seed text) RETURNS text LANGUAGE sql IMMUTABLE AS
    'SELECT string_agg(md5(seed || g), '''') FROM generate_series(1, n / 32) g';
-- Applies a write set, and how many rows heap has got at once for that, in order.
\set apply_rows 'SELECT unit.apply(:''rows'')'
\set begin_batches 'SELECT pg_current_wal_insert_lsn() AS begin \\gset'
\set end_batches 'SELECT pg_current_xact_id() AS xid, pg_current_wal_insert_lsn() AS end \\gset'
\set batches 'SELECT string_agg(coalesce(substring(description, ''ntuples: (\\d+)''), substring(description, ''(\\d+) tuples''), ''1''), '' '' ORDER BY start_lsn) AS batches FROM pg_get_wal_records_info(:''begin'', :''end'') WHERE xid::text = :''xid'' AND resource_manager LIKE ''Heap%'' AND record_type LIKE ''%INSERT%'''

CREATE TABLE t (id int PRIMARY KEY, v text UNIQUE DEFERRABLE INITIALLY DEFERRED, span int4range, big text,
    twice int GENERATED ALWAYS AS (id * 2) STORED, EXCLUDE USING gist (span WITH &&));
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
CREATE TABLE bare (v text);
CREATE INDEX ON bare (upper(v)) WHERE v > 'row 1';
CREATE TABLE parts (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (50);
CREATE TABLE high PARTITION OF parts FOR VALUES FROM (50) TO (1000);
CREATE TABLE seen (id int);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO many.seen VALUES (new.id); RETURN new; END';
CREATE TABLE watched (id int PRIMARY KEY);
CREATE TRIGGER see BEFORE INSERT ON watched FOR EACH ROW EXECUTE FUNCTION see();
ALTER TABLE watched ENABLE ALWAYS TRIGGER see;
CREATE VIEW everything AS
    SELECT (SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM t) AS t,
        (SELECT md5(string_agg(bare::text, ',' ORDER BY ctid)) FROM bare) AS bare,
        (SELECT md5(string_agg(parts::text, ',' ORDER BY tableoid::regclass::text, ctid)) FROM parts) AS parts,
        (SELECT md5(string_agg(seen::text, ',' ORDER BY ctid)) FROM seen) AS seen,
        (SELECT md5(string_agg(watched::text, ',' ORDER BY ctid)) FROM watched) AS watched;

-- Few, many, those that are out of line between others, and rows that the same transaction changes and deletes.
BEGIN;
INSERT INTO t SELECT i, 'v' || i, int4range(i, i + 1) FROM generate_series(1, 40) i;
INSERT INTO t SELECT i, 'v' || i, int4range(i, i + 1), CASE WHEN i % 10 = 0 THEN noise(4000, 'n' || i) END FROM generate_series(41, 80) i;
UPDATE t SET v = 'w' || id WHERE id IN (1, 25, 40, 50, 70);
DELETE FROM t WHERE id BETWEEN 20 AND 29;
INSERT INTO t SELECT i, 'v' || i, int4range(i, i + 1) FROM generate_series(20, 29) i;
INSERT INTO bare SELECT 'row ' || i / 2 FROM generate_series(1, 3000) i;
DELETE FROM bare WHERE v = 'row 700';
INSERT INTO parts SELECT i, 'p' FROM generate_series(1, 100) i;
INSERT INTO parts SELECT CASE WHEN i % 2 = 0 THEN i ELSE i + 100 END, 'turns' FROM generate_series(1, 40) i;
INSERT INTO watched SELECT generate_series(1, 30);
SELECT * FROM everything \gset here_
SELECT unit.write_set() AS good \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'good');
SELECT t = :'here_t' AS t, bare = :'here_bare' AS bare, parts = :'here_parts' AS parts, seen = :'here_seen' AS seen,
    watched = :'here_watched' AS watched FROM everything;
-- The indexes have them, too.
SET LOCAL enable_seqscan = off;
SELECT count(*) FROM t WHERE id > 0;
SELECT count(*) FROM t WHERE v > '';
SELECT count(*) FROM t WHERE span && '[1,1000)';
SELECT count(*) FROM bare WHERE upper(v) > 'ROW 2' AND v > 'row 1';
COMMIT;

-- How heap wrote them.
BEGIN;
INSERT INTO bare SELECT 'r' FROM generate_series(1, 1100) i;
INSERT INTO parts SELECT i, 'p' FROM generate_series(45, 70) i;
INSERT INTO bare SELECT 'r' FROM generate_series(1, 8) i;
SELECT unit.write_set() AS rows \gset
ROLLBACK;
TRUNCATE bare, parts;
:begin_batches
BEGIN;
:apply_rows;
:end_batches
COMMIT;
CHECKPOINT;
:batches;

-- Not where a user's function in an index could look at the table.
CREATE FUNCTION up(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN upper(v); END';
CREATE TABLE computed (id int, v text);
CREATE INDEX ON computed (many.up(v));
BEGIN;
INSERT INTO computed SELECT i, 'p' FROM generate_series(1, 20) i;
SELECT unit.write_set() AS rows \gset
ROLLBACK;
:begin_batches
BEGIN;
:apply_rows;
:end_batches
COMMIT;
CHECKPOINT;
:batches;

-- A row that cannot be written fails as it would alone, and nothing of its batch stays.
BEGIN;
INSERT INTO t SELECT i, 'v' || i, int4range(i, i + 1) FROM generate_series(101, 140) i;
SELECT unit.write_set() AS rows \gset
ROLLBACK;
INSERT INTO t VALUES (133, 'other', 'empty');
:apply_rows;
UPDATE t SET id = 1000, span = '[125,126)' WHERE id = 133;
:apply_rows;
SELECT count(*) FROM t WHERE id BETWEEN 101 AND 140;
DELETE FROM t WHERE id = 1000;
:apply_rows;
SELECT count(*) FROM t WHERE id BETWEEN 101 AND 140;

-- Damaged in the midst of a batch.
DELETE FROM t WHERE id > 100;
SELECT unit.apply(substr(:'rows'::bytea, 1, length(:'rows'::bytea) - 3));
SELECT count(*) FROM t WHERE id > 100;
