-- Goal: each function of the extension returns what docs/functions.md says, and refuses garbage with a clear error.
-- Method: call each one, as a superuser and as a user with no privileges, in and out of transactions.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA functions;
SET search_path = functions;
CREATE TABLE t (id int PRIMARY KEY);

-- position(): moves with each committed change, but not when reading.
SELECT onetrip.position() AS position \gset before_
INSERT INTO t VALUES (1);
SELECT onetrip.position() > :before_position AS moved;
SELECT onetrip.position() = (SELECT applied FROM onetrip.status) AS same, (SELECT durable <= applied FROM onetrip.status) AS durable;
BEGIN; INSERT INTO t VALUES (2); ROLLBACK;

-- advance(): an entry without changes.
SELECT onetrip.position() AS position \gset before_
BEGIN;
SELECT onetrip.advance();
SELECT onetrip.advance();
SELECT "table", mode FROM onetrip.pending_keys();
SELECT onetrip.pending_bytes();
COMMIT;
SELECT onetrip.position() > :before_position AS moved;
SELECT onetrip.position() AS position \gset before_
BEGIN; SELECT onetrip.advance(); ROLLBACK;
BEGIN READ ONLY; SELECT onetrip.advance(); COMMIT;

-- commits: each COMMIT of a change adds one to every part (but for one that few COMMITs have), and nothing else does.
SELECT count AS commits FROM onetrip.commits WHERE part = 'whole' \gset before_
INSERT INTO t VALUES (13);
SELECT count(*) FROM t;
BEGIN; INSERT INTO t VALUES (14); ROLLBACK;
CREATE TEMP TABLE mine (id int);
BEGIN; DELETE FROM t WHERE id = 13; INSERT INTO t VALUES (13); COMMIT;
SELECT part, count - :before_commits AS more, 0 <= mean_ms AND p50_ms <= p95_ms AND p95_ms <= p99_ms AND p99_ms <= max_ms
       AND mean_ms <= max_ms AS ordered FROM onetrip.commits WHERE part <> 'everywhere';
SELECT part, sum(count) = max(up_to_here) AS adds_up, bool_and(up_to_ms > 0) AS bounds FROM onetrip.commit_histogram
 WHERE part <> 'everywhere' GROUP BY part ORDER BY part;
SELECT sum(mean_ms * count) FILTER (WHERE part IN ('prepare', 'verdict', 'turn', 'local', 'everywhere'))
       / sum(mean_ms * count) FILTER (WHERE part = 'whole') BETWEEN 0.9 AND 1 AS parts_make_the_whole,
       sum(mean_ms * count) FILTER (WHERE part IN ('propose', 'replicate', 'certify'))
       / sum(mean_ms * count) FILTER (WHERE part = 'verdict') BETWEEN 0.999999 AND 1.000001 AS and_these_the_verdict
  FROM onetrip.commits;
-- So of one COMMIT, of which the node says how long its parts took.
SELECT abs(propose_ms + replicate_ms + certify_ms - verdict_ms) < 0.0005 AS adds_up,
       least(propose_ms, replicate_ms, certify_ms) >= 0 AS none_is_negative, replicate_ms > 0 AS replicates FROM onetrip.last_commit();

-- Looking at the whole cluster, and settling, ask other regions, so they are trips.
SELECT count AS looks FROM onetrip.crossings WHERE cause = 'whole cluster' \gset before_
SELECT count(*) FROM onetrip.members;
SELECT count - :before_looks AS looks FROM onetrip.crossings WHERE cause = 'whole cluster';
SET onetrip.max_trips = 0;
SELECT count(*) FROM onetrip.members;
SELECT count(*) FROM onetrip.lag;
SELECT onetrip.outcome('9-1-1', settle => true);
SELECT onetrip.outcome('9-1-1');
SELECT count - :before_looks AS looks FROM onetrip.crossings WHERE cause = 'whole cluster';
SET onetrip.max_trips = 1;
BEGIN;
SELECT count(*) FROM onetrip.members;
SELECT count(*) FROM onetrip.members;
ROLLBACK;
RESET onetrip.max_trips;

