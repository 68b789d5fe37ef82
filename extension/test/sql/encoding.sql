-- Goal: text travels in the database's encoding whatever the client's is, and as it is stored even where it is not valid.
-- Method: the same rows from clients with different encodings are the same bytes; a cast without a function makes invalid text.
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
-- The first change also captures which table it is about, so another insert comes first.
BEGIN; INSERT INTO t VALUES ('first'); SELECT bytes_from('UTF8', 'a', 'café'); COMMIT;
BEGIN; INSERT INTO t VALUES ('second'); SELECT bytes_from('LATIN1', 'b', 'café'); COMMIT;
BEGIN; INSERT INTO t VALUES ('third'); SELECT bytes_from('SQL_ASCII', 'c', 'café'); COMMIT;
-- A text that the client's encoding does not have.
BEGIN; INSERT INTO t VALUES ('fourth'); SELECT bytes_from('LATIN1', 'd', '日本'); COMMIT;
-- What PostgreSQL stores without looking into it, other regions store without looking into it.
CREATE CAST (bytea AS text) WITHOUT FUNCTION;
CREATE CAST (text AS bytea) WITHOUT FUNCTION;
CREATE FUNCTION invalid() RETURNS text LANGUAGE sql AS $$SELECT '\x61ff62'::bytea::text$$;
SELECT octet_length(invalid());
BEGIN;
INSERT INTO t (id, v, a) VALUES (invalid(), invalid(), ARRAY['fine', NULL, invalid()]);
INSERT INTO t (id, a) VALUES ('none', '{}');
UPDATE t SET v = invalid(), j = to_jsonb(invalid()) WHERE id = 'none';
SELECT unit.write_set() AS write_set \gset
SELECT md5(string_agg((id::bytea)::text || (v::bytea)::text || (a[3]::bytea)::text, ',')) AS stored FROM t WHERE a[1] = 'fine' \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'write_set');
SELECT md5(string_agg((id::bytea)::text || (v::bytea)::text || (a[3]::bytea)::text, ',')) = :'stored' AS same FROM t WHERE a[1] = 'fine';
SELECT v::bytea FROM t WHERE id = 'none';
ROLLBACK;
SET client_min_messages = warning;
DROP CAST (bytea AS text);
DROP CAST (text AS bytea);
DROP SCHEMA encoding CASCADE;
