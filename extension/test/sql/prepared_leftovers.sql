-- Goal: PREPARE TRANSACTION loses nothing silently: whatever else a transaction has left behind is kept or refused, or it is known why it may be lost.
-- Method: a list of what a transaction can leave behind, from PostgreSQL's own PrepareTransaction(); each is done beside a change of an
--         onetrip table, prepared, and committed if it could be. For catalogs the list is made from pg_class.
\set VERBOSITY terse
CREATE TABLE left_rows (id int PRIMARY KEY, v text);
INSERT INTO left_rows SELECT g, 'before' FROM generate_series(1, 2000) g;
CREATE TABLE left_t (id int PRIMARY KEY, v text, s serial);
INSERT INTO left_t VALUES (1, 'a'), (2, 'b');
CREATE TABLE left_emptied (id int PRIMARY KEY, s serial);
INSERT INTO left_emptied SELECT generate_series(1, 200);
CREATE TABLE left_child (id int PRIMARY KEY, t int REFERENCES left_t);
CREATE TABLE left_local (id int PRIMARY KEY, v text) USING heap;
INSERT INTO left_local VALUES (1, 'a'), (2, 'b');
CREATE UNLOGGED TABLE left_unlogged (id int PRIMARY KEY);
INSERT INTO left_unlogged VALUES (1);
CREATE TABLE left_to_local (id int PRIMARY KEY, l int REFERENCES left_local);
CREATE TABLE left_parent (id int PRIMARY KEY);
INSERT INTO left_parent SELECT generate_series(1, 9);
CREATE TABLE left_of_parent (id int PRIMARY KEY, p int REFERENCES left_parent) USING heap;
INSERT INTO left_of_parent VALUES (1, 1);
CREATE SEQUENCE left_numbers;
CREATE UNLOGGED SEQUENCE left_own_numbers;
CREATE VIEW left_view AS SELECT * FROM left_local;
CREATE MATERIALIZED VIEW left_mat AS SELECT count(*) AS rows FROM left_parent;
CREATE FUNCTION left_sends() RETURNS pg_lsn LANGUAGE sql AS 'SELECT pg_logical_emit_message(true, ''a'', ''b'')';
SELECT lo_create(4711), lo_create(4712);
SELECT pg_replication_origin_create('left_origin') IS NOT NULL AS made;