-- roles: what each role's sessions have committed.
CREATE ROLE onetrip_counted;
GRANT ALL ON t TO onetrip_counted;
SELECT current_schema() AS schema \gset
GRANT USAGE ON SCHEMA :"schema" TO onetrip_counted;
SET SESSION AUTHORIZATION onetrip_counted;
INSERT INTO t VALUES (21), (22);
BEGIN; INSERT INTO t VALUES (23); ROLLBACK;
DELETE FROM t WHERE id IN (21, 22);
SELECT count(*) FROM onetrip.roles;
RESET SESSION AUTHORIZATION;
SELECT commits, lost, rows, bytes > 0 AS bytes FROM onetrip.roles WHERE role = 'onetrip_counted';
REVOKE ALL ON t FROM onetrip_counted;
REVOKE USAGE ON SCHEMA :"schema" FROM onetrip_counted;
DROP ROLE onetrip_counted;
SELECT count(*) FROM onetrip.roles WHERE role = 'onetrip_counted';

-- Nothing is traced unless the node asks for it.
SELECT count(*) FROM onetrip.traced_commits();

-- outcome(): garbage, a transaction that never existed, null.
SELECT onetrip.outcome('');
SELECT onetrip.outcome('garbage');
SELECT onetrip.outcome('1-2');
SELECT onetrip.outcome('1-2-3-4');
SELECT onetrip.outcome('1-2-3 ');
SELECT onetrip.outcome('-1-2-3');
SELECT onetrip.outcome('1-g-3');
SELECT onetrip.outcome('99999999999-1-1');
SELECT onetrip.outcome('1-11111111111111111-1');
SELECT onetrip.outcome(repeat('1', 60));
SELECT onetrip.outcome(NULL) IS NULL AS null;
SELECT onetrip.outcome('4294967295-ffffffffffffffff-ffffffffffffffff');
SELECT onetrip.outcome('7-1-1');
BEGIN; SELECT onetrip.outcome('7-1-1'); INSERT INTO t VALUES (3); COMMIT;

-- status.
SELECT region <> '' AS region, node_id > 0 AS node_id, applying IS NULL AS idle, worker_running, evictions >= 0 AS evictions, handovers FROM onetrip.status;

-- export_snapshot_at(): refused where it is impossible.
BEGIN ISOLATION LEVEL READ COMMITTED;
INSERT INTO t VALUES (10);
SELECT onetrip.export_snapshot_at(0);
ROLLBACK;

-- Without privileges.
CREATE ROLE onetrip_test_user;
SET ROLE onetrip_test_user;
SELECT onetrip.position() > 0 AS position;
SELECT count(*) FROM onetrip.pending_keys();
SELECT onetrip.pending_bytes();
SELECT onetrip.outcome('7-1-1');
SELECT worker_running FROM onetrip.status;
SELECT count(*) FROM onetrip.traced_commits();
SELECT onetrip.advance();
SELECT onetrip.export_snapshot_at(1);
RESET ROLE;
DROP ROLE onetrip_test_user;

-- A row has one hash, whether its values are compressed, out of line or neither; by bytes, not by equality.
CREATE TYPE compared_label AS ENUM ('a', 'b');
CREATE TYPE compared_pair AS (l compared_label, ls compared_label[]);
CREATE TABLE compared (id int PRIMARY KEY, r text, w text, n numeric, f float8, p compared_pair[], gone int, t regclass);
ALTER TABLE compared DROP COLUMN gone;
INSERT INTO compared VALUES (1, 'x', repeat('abc', 10000), 1.0, 0, ARRAY[ROW('a', '{b}')::compared_pair], 'compared');
ALTER TABLE compared ALTER w SET STORAGE EXTERNAL;
INSERT INTO compared SELECT 2, r, w || '', n, f, p, t FROM compared;
UPDATE compared SET w = repeat('abc', 10000) WHERE id = 2;
INSERT INTO compared SELECT 3, r, w, 1.00, '-0', p, 'pg_class' FROM compared WHERE id = 1;
SELECT pg_column_size(a.w) <> pg_column_size(b.w) AS stored_otherwise,
    (onetrip.column_hashes(a.*))[2:] = (onetrip.column_hashes(b.*))[2:] AS same_hash
