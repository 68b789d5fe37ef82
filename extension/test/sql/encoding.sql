-- Goal: text travels in the database's encoding whatever the client's is, and text that is not valid is refused where it comes from.
-- Method: the same rows from clients of two encodings are the same bytes; a cast without function makes invalid text.
CREATE SCHEMA encoding;
SET search_path = encoding;
CREATE TABLE t (id text PRIMARY KEY, v varchar(20), a text[], j jsonb, d json, e "char");
CREATE FUNCTION bytes_from(client text, id text, value text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE before bigint := onetrip.pending_bytes(); size bigint;
BEGIN
    PERFORM set_config('client_encoding', client, true);
    INSERT INTO encoding.t VALUES (id || value, value, ARRAY[value, NULL, value], to_jsonb(value), to_json(value), 'e');
    size := onetrip.pending_bytes() - before;
    UPDATE encoding.t SET v = 'changed' WHERE encoding.t.id = bytes_from.id || value;
    DELETE FROM encoding.t WHERE encoding.t.id = bytes_from.id || value;
    RETURN size || ' for one row, then ' || onetrip.pending_bytes() - before - size || ', client encoding is ' || current_setting('client_encoding');
END $$;
-- The first change also says which table it is about, so that one goes ahead.
BEGIN; INSERT INTO t VALUES ('first'); SELECT bytes_from('UTF8', 'a', 'café'); COMMIT;
BEGIN; INSERT INTO t VALUES ('second'); SELECT bytes_from('LATIN1', 'b', 'café'); COMMIT;
BEGIN; INSERT INTO t VALUES ('third'); SELECT bytes_from('SQL_ASCII', 'c', 'café'); COMMIT;
-- One that the client's encoding does not have.
BEGIN; INSERT INTO t VALUES ('fourth'); SELECT bytes_from('LATIN1', 'd', '日本'); COMMIT;
-- An error in between leaves the client its encoding.
SET client_encoding = 'LATIN1';
\set VERBOSITY terse
CREATE CAST (bytea AS text) WITHOUT FUNCTION;
CREATE FUNCTION invalid() RETURNS text LANGUAGE sql AS $$SELECT '\x61ff62'::bytea::text$$;
SELECT octet_length(invalid());
INSERT INTO t (id) VALUES (invalid());
\echo :LAST_ERROR_SQLSTATE
INSERT INTO t (id, v) VALUES ('v', invalid());
INSERT INTO t (id, a) VALUES ('a', ARRAY['fine', NULL, invalid()]);
INSERT INTO t (id, a) VALUES ('b', ARRAY[['fine', 'fine'], [NULL, invalid()]]);
INSERT INTO t (id, j) VALUES ('j', to_jsonb(invalid()));
INSERT INTO t (id, a) VALUES ('none', '{}');
UPDATE t SET v = invalid() WHERE id = 'none';
SHOW client_encoding;
RESET client_encoding;
SELECT id, v, a FROM t ORDER BY id COLLATE "C";
SET client_min_messages = warning;
DROP CAST (bytea AS text);
DROP SCHEMA encoding CASCADE;