-- `becomes`: kept, refused, or why it may be lost. `kept`: true once it is committed.
CREATE TABLE left_case (n int GENERATED ALWAYS AS IDENTITY, what text, run text[], becomes text, kept text, after text) USING heap;
INSERT INTO left_case (what, run, becomes, kept) VALUES
-- rows and row locks
('nothing else', ARRAY['SELECT 1'], 'kept', 'true'),
('a row of a local table', ARRAY['INSERT INTO left_local VALUES (9)'], 'refused', NULL),
('the same, by a trigger or a function', ARRAY['DO ''BEGIN UPDATE left_local SET v = v; END'''], 'refused', NULL),
('the same, by C code that lets go of its lock', ARRAY['SELECT unit.delete_unseen(''left_local'', ''(0,1)'')'], 'refused', NULL),
('the same, in a savepoint that is rolled back', ARRAY['SAVEPOINT s', 'SELECT unit.delete_unseen(''left_local'', ''(0,1)'')', 'ROLLBACK TO s'], 'kept', 'true'),
('a row of an unlogged table', ARRAY['INSERT INTO left_unlogged VALUES (9)'], 'refused', NULL),
('a local table, emptied', ARRAY['TRUNCATE left_unlogged'], 'refused', NULL),
('a row lock on a local table', ARRAY['SELECT FROM left_local WHERE id = 1 FOR UPDATE'], 'refused', NULL),
('the same, weaker', ARRAY['SELECT FROM left_local WHERE id = 1 FOR KEY SHARE'], 'refused', NULL),
('the same, by a view', ARRAY['SELECT FROM left_view WHERE id = 1 FOR SHARE'], 'refused', NULL),
('the same, in a query within a query', ARRAY['SELECT count(*) FROM (SELECT FROM left_local FOR UPDATE) s'], 'refused', NULL),
('the same, by a cursor that is open', ARRAY['DECLARE c CURSOR FOR SELECT FROM left_local FOR UPDATE', 'FETCH c'], 'refused', NULL),
('the same, of an unlogged table', ARRAY['SELECT FROM left_unlogged FOR NO KEY UPDATE'], 'refused', NULL),
('the same, of no row', ARRAY['SELECT FROM left_local WHERE id = 77 FOR UPDATE'], 'kept', 'true'),
('the same, in a savepoint that is rolled back', ARRAY['SAVEPOINT s', 'SELECT FROM left_local FOR UPDATE', 'ROLLBACK TO s'], 'kept', 'true'),
('a row that refers to a local one', ARRAY['INSERT INTO left_to_local VALUES (1, 1)'], 'refused', NULL),
('a row that refers to nothing', ARRAY['INSERT INTO left_to_local VALUES (2, NULL)'], 'kept', 'EXISTS (SELECT FROM left_to_local WHERE id = 2)'),
('a row to which no local one refers, deleted', ARRAY['DELETE FROM left_parent WHERE id = 2'], 'kept', 'NOT EXISTS (SELECT FROM left_parent WHERE id = 2)'),
('the same, and a lock on a local one', ARRAY['DELETE FROM left_parent WHERE id = 3', 'SELECT FROM left_of_parent FOR SHARE'], 'refused', NULL),
('a row that refers to one of a onetrip table', ARRAY['INSERT INTO left_child VALUES (1, 1)'], 'kept', 'EXISTS (SELECT FROM left_child)'),
('a onetrip table, emptied', ARRAY['TRUNCATE left_emptied RESTART IDENTITY'], 'kept', 'NOT EXISTS (SELECT FROM left_emptied) AND nextval(''left_emptied_s_seq'') < 100'),
('the same, with a sequence that goes on', ARRAY['INSERT INTO left_emptied VALUES (1)', 'TRUNCATE left_emptied', 'INSERT INTO left_emptied VALUES (2)'], 'kept', '(SELECT array_agg(id) FROM left_emptied) = ARRAY[2]'),
('the same, with a local one', ARRAY['TRUNCATE left_emptied, left_unlogged'], 'refused', NULL),
('the same, by way of a local one', ARRAY['TRUNCATE left_local CASCADE'], 'refused', NULL),
('a materialized view, filled', ARRAY['INSERT INTO left_parent VALUES (100)', 'REFRESH MATERIALIZED VIEW left_mat'], 'kept', '(SELECT rows FROM left_mat) = 9'),
-- table locks and reads
('a table lock for row locks', ARRAY['LOCK TABLE left_local IN ROW SHARE MODE'], 'refused', NULL),
('the same, by a view', ARRAY['LOCK TABLE left_view IN ROW SHARE MODE'], 'refused', NULL),
('a table lock against writers', ARRAY['LOCK TABLE left_local IN SHARE MODE'], 'refused', NULL),
('a read of a local table', ARRAY['SELECT FROM left_local'], 'kept', 'true'),
('the same, SERIALIZABLE', ARRAY['BEGIN ISOLATION LEVEL SERIALIZABLE', 'SELECT FROM left_local'], 'refused', NULL),
('the same, of an unlogged table', ARRAY['BEGIN ISOLATION LEVEL SERIALIZABLE', 'SELECT FROM left_unlogged'], 'refused', NULL),
('a SERIALIZABLE read of a onetrip table', ARRAY['BEGIN ISOLATION LEVEL SERIALIZABLE', 'SELECT FROM left_child'], 'kept', 'true'),
('a SERIALIZABLE read of a materialized view', ARRAY['BEGIN ISOLATION LEVEL SERIALIZABLE', 'SELECT FROM left_mat'], 'kept', 'true'),
-- catalogs
('a catalog, written', ARRAY['UPDATE pg_class SET reltuples = reltuples WHERE relname = ''left_t'''], 'refused', NULL),
('a shared catalog, written', ARRAY['UPDATE pg_database SET datconnlimit = datconnlimit'], 'refused', NULL),
('the same, in a savepoint that is rolled back', ARRAY['SAVEPOINT s', 'UPDATE pg_database SET datconnlimit = datconnlimit', 'ROLLBACK TO s'], 'kept', 'true'),
('a table of the information schema, written', ARRAY['UPDATE information_schema.sql_features SET comments = ''x'''], 'refused', NULL),
('a catalog, written by a function', ARRAY['SELECT pg_replication_origin_create(''left_new'')'], 'refused', NULL),
('the same, in a savepoint that is rolled back', ARRAY['SAVEPOINT s', 'SELECT pg_replication_origin_create(''left_new'')', 'ROLLBACK TO s'], 'kept', 'true'),
('a definition', ARRAY['COMMENT ON TABLE left_t IS ''x'''], 'refused', NULL),
('a definition of this server', ARRAY['ALTER DATABASE postgres CONNECTION LIMIT -1'], 'refused', NULL),
('a grant', ARRAY['GRANT SELECT ON left_t TO PUBLIC'], 'refused', NULL),
-- files
('an index, built anew', ARRAY['REINDEX INDEX left_t_pkey'], 'refused', NULL),
('the same, after a table was emptied', ARRAY['TRUNCATE left_emptied', 'REINDEX INDEX left_t_pkey'], 'refused', NULL),
('the same, before it', ARRAY['REINDEX INDEX left_t_pkey', 'TRUNCATE left_emptied'], 'refused', NULL),
('the same, after it was emptied in vain', ARRAY['SAVEPOINT s', 'TRUNCATE left_emptied', 'ROLLBACK TO s', 'REINDEX INDEX left_t_pkey'], 'refused', NULL),
('the same, after a view was filled', ARRAY['REFRESH MATERIALIZED VIEW left_mat', 'REINDEX INDEX left_t_pkey'], 'refused', NULL),
('an index of a catalog, built anew', ARRAY['REINDEX INDEX pg_class_oid_index'], 'refused', NULL),
('a table, put in order', ARRAY['CLUSTER left_t USING left_t_pkey'], 'refused', NULL),
('statistics', ARRAY['ANALYZE left_t'], 'each server makes its own again', 'true'),
-- large objects
('a large object, made', ARRAY['SELECT lo_create(4713)'], 'kept', 'EXISTS (SELECT FROM pg_largeobject_metadata WHERE oid = 4713)'),
('a large object, written', ARRAY['SELECT lo_put(4711, 0, ''x'')'], 'kept', 'lo_get(4711) = ''x'''),
('a large object, read', ARRAY['SELECT lo_get(4711)'], 'kept', 'true'),
('a large object, deleted', ARRAY['SELECT lo_unlink(4712)'], 'kept', 'NOT EXISTS (SELECT FROM pg_largeobject_metadata WHERE oid = 4712)'),
('a row lock on a page of one', ARRAY['SELECT lo_get(4711)', 'SELECT FROM pg_largeobject FOR UPDATE'], 'refused', NULL),
('a large object, given away past its functions', ARRAY['UPDATE pg_largeobject_metadata SET lomowner = lomowner'], 'refused', NULL),
-- sequences
('a value of a sequence', ARRAY['SELECT nextval(''left_numbers'')'], 'kept', 'nextval(''left_numbers'') > 1'),
('a value of an unlogged one', ARRAY['SELECT nextval(''left_own_numbers'')'], 'kept', 'nextval(''left_own_numbers'') > 1'),
('a sequence, set', ARRAY['SELECT setval(''left_numbers'', 1000)'], 'refused', NULL),
('an unlogged one, set', ARRAY['SELECT setval(''left_own_numbers'', 1000)'], 'kept', 'nextval(''left_own_numbers'') > 1000'),
-- messages, listeners, sessions
('a message', ARRAY['SELECT pg_logical_emit_message(true, ''a'', ''b'')'], 'refused', NULL),
('a message of bytes', ARRAY['SELECT pg_logical_emit_message(true, ''a'', ''\x00''::bytea)'], 'refused', NULL),
('the same, in a function', ARRAY['DO ''BEGIN PERFORM pg_logical_emit_message(true, ''''a'''', ''''b''''); END'''], 'refused', NULL),
('the same, in a function that becomes part of the query', ARRAY['SELECT left_sends()'], 'refused', NULL),
('a message of another transaction', ARRAY['SELECT left_sends()', 'ROLLBACK', 'BEGIN'], 'kept', 'true'),
('a notification', ARRAY['NOTIFY left_channel'], 'refused', NULL),
('a listener', ARRAY['LISTEN left_channel'], 'refused', NULL),
('a temporary table', ARRAY['CREATE TEMPORARY TABLE left_temporary (id int)'], 'refused', NULL),
('a cursor that stays', ARRAY['DECLARE left_cursor CURSOR WITH HOLD FOR SELECT 1'], 'refused', NULL),
('a cursor', ARRAY['DECLARE left_cursor CURSOR FOR SELECT 1'], 'kept', 'true'),
('a snapshot, exported', ARRAY['SELECT pg_export_snapshot()'], 'refused', NULL),
('a prepared statement', ARRAY['PREPARE left_statement AS SELECT 1'], 'kept', 'EXISTS (SELECT FROM pg_prepared_statements WHERE name = ''left_statement'')'),
('an advisory lock of the transaction', ARRAY['SELECT pg_advisory_xact_lock(1)'], 'means nothing to other regions; docs/limits.md says so', 'pg_try_advisory_lock(1)'),
('an advisory lock of the session', ARRAY['SELECT pg_advisory_lock(4712)'], 'kept', 'EXISTS (SELECT FROM pg_locks WHERE locktype = ''advisory'' AND objid = 4712)'),
('an identifier of a transaction', ARRAY['SELECT pg_current_xact_id()'], 'each server has its own; docs/limits.md says so', 'true'),
('an identifier of a onetrip transaction', ARRAY['SELECT onetrip.current_transaction_id()'], 'refused', NULL);
-- replication
INSERT INTO left_case (what, run, becomes, kept, after) VALUES
('a replication origin of the session', ARRAY['SELECT pg_replication_origin_session_setup(''left_origin'')'], 'kept',
 'pg_replication_origin_session_is_setup()', 'SELECT pg_replication_origin_session_reset()'),
