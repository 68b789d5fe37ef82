-- Goal: what is not possible is refused with its SQLSTATE and a hint, and the session goes on.
-- Method: a write set that is too large, PREPARE TRANSACTION.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA limits;
SET search_path = limits;
CREATE TABLE t (id int PRIMARY KEY, v text);

SET onetrip.max_write_set = '64kB';
INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 100) g;
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM t;
BEGIN;
INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 40) g;
SAVEPOINT s;
INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(41, 100) g;
ROLLBACK TO s;
INSERT INTO t VALUES (1000, 'fits again');
COMMIT;
SELECT count(*) FROM t;
-- One row that is too large by itself; and row locks, which have keys and nothing else.
INSERT INTO t SELECT 1001, string_agg(md5(g::text), '') FROM generate_series(1, 3200) g;
RESET onetrip.max_write_set;
CREATE TABLE many (id int PRIMARY KEY);
INSERT INTO many SELECT generate_series(1, 5000);
SET onetrip.max_write_set = '64kB';
SELECT count(*) FROM (SELECT id FROM many FOR KEY SHARE) locked;
BEGIN;
SELECT count(*) FROM (SELECT id FROM many WHERE id <= 3000 FOR KEY SHARE) locked;
SELECT count(*) FROM onetrip.pending_keys();
COMMIT;
RESET onetrip.max_write_set;
-- At COMMIT what was read counts, too; that is no row that was changed or locked.
SET onetrip.max_write_set = '64kB';
BEGIN ISOLATION LEVEL SERIALIZABLE;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(2001, 2050) g;
DO $$ BEGIN FOR n IN 1..1000 LOOP PERFORM FROM many WHERE id = n; END LOOP; END $$;
COMMIT;
RESET onetrip.max_write_set;
-- No key without the privilege for its lock.
CREATE ROLE onetrip_test_user;
GRANT USAGE ON SCHEMA limits TO onetrip_test_user;
GRANT SELECT ON many TO onetrip_test_user;
SET ROLE onetrip_test_user;
BEGIN;
SAVEPOINT s;
LOCK TABLE many IN EXCLUSIVE MODE;
ROLLBACK TO s;
SELECT id FROM many WHERE id = 1 FOR UPDATE;
ROLLBACK TO s;
SELECT id FROM t FOR KEY SHARE;
ROLLBACK TO s;
SELECT count(*) FROM many;
SELECT count(*) FROM onetrip.pending_keys();
COMMIT;
SELECT onetrip.advance();
SET onetrip.max_write_set = '1GB';
RESET ROLE;
GRANT onetrip_admin TO onetrip_test_user;
SET ROLE onetrip_test_user;
SELECT onetrip.advance() IS NOT NULL AS advanced;
RESET ROLE;
REVOKE ALL ON SCHEMA limits FROM onetrip_test_user;
REVOKE ALL ON many FROM onetrip_test_user;
DROP ROLE onetrip_test_user;
INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(41, 100) g;
SELECT count(*) FROM t;

BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO t VALUES (2000, 'repeatable');
COMMIT;

BEGIN;
INSERT INTO t VALUES (3000);
CREATE TABLE not_prepared (id int PRIMARY KEY);
PREPARE TRANSACTION 'p';
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM t WHERE id = 3000;

-- Values that no other region could read.
CREATE TABLE rules AS SELECT rulename, ev_action FROM pg_rewrite LIMIT 1;
\echo :LAST_ERROR_SQLSTATE
CREATE TABLE rules AS SELECT rulename, NULL::pg_node_tree AS ev_action, ev_action::text AS text FROM pg_rewrite LIMIT 1;
CREATE TEMP TABLE mine (a int);
CREATE TABLE named (id int PRIMARY KEY, c regclass, cs regclass[], t regtype);
INSERT INTO named VALUES (1, 'mine');
\echo :LAST_ERROR_SQLSTATE
INSERT INTO named VALUES (1, NULL, ARRAY['named', 'mine']::regclass[]);
INSERT INTO named VALUES (1, NULL, NULL, 'mine');
INSERT INTO named VALUES (1, 'named', ARRAY['named', NULL, 'pg_class']::regclass[], 'named');
-- An OID that stands for nothing here may stand for something there.
INSERT INTO named VALUES (2, 4000000000, NULL, 'int');
SELECT * FROM named ORDER BY id;

-- Values that fit into an index in the form that they have here, but not as they are in the table or with other OIDs.
CREATE TYPE piece AS (a text, b int);
CREATE FUNCTION almost(larger int) RETURNS text LANGUAGE sql AS $$
    SELECT repeat('x', 2000) || string_agg(chr(40 + get_byte(decode(md5(i::text), 'hex'), 0) % 64), '' ORDER BY i) FROM generate_series(1, 2320 + larger) i $$;
