-- Goal: bytes that are wrong in any way, from the node or in a write set, cause an ERROR and nothing worse.
-- Method: real frames and write sets, damaged in a few places by fixed seeds. Under check-asan a memory checker watches.
CREATE SCHEMA fuzz;
SET search_path = fuzz;
\set frames `cd "$ONETRIP_GOLDEN" && for f in *.hex; do echo "${f%.hex}=$(sed 's/#.*//' "$f" | tr -d ' \n')"; done`
CREATE TEMP TABLE golden AS
    SELECT split_part(line, '=', 1) AS name, decode(split_part(line, '=', 2), 'hex') AS bytes
    FROM regexp_split_to_table(:'frames', E'\n') line WHERE line <> '';

-- Frames are read, are not complete yet, are refused as a protocol violation, or close the connection.
CREATE FUNCTION pg_temp.frames(seeds int, OUT answered bigint, OUT refused bigint) LANGUAGE plpgsql AS $$
DECLARE frame bytea; damaged bytea;
BEGIN
    answered := 0;
    refused := 0;
    FOR frame IN SELECT bytes FROM golden WHERE get_byte(bytes, 4) >= 128 ORDER BY name LOOP
        FOR seed IN 1..seeds LOOP
            damaged := unit.damage(frame, seed);
            BEGIN
                PERFORM unit.read_frame(damaged);
                answered := answered + 1;
            EXCEPTION WHEN protocol_violation OR character_not_in_repertoire OR internal_error THEN
                refused := refused + 1;
            END;
            BEGIN
                PERFORM unit.decode_body(get_byte(frame, 4), substr(damaged, 6));
                answered := answered + 1;
            EXCEPTION WHEN protocol_violation OR character_not_in_repertoire THEN
                refused := refused + 1;
            END;
        END LOOP;
    END LOOP;
END $$;
SELECT answered > 0 AS some_answered, refused > 0 AS some_refused FROM pg_temp.frames(300);

-- Write sets with every operation and many kinds of values.
CREATE TYPE mood AS ENUM ('sad', 'fine');
CREATE DOMAIN short AS text CHECK (length(VALUE) < 1000);
CREATE TYPE pair AS (a int, b short);
CREATE FUNCTION lowered(v text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower(v)';
CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(20, 5), a int[], ts text[], j jsonb, d json, x xml, b bytea, i inet, r int4range, m mood, p pair, ps pair[],
    tv tsvector, iv interval, z timestamptz, u uuid, c regclass, f float8, bi bit varying(40), po polygon, na name, ch char(5), mr nummultirange);
CREATE INDEX ON t (lowered(v)) WHERE id > 0;
ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
CREATE TABLE composed (a int, b text, PRIMARY KEY (b, a));
CREATE SEQUENCE s;
CREATE MATERIALIZED VIEW seen AS SELECT a, b FROM composed;
CREATE UNIQUE INDEX ON seen (b, a);
INSERT INTO t (id, v) SELECT g, repeat('long', 3000) FROM generate_series(1, 5) g;
INSERT INTO composed SELECT g, 'v' || g FROM generate_series(1, 5) g;
CREATE FUNCTION sum_of_all() RETURNS text LANGUAGE sql AS $$
    SELECT md5((SELECT string_agg(t::text, ',' ORDER BY id) FROM fuzz.t) || (SELECT string_agg(c::text, ',' ORDER BY b, a) FROM fuzz.composed c))$$;
BEGIN;
INSERT INTO t VALUES (10, 'text', 1.5, '{1,NULL,3}', '{a,NULL}', '{"k": [1, "two", null]}', '[1]', '<a/>', '\x0001ff', '10.0.0.0/8', '[1,5)', 'fine',
    '(1,one)', ARRAY[ROW(2, 'two')::pair, NULL], 'a:1 b:2', '1 day 2 hours', '2026-01-01 12:00:00+00', '00000000-0000-0000-0000-000000000001', 'pg_class',
    1e300, B'10101', '((0,0),(1,1),(2,0))', 'name', 'ab', '{[1,2),[5,6)}');
UPDATE t SET n = 2 WHERE id = 1;
UPDATE t SET id = 20, m = 'sad' WHERE id = 2;
UPDATE composed SET b = 'other' WHERE a = 3;
DELETE FROM composed WHERE a = 4;
DELETE FROM t WHERE id = 3;
SELECT nextval('s') > 0 AS drawn;
SELECT setval('s', 100);
SELECT unit.write_set() AS rows \gset
SELECT sum_of_all() AS after \gset
ROLLBACK;
BEGIN;
INSERT INTO composed VALUES (6, 'before');
ALTER TABLE composed ADD COLUMN n int DEFAULT 7;
INSERT INTO composed VALUES (7, 'behind', 1);
CREATE TABLE made (id serial PRIMARY KEY, v text);
INSERT INTO made (v) VALUES ('x');
COMMENT ON TABLE made IS 'made';
REFRESH MATERIALIZED VIEW CONCURRENTLY seen;
REFRESH MATERIALIZED VIEW seen;
CREATE MATERIALIZED VIEW seen_too AS SELECT a FROM seen;
NOTIFY heard, 'something';
SELECT pg_notify('heard', repeat('x', n)) FROM generate_series(0, 40, 20) n;
CREATE SCHEMA inner_schema CREATE TABLE inner_t (id int) CREATE VIEW inner_v AS SELECT id FROM inner_t;
SELECT unit.write_set() AS statements \gset
ROLLBACK;

-- Undamaged, they give the same rows.
SELECT unit.apply(:'rows');
SELECT sum_of_all() = :'after' AS same;
BEGIN;
SELECT unit.apply(:'statements');
SELECT * FROM composed WHERE a > 5 ORDER BY a;
ROLLBACK;

CREATE FUNCTION pg_temp.damaged(bytes bytea, seeds int, OUT applied bigint, OUT protocol bigint, OUT others bigint) LANGUAGE plpgsql AS $$
BEGIN
    applied := 0;
    protocol := 0;
    others := 0;
    FOR seed IN 1..seeds LOOP
        BEGIN
            BEGIN
                PERFORM unit.apply(unit.damage(bytes, seed));
            EXCEPTION WHEN protocol_violation THEN
                protocol := protocol + 1;
                RAISE;
            END;
            applied := applied + 1;
            RAISE EXCEPTION USING ERRCODE = 'ZZ001';
        EXCEPTION
            WHEN SQLSTATE 'ZZ001' OR protocol_violation THEN NULL;
            WHEN OTHERS THEN others := others + 1;
        END;
    END LOOP;
END $$;
SET client_min_messages = error;
SELECT applied > 0 AS applied, protocol > 0 AS protocol, others > 0 AS others FROM pg_temp.damaged(:'rows', 1500);
SELECT applied > 0 AS applied, protocol > 0 AS protocol, others > 0 AS others FROM pg_temp.damaged(:'statements', 700);
SELECT sum_of_all() = :'after' AS untouched;
SELECT onetrip.pending_bytes(), (SELECT count(*) FROM onetrip.pending_keys());
DROP TABLE golden;
DROP SCHEMA fuzz CASCADE;