('the same, with a position', ARRAY['SELECT pg_replication_origin_session_setup(''left_origin'')', 'SELECT pg_replication_origin_xact_setup(''0/77'', now())'], 'refused',
 NULL, 'SELECT pg_replication_origin_session_reset()'),
('the position of an origin', ARRAY['SELECT pg_replication_origin_advance(''left_origin'', ''0/1234'')'], 'kept',
 'pg_replication_origin_progress(''left_origin'', false) = ''0/1234''', NULL),
('a replication slot', ARRAY['SELECT pg_create_physical_replication_slot(''left_slot'')'], 'kept',
 'EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = ''left_slot'')', 'SELECT pg_drop_replication_slot(''left_slot'')'),
('a restore point', ARRAY['SELECT pg_create_restore_point(''left_point'')'], 'kept', 'true', NULL);

-- An error is PREPARE TRANSACTION's; what is refused, and only that, must have one.
\set ECHO none
\o /dev/null
SELECT line FROM left_case, LATERAL (
           SELECT 1, format('DO $x$ BEGIN RAISE INFO %L; END $x$', what)
    UNION ALL SELECT 2, CASE WHEN run[1] LIKE 'BEGIN%' THEN run[1] ELSE 'BEGIN' END
    UNION ALL SELECT 3, format('UPDATE left_rows SET v = ''after'' WHERE id = %s', n) WHERE NOT 'ROLLBACK' = ANY (run)
    UNION ALL SELECT 3 + o, r FROM unnest(run) WITH ORDINALITY u(r, o) WHERE o > 1 OR r NOT LIKE 'BEGIN%'
    UNION ALL SELECT 90, format('UPDATE left_rows SET v = ''after'' WHERE id = %s', n) WHERE 'ROLLBACK' = ANY (run)
    UNION ALL SELECT 91, format('PREPARE TRANSACTION %L', what || n)
    UNION ALL SELECT 92, format('COMMIT PREPARED %L', what || n) WHERE becomes <> 'refused'
    UNION ALL SELECT 93, format('UPDATE left_case SET kept = (%s) WHERE n = %s', kept, n) WHERE kept IS NOT NULL
    UNION ALL SELECT 94, after WHERE after IS NOT NULL) l(place, line)
 ORDER BY n, place \gexec