FROM compared a, compared b WHERE a.id = 1 AND b.id = 2;
SELECT array(SELECT (onetrip.column_hashes(a.*))[i] = (onetrip.column_hashes(b.*))[i] FROM generate_series(1, 7) i) AS same
FROM compared a, compared b WHERE a.id = 1 AND b.id = 3;
SELECT onetrip.row_hash(a.*) = onetrip.row_hash(b.*) AS same FROM compared a, compared b WHERE a.id = 1 AND b.id = 1;
-- What counts is the object that an OID stands for, not its number.
SELECT string_agg(onetrip.row_hash(ROW(l))::text, ',') AS hashes FROM unnest(enum_range(null::compared_label)) l \gset before_
DROP TABLE compared;
DROP TYPE compared_pair, compared_label;
CREATE TYPE compared_label AS ENUM ('a', 'b');
SELECT count(*) AS same FROM unnest(enum_range(null::compared_label)) l WHERE onetrip.row_hash(ROW(l)) = ANY (ARRAY[:before_hashes]);
DROP TYPE compared_label;
-- Rows that an index does not find.
CREATE TABLE lacking (id int PRIMARY KEY, v int);
CREATE INDEX lacking_hash ON lacking USING hash (v);
CREATE INDEX lacking_brin ON lacking USING brin (v);
INSERT INTO lacking SELECT g, g % 3 FROM generate_series(1, 100) g;
UPDATE pg_index SET indisready = false WHERE indexrelid = 'lacking_hash'::regclass;
INSERT INTO lacking VALUES (101, 2), (102, NULL);
UPDATE pg_index SET indisready = true WHERE indexrelid = 'lacking_hash'::regclass;
SELECT onetrip.rows_not_in_index('lacking_hash'), onetrip.rows_not_in_index('lacking_pkey'), onetrip.rows_not_in_index('lacking_brin');
REINDEX INDEX lacking_hash;
SELECT onetrip.rows_not_in_index('lacking_hash');
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'lacking_hash'::regclass;
SELECT onetrip.rows_not_in_index('lacking_hash');
SELECT onetrip.rows_not_in_index('lacking');
CREATE ROLE onetrip_test_user;
SET ROLE onetrip_test_user;
SELECT onetrip.rows_not_in_index(1);
RESET ROLE;
DROP TABLE lacking;
-- The rows of a table without a plan, and so without calls of functions that are in its indexes.
CREATE FUNCTION springs(v int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE NOTICE 'as %', current_user; RETURN v; END $$;
CREATE TABLE trapped (id int NOT NULL, gone int, v text) PARTITION BY LIST (id);
CREATE TABLE trapped_1 (v text, gone int, id int PRIMARY KEY);
SET client_min_messages = warning;
CREATE INDEX ON trapped_1 ((id + springs(1)));
ALTER TABLE trapped ATTACH PARTITION trapped_1 FOR VALUES IN (1, 2, 3);
ALTER TABLE trapped DROP COLUMN gone;
INSERT INTO trapped VALUES (1, repeat('x', 100000)), (2, NULL), (3, 'three');
SHOW search_path \gset
\c
SET search_path = :search_path;
SELECT (r).id, length((r).v) AS length, onetrip.row_hash(r) IS NOT NULL AS hash FROM (SELECT onetrip.rows_of(NULL::trapped_1) AS r) AS rows;
SELECT (onetrip.rows_of(NULL::trapped_1)).id LIMIT 1;
BEGIN;
DECLARE some_rows CURSOR FOR SELECT (r).id FROM (SELECT onetrip.rows_of(NULL::trapped_1) AS r) AS rows;
FETCH some_rows;
ROLLBACK;
SELECT count(*) FROM trapped_1;
SELECT onetrip.rows_of(NULL::trapped);
SELECT onetrip.rows_of(1);
SELECT count(*) FROM (SELECT onetrip.rows_of(NULL::pg_largeobject)) AS rows;
GRANT EXECUTE ON FUNCTION onetrip.rows_of(anyelement) TO onetrip_test_user;
SET ROLE onetrip_test_user;
SELECT onetrip.rows_of(NULL::pg_class);
RESET ROLE;
REVOKE EXECUTE ON FUNCTION onetrip.rows_of(anyelement) FROM onetrip_test_user;
-- A row of a write set, as text; the operation R names schema (9 bytes) and table (7).  Functions of the table's index run as its owner.
SHOW search_path \gset
\c
SET search_path = :search_path;
CREATE TABLE trapper (id int PRIMARY KEY, gone int, v text, "Odd, one" numeric);
SET client_min_messages = warning;
CREATE INDEX ON trapper ((id + springs(1)));
ALTER TABLE trapper DROP COLUMN gone;
RESET client_min_messages;
BEGIN;
INSERT INTO trapper VALUES (1, 'it''s ' || repeat(chr(233), 1000), NULL);
SELECT unit.write_set() AS inserted \gset
ROLLBACK;
SELECT substr(:'inserted'::bytea, position('\x520900'::bytea in :'inserted'::bytea), 27) AS relation,
       substr(:'inserted'::bytea, position('\x490000'::bytea in :'inserted'::bytea) + 3) AS stored \gset
ALTER TABLE trapper OWNER TO onetrip_test_user;
\c
SET search_path = :search_path;
SELECT regexp_replace(onetrip.row_text('', :'relation', NULL, :'stored'), chr(233) || '+', '~...') AS values,
       length(onetrip.row_text('', :'relation', NULL, :'stored'));
SELECT onetrip.row_text('', :'relation', '\x09', :'stored');
SELECT onetrip.row_text('', :'relation', '\x0900', :'stored');
SELECT onetrip.row_text('', :'relation', NULL, NULL);
SELECT onetrip.row_text('', :'relation', NULL, substr(:'stored'::bytea, 1, 20));
SELECT onetrip.row_text('\x4f', :'relation', NULL, :'stored');
SELECT onetrip.row_text('', substr(:'relation'::bytea, 1, 26) || '\x00', NULL, :'stored');
GRANT EXECUTE ON FUNCTION onetrip.row_text(bytea, bytea, bytea, bytea) TO onetrip_test_user;
SET ROLE onetrip_test_user;
SELECT onetrip.row_text('', :'relation', NULL, :'stored');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION onetrip.row_text(bytea, bytea, bytea, bytea) FROM onetrip_test_user;
DROP TABLE trapper;
DROP TABLE trapped;
DROP FUNCTION springs(int);
DROP ROLE onetrip_test_user;

-- A row is taken apart by what its type is by then.
CREATE TEMP TABLE changing (a text);
INSERT INTO changing VALUES ('x');
DO $$
DECLARE x changing; hash bigint; columns bigint[]; said text;
BEGIN
    FOR i IN 1..3 LOOP
        SELECT * INTO x FROM changing;
        hash := onetrip.row_hash(x);
        columns := onetrip.column_hashes(x);
        said := concat_ws(' ', said, hash = (SELECT onetrip.row_hash(c) FROM changing c), array_length(columns, 1));
        IF i = 1 THEN EXECUTE 'ALTER TABLE changing ALTER a TYPE int8 USING 4294967292'; END IF;
        IF i = 2 THEN EXECUTE 'ALTER TABLE changing ADD b text'; END IF;
    END LOOP;
    RAISE NOTICE '%', said;
END $$;
DROP TABLE changing;

-- What became of large entries of other regions.
SELECT string_agg(outcome || ' ' || count, ', ') FROM onetrip.early_writes;

-- In a local database they raise an error.
\set replicated :DBNAME
\c postgres
CREATE EXTENSION onetrip;
SELECT onetrip.position();
SELECT onetrip.pending_bytes();
SELECT onetrip.advance();
SELECT onetrip.outcome('1-1-1');
SELECT * FROM onetrip.status;
CREATE TABLE stray (a int) USING onetrip;
INSERT INTO stray VALUES (1);
SELECT * FROM stray;
DROP TABLE stray;
DROP EXTENSION onetrip;
-- All regions have one encoding.
CREATE DATABASE functions_latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0;
\c functions_latin1
CREATE EXTENSION onetrip;
\c postgres
DROP DATABASE functions_latin1;
\c :replicated

SET client_min_messages = warning;
DROP SCHEMA functions CASCADE;