CREATE TABLE short_form (id int PRIMARY KEY, v text, p piece) WITH (toast_tuple_target = 128);
INSERT INTO short_form SELECT 1, repeat('long', 1500), ROW(repeat('long', 1500), 1)::piece;
INSERT INTO short_form SELECT 2, almost(0), ROW(almost(0), 1)::piece;
CREATE TABLE plain_form (id int PRIMARY KEY, v text, p piece);
ALTER TABLE plain_form ALTER v SET STORAGE PLAIN, ALTER p SET STORAGE PLAIN;
CREATE INDEX ON plain_form (v);
CREATE INDEX ON plain_form (p);
INSERT INTO plain_form (id, v) SELECT id, v FROM short_form;
SELECT id, pg_column_size(v) < 2700 AS short FROM plain_form ORDER BY id;
DELETE FROM plain_form;
INSERT INTO plain_form (id, p) SELECT 1, p FROM short_form WHERE id = 1;
INSERT INTO plain_form (id, p) SELECT 2, p FROM short_form WHERE id = 2;
\echo :LAST_ERROR_SQLSTATE
INSERT INTO plain_form VALUES (2);
UPDATE plain_form SET p = (SELECT p FROM short_form WHERE id = 2) WHERE id = 2;
\echo :LAST_ERROR_SQLSTATE
SELECT id, pg_column_size(p) < 2700 AS short FROM plain_form ORDER BY id;
-- The index of an expression gets the value compressed anew here, and elsewhere as it is in the table.
CREATE FUNCTION squeezed(seed int) RETURNS text LANGUAGE sql AS $$
    SELECT repeat(repeat('a', 20) || string_agg(substr('ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_',
        1 + get_byte(decode(md5(format('%s %s', seed, i)), 'hex'), 0) % 64, 1), '' ORDER BY i), 8) FROM generate_series(1, 2530) i $$;
CREATE TABLE as_stored (id int PRIMARY KEY, x text COMPRESSION pglz);
CREATE INDEX as_stored_x ON as_stored (coalesce(x, ''));
SET default_toast_compression = lz4;
INSERT INTO as_stored VALUES (1, squeezed(1));
\echo :SQLSTATE
INSERT INTO as_stored VALUES (2, 'short');
UPDATE as_stored SET x = squeezed(2) WHERE id = 2;
\echo :SQLSTATE
COPY (SELECT 3, squeezed(3)) TO PROGRAM 'cat >squeezed.copy';
COPY as_stored FROM PROGRAM 'cat squeezed.copy; rm squeezed.copy';
\echo :SQLSTATE
-- What fits in both forms, and what is compressed for the index alone.
INSERT INTO as_stored SELECT 4, repeat('long', 3000);
ALTER TABLE as_stored ALTER x SET STORAGE EXTERNAL;
INSERT INTO as_stored SELECT 5, repeat('long', 3000);
\echo :SQLSTATE
SELECT id, length(x) FROM as_stored ORDER BY id;
-- The other method.
RESET default_toast_compression;
CREATE TABLE as_stored_too (id int PRIMARY KEY, x text COMPRESSION lz4);
CREATE INDEX as_stored_too_x ON as_stored_too ((CASE WHEN id > 0 THEN x END));
CREATE INDEX as_stored_too_column ON as_stored_too (left(x, 10), id) INCLUDE (id);
INSERT INTO as_stored_too SELECT 1, string_agg(chr(65 + get_byte(decode(md5(i::text), 'hex'), 0) % 4), '' ORDER BY i) FROM generate_series(1, 5000) i;
\echo :SQLSTATE
INSERT INTO as_stored_too SELECT -1, string_agg(chr(65 + get_byte(decode(md5(i::text), 'hex'), 0) % 4), '' ORDER BY i) FROM generate_series(1, 5000) i;
\echo :SQLSTATE
SELECT id, length(x) FROM as_stored_too ORDER BY id;