\o
\set ECHO all
SELECT count(*) > 70 AS many, count(*) FILTER (WHERE becomes = 'refused') > 40 AS refused FROM left_case;
-- Nothing here: a change that is lost without an error, or the other way round.
SELECT what, becomes, v, kept FROM left_case JOIN left_rows ON id = n
 WHERE v <> CASE becomes WHEN 'refused' THEN 'before' ELSE 'after' END OR kept <> 'true';
SELECT what, becomes FROM left_case WHERE becomes NOT IN ('kept', 'refused') ORDER BY n;
SELECT gid FROM onetrip.prepared_xacts;

-- Each table that the server has of its own, with a row lock and with a write; nothing must be prepared. Pages of large objects are captured.
\setenv PGHOST :HOST
\setenv PGPORT :PORT
\setenv PGUSER :USER
\setenv PGDATABASE :DBNAME
\pset tuples_only on
\pset format unaligned
\o |psql -XAtq -v VERBOSITY=terse 2>&1 | sed 's/^psql:[^ ]* //; s/table "[a-z_.]*"/table .../' | sort -u
SELECT format(E'BEGIN;\nUPDATE left_rows SET v = ''catalog'' WHERE id = 2000;\n%s;\nPREPARE TRANSACTION ''%s'';', statement, row_number() OVER ())
  FROM (SELECT oid::regclass AS name FROM pg_class
         WHERE relkind = 'r' AND relnamespace IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)) c,
       LATERAL (SELECT format('SELECT FROM %s FOR KEY SHARE LIMIT 1', name)
                UNION ALL SELECT format('DELETE FROM %s WHERE false', name) WHERE name <> 'pg_largeobject'::regclass) s(statement);
