-- Goal: a sequence gives only this node's values, however it is defined, altered or set; its definition is shown as written.
-- Method: own() asks whether values are this node's; it knows slot and stride from the settings, so any node may run this.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA sequence;
SET search_path = sequence;
SELECT setting::int AS stride FROM pg_settings WHERE name = 'onetrip.sequence_stride' \gset
CREATE FUNCTION own(anchor bigint, increment bigint, VARIADIC got bigint[]) RETURNS boolean LANGUAGE sql
    BEGIN ATOMIC
    SELECT bool_and((g - anchor) % increment = 0 AND (((g - anchor) / increment) % m.stride + m.stride) % m.stride = m.slot)
    FROM unnest(got) AS g, (SELECT current_setting('onetrip.sequence_stride')::int AS stride,
                                   CASE current_setting('onetrip.sequence_stride') WHEN '1' THEN 0
                                   ELSE current_setting('onetrip.sequence_slot')::int END AS slot) AS m;
    END;
SELECT stride > 1 AS interleaved FROM (SELECT :stride AS stride) AS s;

-- Definitions of all kinds; the view shows them as written.
CREATE SEQUENCE up;
CREATE SEQUENCE down INCREMENT -2 CACHE 3;
CREATE SEQUENCE blocks INCREMENT 50 START 100 MINVALUE -1000;
CREATE SEQUENCE small AS smallint;
CREATE SEQUENCE cycling MINVALUE 5 MAXVALUE 40000 START 7 CYCLE;
CREATE SEQUENCE cycling_down INCREMENT -3 MINVALUE -50000 MAXVALUE 10 START 4 CYCLE;
CREATE UNLOGGED SEQUENCE unlogged;
CREATE TEMP SEQUENCE temporary INCREMENT 3;
SELECT sequence_name, data_type, start_value, minimum_value, maximum_value, increment, cycles
FROM onetrip.sequences WHERE schema_name = 'sequence' ORDER BY 1;
SELECT own(1, 1, nextval('up'), nextval('up'), nextval('up')) AS up,
       own(-1, -2, nextval('down'), nextval('down'), nextval('down'), nextval('down')) AS down,
       own(100, 50, nextval('blocks'), nextval('blocks')) AS blocks,
       own(1, 1, nextval('small')) AS small, own(1, 1, nextval('unlogged')) AS unlogged;
SELECT nextval('temporary'), nextval('temporary');
SELECT setval('temporary', 50), nextval('temporary');

-- A sequence too short for all nodes is refused.
\set VERBOSITY terse
CREATE SEQUENCE short MAXVALUE 1 MINVALUE 0;
CREATE SEQUENCE short INCREMENT 9223372036854775807;
\set VERBOSITY default

-- At the end of a sequence: an error without CYCLE, the node's own first value with it.
SELECT own(7, 1, setval('cycling', 40000) - 40000 + nextval('cycling')) AS wrapped_to_own;
SELECT nextval('cycling') <= 4 + 2 * :stride AS near_the_bound;
SELECT own(4, -3, setval('cycling_down', -50000) + 50000 + nextval('cycling_down')) AS wrapped_to_own;
SELECT setval('small', 32767), setval('small', 32767, false);
SELECT nextval('small');

-- setval puts every region at or after the value; it returns the value that was asked for, and that value travels.
SELECT setval('up', 1000), setval('up', 1000, false);
SELECT own(1, 1, nextval('up')), nextval('up') <= 1000 + 2 * :stride AS near;
BEGIN;
SELECT pg_catalog.setval('up', 2000, true);
SELECT * FROM setval('up', 2001);
DO $$ BEGIN PERFORM setval('up', 2002); END $$;
SELECT onetrip.setval('unlogged', 5), setval('temporary', 6);
:operations;
COMMIT;
SELECT own(1, 1, nextval('up'));
SELECT setval('up', 0);
\echo :LAST_ERROR_SQLSTATE
SELECT setval('own', 1);
CREATE FUNCTION inlined(regclass, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT setval($1, $2)';
SELECT inlined('up', 1);
\echo :LAST_ERROR_SQLSTATE

-- ALTER SEQUENCE refers to the definition as written.
ALTER SEQUENCE up RESTART;
SELECT own(1, 1, nextval('up')), nextval('up') <= 2 * :stride AS from_the_start;
ALTER SEQUENCE up RESTART WITH 500;
SELECT own(1, 1, nextval('up')), nextval('up') <= 500 + 2 * :stride AS near;
ALTER SEQUENCE up START 70000 MINVALUE 2 MAXVALUE 90000;
SELECT own(1, 1, nextval('up')) AS goes_on;
ALTER SEQUENCE up RESTART;
SELECT own(1, 1, nextval('up')), nextval('up') <= 70000 + 2 * :stride AS near;
ALTER SEQUENCE up MAXVALUE 600;
ALTER SEQUENCE small AS bigint;
ALTER SEQUENCE blocks CYCLE;
ALTER SEQUENCE unlogged RESTART WITH 33;
SELECT own(1, 1, nextval('unlogged'));
ALTER SEQUENCE up INCREMENT 7;
\echo :LAST_ERROR_SQLSTATE
ALTER SEQUENCE up INCREMENT 7 RESTART WITH 80000;
SELECT own(80000, 7, nextval('up'), nextval('up'));
BEGIN;
CREATE SEQUENCE fresh;
ALTER SEQUENCE fresh INCREMENT 9 START 11;
SELECT own(11, 9, nextval('fresh'), nextval('fresh'));
ALTER SEQUENCE fresh INCREMENT 3;
ROLLBACK;
SELECT sequence_name, data_type, start_value, minimum_value, maximum_value, increment, cycles
FROM onetrip.sequences WHERE schema_name = 'sequence' ORDER BY 1;

-- Sequences inside other statements.
CREATE TABLE t (id serial PRIMARY KEY, g bigint GENERATED ALWAYS AS IDENTITY (START 10 INCREMENT 5), v text);
CREATE TABLE alike (LIKE t INCLUDING IDENTITY);
CREATE TEMP TABLE temporary_alike (LIKE t INCLUDING IDENTITY);
ALTER TABLE alike ADD COLUMN more serial;
INSERT INTO t (v) VALUES ('a'), ('b') RETURNING own(1, 1, id) AS id, own(10, 5, g) AS g;
INSERT INTO alike (id) VALUES (1), (2) RETURNING own(10, 5, g) AS g, own(1, 1, more) AS more;
INSERT INTO temporary_alike (id) VALUES (1), (2) RETURNING g;
ALTER TABLE t ALTER COLUMN g RESTART WITH 1000;
TRUNCATE alike RESTART IDENTITY;
INSERT INTO t (v) VALUES ('c') RETURNING own(10, 5, g), g BETWEEN 1000 AND 1000 + 10 * :stride AS near;
INSERT INTO alike (id) VALUES (1) RETURNING own(10, 5, g), g <= 10 + 5 * :stride AS from_the_start;
ALTER TABLE t ALTER COLUMN g SET INCREMENT 6;
SELECT start_value, increment FROM onetrip.sequences WHERE schema_name = 'sequence' AND sequence_name = 'alike_g_seq';

-- A drawn value travels with a transaction that changes something; drawing alone costs nothing.
BEGIN;
SELECT own(1, 1, nextval('t_id_seq'));
SELECT onetrip.pending_bytes();
COMMIT;

SET client_min_messages = warning;
DROP SCHEMA sequence CASCADE;