-- Other kinds of index that store values: an expression of a range, what is included, both ends of a summary.
CREATE TYPE words AS RANGE (subtype = text);
CREATE TABLE ranged (id int PRIMARY KEY, r words COMPRESSION pglz);
CREATE INDEX ranged_r ON ranged USING gist ((CASE WHEN id > 0 THEN r END));
SET default_toast_compression = lz4;
INSERT INTO ranged VALUES (1, words(squeezed(1), NULL));
\echo :SQLSTATE
INSERT INTO ranged VALUES (-1, words(squeezed(1), NULL));
CREATE TABLE summed_up (id int PRIMARY KEY, x text COMPRESSION pglz);
CREATE INDEX summed_up_x ON summed_up USING brin ((CASE WHEN id > 0 THEN x END));
CREATE INDEX summed_up_bloom ON summed_up USING brin (coalesce(x, '') text_bloom_ops);
INSERT INTO summed_up VALUES (1, squeezed(1));
\echo :SQLSTATE
INSERT INTO summed_up VALUES (-1, squeezed(1));
RESET default_toast_compression;
CREATE TABLE included (id int PRIMARY KEY, b box, v text);
ALTER TABLE included ALTER v SET STORAGE PLAIN;
CREATE INDEX included_v ON included USING gist (b) INCLUDE (v);
INSERT INTO included SELECT id, box(point(id, id), point(0, 0)), v FROM short_form WHERE id = 2;
\echo :SQLSTATE
-- Of the same size everywhere, even if that is more than a B-tree takes; and not compressed in any index.
INSERT INTO included SELECT n, box(point(n, n), point(0, 0)), almost(n) FROM generate_series(3, 5) n;
\echo :SQLSTATE
CREATE INDEX included_same ON included USING spgist ((id::text)) INCLUDE (v);
DROP INDEX included_v;
INSERT INTO included SELECT id, NULL, v FROM short_form WHERE id = 2;
\echo :SQLSTATE
-- With other OIDs: in the range that stands for a multirange, in the elements of an array, in what is computed of columns without.
-- How much they take depends on the OIDs.
\set VERBOSITY terse
CREATE TABLE multiranged (id int PRIMARY KEY, r words_multirange);
CREATE INDEX multiranged_r ON multiranged USING gist (r);
INSERT INTO multiranged SELECT 1, words_multirange(words(almost(0), NULL));
\echo :SQLSTATE
INSERT INTO multiranged SELECT 2, words_multirange(words(almost(-1500), NULL));
CREATE TABLE pieces (id int PRIMARY KEY, n int, v text, ps piece[]);
CREATE INDEX pieces_ps ON pieces USING gin (ps);
CREATE INDEX pieces_v ON pieces ((CASE WHEN n IS NULL THEN ROW(v, 1)::piece END));
INSERT INTO pieces (id, ps) SELECT 1, ARRAY[ROW('short', 1), ROW(almost(0), 2)]::piece[];
\echo :SQLSTATE
INSERT INTO pieces (id, v) SELECT 2, almost(0);
\echo :SQLSTATE
INSERT INTO pieces SELECT 3, NULL, almost(-1500), ARRAY[ROW('short', 1), ROW(almost(-1500), 2)]::piece[];
\echo :SQLSTATE
\set VERBOSITY default

-- Yet other kinds of index store something other than the value.
CREATE TABLE searched (id int PRIMARY KEY, v text, t tsvector) WITH (toast_tuple_target = 128);
CREATE INDEX ON searched USING gist (t);
CREATE INDEX ON searched USING gin (t);
CREATE INDEX ON searched USING spgist (v);
CREATE INDEX ON searched USING brin (v text_bloom_ops);
CREATE INDEX ON searched USING hash (v);
INSERT INTO searched SELECT 1, string_agg(md5(i::text), ' '), to_tsvector('simple', string_agg(md5(i::text), ' ')) FROM generate_series(1, 300) i;
INSERT INTO searched SELECT 2, v, t FROM searched;
UPDATE searched SET id = 3 WHERE id = 1;
SELECT id, length(v), length(t) FROM searched ORDER BY id;

-- An index that cannot compare two values of its type refuses the first one: elsewhere there may be another,
-- if only of a transaction that was rolled back there.
CREATE TYPE spot AS (at point, name text);
CREATE TYPE spots AS RANGE (subtype = point[]);
CREATE TYPE texts AS RANGE (subtype = text[]);
CREATE FUNCTION first_value(type text, index text, value text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE state text;
BEGIN
    EXECUTE format('CREATE TABLE indexed (id int PRIMARY KEY, v %s)', type);
    EXECUTE format('CREATE INDEX ON indexed USING %s', index);
    BEGIN
        INSERT INTO indexed VALUES (1, NULL);
        EXECUTE format('INSERT INTO indexed VALUES (2, %s)', value);
        state := 'accepted';
    EXCEPTION WHEN feature_not_supported THEN
        state := 'refused';
    END;
    DROP TABLE indexed;
    RETURN state;
EXCEPTION WHEN undefined_function OR undefined_object THEN
    RETURN 'no such index: ' || sqlstate;
END $$;
SELECT type, index, first_value(type, index, value) FROM
    (VALUES ('point[]', $$ARRAY[point '(0,0)']$$), ('spot', $$ROW(point '(0,0)', 'x')$$), ('spot[]', $$ARRAY[ROW(NULL, 'x')]::spot[]$$),
        ('spots', $$spots(ARRAY[point '(0,0)'], NULL)$$), ('spots[]', $$ARRAY[spots(ARRAY[point '(0,0)'], NULL)]$$),
        ('spots_multirange', $$'{empty}'::spots_multirange$$),
        ('texts', $$texts(ARRAY['a'], ARRAY['b'])$$), ('text[]', $$ARRAY['a']$$), ('int4multirange', $$'{[1,2)}'$$)) AS t (type, value),
    (VALUES ('btree (v)'), ('hash (v)'), ('gist (v)'), ('spgist (v)'), ('gin (v)'), ('brin (v)')) AS i (index)
    ORDER BY type, index;

-- None of that left anything behind.
SELECT onetrip.pending_bytes(), (SELECT count(*) FROM onetrip.pending_keys());
INSERT INTO t VALUES (4000, 'goes on');
SET client_min_messages = warning;
DROP SCHEMA limits CASCADE;