\o
\pset tuples_only off
\pset format aligned
SELECT count(*) FROM onetrip.prepared_xacts;
SELECT v FROM left_rows WHERE id = 2000;

-- Without onetrip tables: what has drawn from a sequence is prepared in the cluster, whether or not PostgreSQL logs the value.
CHECKPOINT;
BEGIN;
SELECT nextval('left_numbers') > 0 AS drawn;
SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS has_id;
PREPARE TRANSACTION 'a';
BEGIN;
SELECT nextval('left_numbers') > 0 AS drawn;
SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS has_id;
PREPARE TRANSACTION 'b';
SELECT gid FROM onetrip.prepared_xacts ORDER BY gid;
COMMIT PREPARED 'a';
ROLLBACK PREPARED 'b';
-- Not with what only PostgreSQL could keep.
BEGIN;
SELECT nextval('left_numbers') > 0 AS drawn, left_sends() IS NOT NULL AS sent;
PREPARE TRANSACTION 'c';
BEGIN;
SELECT nextval('left_numbers') > 0 AS drawn FROM left_local FOR UPDATE LIMIT 1;
PREPARE TRANSACTION 'd';
BEGIN;
SELECT nextval('left_numbers') > 0 AS drawn, pg_replication_origin_create('left_new') IS NOT NULL AS made;
PREPARE TRANSACTION 'e';
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT FROM left_local WHERE id = 1;
PREPARE TRANSACTION 'f';
SELECT count(*) FROM onetrip.prepared_xacts;

SELECT pg_advisory_unlock_all();
SELECT pg_replication_origin_drop('left_origin');
SELECT lo_unlink(4711), lo_unlink(4713);
DEALLOCATE left_statement;
DROP TABLE left_case, left_rows, left_child, left_t, left_emptied, left_to_local, left_unlogged, left_of_parent CASCADE;
DROP MATERIALIZED VIEW left_mat;
DROP VIEW left_view;
DROP TABLE left_local, left_parent;
DROP SEQUENCE left_numbers, left_own_numbers;
DROP FUNCTION left_sends;
