-- Goal: a unique value is one key; equal values have the same hash in whatever form they are written; nulls and rows outside the index have no key.
-- Method: insert into tables with each kind of index and compare the hashes of the transaction.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA unique_keys;
SET search_path = unique_keys;
-- Would the two rows collide in the unique index? Each is inserted separately, and its hashes are kept across a savepoint.
CREATE FUNCTION hashes(insert text) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE taken bigint[];
BEGIN
    BEGIN
        EXECUTE insert;
        taken := ARRAY(SELECT hash FROM onetrip.pending_keys() WHERE mode = 'UPDATE' ORDER BY hash);
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN
        RETURN taken;
    END;
END $$;
CREATE FUNCTION meet(one text, other text) RETURNS text LANGUAGE sql AS
    'SELECT CASE WHEN a = ''{}'' OR b = ''{}'' THEN ''none'' WHEN a && b THEN ''meet'' ELSE ''apart'' END
     FROM hashes(one) a, hashes(other) b';
CREATE FUNCTION meet(tab text, one text, other text) RETURNS text LANGUAGE sql AS
    'SELECT meet(format(''INSERT INTO %s VALUES (%s)'', tab, one), format(''INSERT INTO %s VALUES (%s)'', tab, other))';

-- Equality of the type decides.
CREATE TABLE u_numeric (v numeric UNIQUE);
SELECT meet('u_numeric', '1.0', '1.00') AS equal, meet('u_numeric', '1.0', '1.01') AS different;
CREATE TABLE u_float (v float8 UNIQUE);
SELECT meet('u_float', '0.0', '-0.0') AS equal, meet('u_float', '''NaN''', '''NaN''') AS nan;
CREATE TABLE u_text (v text UNIQUE);
SELECT meet('u_text', '''a''', '''a''') AS equal, meet('u_text', '''a''', '''A''') AS different;
CREATE TABLE u_char (v char(5) UNIQUE);
SELECT meet('u_char', '''a''', '''a  ''') AS equal, meet('u_char', '''a''', '''b''') AS different;
CREATE TABLE u_interval (v interval UNIQUE);
SELECT meet('u_interval', '''1 day''', '''24 hours''') AS equal, meet('u_interval', '''1 day''', '''25 hours''') AS different;
CREATE TABLE u_time (v timestamptz UNIQUE);
SELECT meet('u_time', '''2026-01-01 12:00+00''', '''2026-01-01 13:00+01''') AS equal;
CREATE TABLE u_jsonb (v jsonb UNIQUE);
SELECT meet('u_jsonb', '''{"a": 1, "b": 2.0}''', '''{"b": 2.00, "a": 1}''') AS equal, meet('u_jsonb', '''1''', '''2''') AS different;
CREATE TABLE u_inet (v inet UNIQUE);
SELECT meet('u_inet', '''10.0.0.1''', '''10.0.0.1/32''') AS equal;
CREATE TABLE u_uuid (v uuid UNIQUE, b bytea UNIQUE);
SELECT meet('u_uuid', '''7D444840-9DC0-11D1-B245-5FFDCE74FAD2'', NULL', '''{7d444840-9dc0-11d1-b245-5ffdce74fad2}'', NULL') AS equal;
SELECT meet('u_uuid', 'NULL, ''\x00ff''', 'NULL, ''\x00FF''') AS equal, meet('u_uuid', 'NULL, NULL', 'NULL, NULL') AS nulls;

-- A collation for which different strings can be equal: which ones depends on ICU's version, so all rows of the index collide.
CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE u_any_case (v text COLLATE any_case UNIQUE);
SELECT meet('u_any_case', '''Onetrip''', '''ONETRIP''') AS equal, meet('u_any_case', '''a''', '''b''') AS different;

-- An extension's type with an equality of its own, and an index with another operator class than the type's first.
CREATE EXTENSION citext;
CREATE TABLE u_citext (v citext UNIQUE);
SELECT meet('u_citext', '''Onetrip''', '''ONETRIP''') AS equal, meet('u_citext', '''a''', '''b''') AS different;
CREATE TABLE u_pattern (v text);
CREATE UNIQUE INDEX ON u_pattern (v text_pattern_ops);
SELECT meet('u_pattern', '''a''', '''a''') AS equal, meet('u_pattern', '''a''', '''b''') AS different;

-- Domains, enums, arrays, composites, ranges.
CREATE DOMAIN positive AS numeric CHECK (value > 0);
CREATE TABLE u_domain (v positive UNIQUE);
SELECT meet('u_domain', '1.0', '1.00') AS equal, meet('u_domain', '1', '2') AS different;
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE u_enum (v mood UNIQUE);
SELECT meet('u_enum', '''sad''', '''sad''') AS equal, meet('u_enum', '''sad''', '''happy''') AS different;
CREATE TABLE u_array (v numeric[] UNIQUE);
SELECT meet('u_array', '''{1.0,2}''', '''{1,2.0}''') AS equal, meet('u_array', '''{1}''', '''{2}''') AS different;
CREATE TABLE u_range (v int4range UNIQUE);
SELECT meet('u_range', '''[1,5)''', '''[1,4]''') AS equal;
CREATE TYPE pair AS (a int, b text);
CREATE TABLE u_composite (v pair UNIQUE);
SELECT meet('u_composite', '''(1,x)''', '''(1,x)''') AS equal, meet('u_composite', '''(1,x)''', '''(2,y)''') AS coarse;

-- Types without an extended hash function make the index's key coarse: all rows collide.
CREATE TABLE u_tsvector (v tsvector UNIQUE);
SELECT meet('u_tsvector', '''a''', '''b''') AS coarse;
CREATE TABLE u_money (v money UNIQUE, n int UNIQUE);
SELECT meet('u_money', '1, 1', '2, 2') AS coarse, meet('u_money', 'NULL, 1', 'NULL, 2') AS nulls;
CREATE TABLE u_regclass (v regclass UNIQUE);
SELECT meet('u_regclass', '''u_money''', '''u_range''') AS coarse;

-- Several columns; nulls; NULLS NOT DISTINCT.
CREATE TABLE u_two (a int, b int, UNIQUE (a, b));
SELECT meet('u_two', '1, 2', '1, 2') AS equal, meet('u_two', '1, 2', '2, 1') AS swapped, meet('u_two', '1, NULL', '1, NULL') AS nulls;
CREATE TABLE u_nulls (a int, b int, UNIQUE NULLS NOT DISTINCT (a, b));
SELECT meet('u_nulls', '1, NULL', '1, NULL') AS nulls, meet('u_nulls', '1, NULL', 'NULL, 1') AS swapped;

-- Expression and partial indexes; INCLUDE columns do not count.
CREATE TABLE u_computed (name text, live boolean, note text);
CREATE UNIQUE INDEX ON u_computed (lower(name)) INCLUDE (note) WHERE live;
SELECT meet('u_computed', '''A'', true, ''x''', '''a'', true, ''y''') AS equal,
       meet('u_computed', '''a'', true', '''b'', true') AS different,
       meet('u_computed', '''a'', false', '''a'', false') AS outside,
       meet('u_computed', '''a'', true', '''a'', false') AS one_outside;
INSERT INTO u_computed VALUES ('a', false, 'one'), ('a', false, 'two');
-- Not unique: no key.
CREATE TABLE u_not (v int);
CREATE INDEX ON u_not (v);
SELECT meet('u_not', '1', '1') AS no_key;

-- The same value in two indexes, and in two tables, is two keys.
CREATE TABLE u_same (a int UNIQUE, b int UNIQUE);
SELECT meet('INSERT INTO u_same (a) VALUES (1)', 'INSERT INTO u_same (b) VALUES (1)') AS different_indexes,
       meet('INSERT INTO u_same (a) VALUES (1)', 'INSERT INTO u_two VALUES (1, NULL)') AS different_tables;

-- An exclusion constraint has one key for all its rows.
CREATE TABLE booked (room int, during int4range, EXCLUDE USING gist (during WITH &&));
SELECT meet('booked', '1, ''[1,5)''', '2, ''[10,20)''') AS coarse, meet('booked', '1, NULL', '1, ''[1,2)''') AS null_too;

-- Moving a unique value from one row to another takes the old and the new key.
CREATE TABLE moved (id int PRIMARY KEY, v int UNIQUE DEFERRABLE INITIALLY DEFERRED);
INSERT INTO moved VALUES (1, 1), (2, 2);
BEGIN;
UPDATE moved SET v = 3 - v;
:keys;
:operations;
COMMIT;
SELECT * FROM moved ORDER BY id;

-- An update with a partial index: a row that comes into it takes a key, and so does one that leaves it.
CREATE TABLE flags (id int PRIMARY KEY, name text, live boolean);
CREATE UNIQUE INDEX ON flags (name) WHERE live;
INSERT INTO flags VALUES (1, 'n', false);
BEGIN; UPDATE flags SET live = true WHERE id = 1; :keys; COMMIT;
BEGIN; UPDATE flags SET live = false WHERE id = 1; :keys; COMMIT;
-- Such an index runs functions: the schemas in which they look up names travel, once as long as they stay the same.
BEGIN;
INSERT INTO flags VALUES (2, 'm', true), (3, 'l', true);
SAVEPOINT s;
SET LOCAL search_path = unique_keys, pg_temp, public, no_such_schema;
INSERT INTO flags VALUES (4, 'k', true);
ROLLBACK TO s;
DELETE FROM flags WHERE id = 2;
:operations;
ROLLBACK;

-- A unique index that may become what tells the rows apart keeps out who has only locked rows; with a primary key none may.
CREATE TABLE locked (a int NOT NULL, b int NOT NULL);
CREATE TABLE locked_by_key (a int PRIMARY KEY, b int NOT NULL);
CREATE TABLE locked_parts (a int NOT NULL) PARTITION BY RANGE (a);
CREATE TABLE locked_part PARTITION OF locked_parts FOR VALUES FROM (1) TO (9);
BEGIN;
CREATE UNIQUE INDEX ON locked (a);
CREATE UNIQUE INDEX ON locked (b) WHERE b > 0;
CREATE UNIQUE INDEX ON locked_by_key (b);
CREATE UNIQUE INDEX ON locked_parts (a);
SELECT relation::regclass, mode FROM pg_locks
  WHERE pid = pg_backend_pid() AND mode = 'ExclusiveLock' AND relation::regclass::text LIKE 'locked%' ORDER BY relation::regclass::text;
ROLLBACK;

SET client_min_messages = warning;
DROP SCHEMA unique_keys CASCADE;
