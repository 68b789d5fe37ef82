-- Goal: a sequence gives only this node's values, however it is defined, altered or set; its definition is shown as written.
-- Method: own() tells whether values are this node's; it gets slot and stride from the settings, so any node may run this.
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

-- A sequence that is too short for all nodes gives every value, and its transactions are entries of the log with its position.
CREATE SEQUENCE short MAXVALUE 3 CACHE 5;
CREATE SEQUENCE wide INCREMENT 9223372036854775807 MINVALUE -10 START -10;
CREATE SEQUENCE short_cycle AS smallint MINVALUE -1 MAXVALUE 1 CYCLE;
SELECT sequencename, start_value, min_value, max_value, increment_by, cache_size, last_value FROM pg_sequences
    WHERE sequencename IN ('short', 'wide', 'short_cycle') ORDER BY 1;
SELECT proposals AS before FROM onetrip.status \gset
SELECT nextval('short'), nextval('short');
SELECT proposals - :before AS entries FROM onetrip.status;
SELECT seqcache, onetrip.sequence_share_here(seqrelid, 'cache') AS here FROM pg_sequence WHERE seqrelid = 'short'::regclass;
BEGIN;
SELECT nextval('short');
SELECT nextval('short_cycle') FROM generate_series(1, 5);
SELECT nextval('wide'), nextval('wide');
COMMIT;
SELECT nextval('short');
\echo :LAST_ERROR_SQLSTATE
SELECT last_value, is_called FROM short;
SELECT setval('short', 2, false), nextval('short'), setval('short', 1), nextval('short'), currval('short'), lastval();
ALTER SEQUENCE short RESTART WITH 3;
SELECT nextval('short');
-- It becomes long, and short again: other nodes may be ahead then, so that needs RESTART.
ALTER SEQUENCE short MAXVALUE 100000;
SELECT own(1, 1, nextval('short')), nextval('short') BETWEEN 4 AND 4 + 3 * :stride AS goes_on;
ALTER SEQUENCE short MAXVALUE 300 RESTART WITH 20;
SELECT own(1, 1, nextval('short')), nextval('short') >= 20 AS goes_on;
\set VERBOSITY terse
ALTER SEQUENCE short INCREMENT 1000000 MAXVALUE 1000001;
\echo :LAST_ERROR_SQLSTATE
ALTER SEQUENCE short START 298;
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY default
ALTER SEQUENCE short START 28 MAXVALUE 31 RESTART;
SELECT nextval('short'), nextval('short');
ALTER SEQUENCE short INCREMENT 2;
SELECT nextval('short');
BEGIN;
CREATE SEQUENCE short_fresh;
ALTER SEQUENCE short_fresh MAXVALUE 2;
SELECT nextval('short_fresh'), nextval('short_fresh');
COMMIT;
CREATE TABLE seat (id smallint GENERATED ALWAYS AS IDENTITY (MAXVALUE 3) PRIMARY KEY, v text);
COPY seat (v) FROM stdin;
a
b
\.
INSERT INTO seat (v) VALUES ('c') RETURNING id;
INSERT INTO seat (v) VALUES ('d');
TRUNCATE seat RESTART IDENTITY;
INSERT INTO seat (v) VALUES ('e') RETURNING id;
DROP TABLE seat;
-- Two columns that look the same in the region with slot 0: which one is copied does not follow from that.
CREATE TABLE twins (a int GENERATED ALWAYS AS IDENTITY (MAXVALUE 20), s serial,
    b int GENERATED ALWAYS AS IDENTITY (INCREMENT :stride MAXVALUE 20));
CREATE TABLE of_twins (LIKE twins INCLUDING IDENTITY);
SELECT sequence_name, increment = 1 AS one, increment = :stride AS stride, increment_here = increment AS short
FROM onetrip.sequences WHERE sequence_name ~ '^of_twins' ORDER BY 1;
DROP TABLE of_twins, twins;
-- From PostgreSQL 17 on, a partition has the identity columns of its root, in an order of its own.
SELECT current_setting('server_version_num')::int >= 170000 AS shares_identity \gset
\if :shares_identity
CREATE TABLE root (a int GENERATED ALWAYS AS IDENTITY (MAXVALUE 20), k int,
    b int GENERATED ALWAYS AS IDENTITY (INCREMENT :stride MAXVALUE 20)) PARTITION BY LIST (k);
CREATE TABLE part (b int NOT NULL, k int, a int NOT NULL);
ALTER TABLE root ATTACH PARTITION part FOR VALUES IN (1);
CREATE TABLE of_part (LIKE part INCLUDING IDENTITY);
DO $$ BEGIN
    ASSERT (SELECT increment = 1 AND increment_here > 1 FROM onetrip.sequences WHERE sequence_name = 'of_part_a_seq');
    ASSERT (SELECT increment > 1 AND increment_here = increment FROM onetrip.sequences WHERE sequence_name = 'of_part_b_seq');
END $$;
DROP TABLE of_part, root;
\endif
DROP SEQUENCE short, wide, short_cycle, short_fresh;

-- At the end: an error without CYCLE, the node's own first value with CYCLE.
SELECT own(7, 1, setval('cycling', 40000) - 40000 + nextval('cycling')) AS wrapped_to_own;
SELECT nextval('cycling') <= 4 + 2 * :stride AS near_the_bound;
SELECT own(4, -3, setval('cycling_down', -50000) + 50000 + nextval('cycling_down')) AS wrapped_to_own;
SELECT setval('small', 32767), setval('small', 32767, false);
SELECT nextval('small');

-- setval: every region continues at or after the value; the given value is returned, and travels.
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
SELECT inlined('up', 3000), nextval('up') > 3000 AS goes_on;
CREATE FUNCTION inlined_too(regclass, bigint) RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT setval($1, $2, true); END;
SELECT inlined_too('up', 4000), nextval('up') > 4000 AS goes_on;
CREATE TABLE filled (id int PRIMARY KEY, v bigint DEFAULT setval('up', 1));
COPY filled (id) FROM stdin;
1
\.
\echo :LAST_ERROR_SQLSTATE
DROP TABLE filled;

-- ALTER SEQUENCE changes the definition as written.
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

-- A used value travels with a transaction that changes something, and alone costs nothing.
BEGIN;
SELECT own(1, 1, nextval('t_id_seq'));
SELECT onetrip.pending_bytes();
COMMIT;

-- What an event trigger makes while CREATE SEQUENCE runs is not taken for the new sequence.
CREATE FUNCTION makes_more() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass('made_beside') IS NULL THEN
        CREATE TABLE made_beside (id serial);
        CREATE VIEW made_beside_too AS SELECT 1 AS one;
    END IF;
END $$;
CREATE EVENT TRIGGER makes_more ON ddl_command_start WHEN TAG IN ('CREATE SEQUENCE') EXECUTE FUNCTION makes_more();
CREATE SEQUENCE behind_trigger;
DROP EVENT TRIGGER makes_more;
SELECT own(1, 1, nextval('behind_trigger'), nextval('behind_trigger')) AS new,
    own(1, 1, nextval('made_beside_id_seq'), nextval('made_beside_id_seq')) AS beside;

-- What LIKE copies is what it is once event triggers have fired.
CREATE FUNCTION alters_source() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    ALTER TABLE t ALTER COLUMN g SET START 15 RESTART;
END $$;
CREATE EVENT TRIGGER alters_source ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION alters_source();
CREATE TABLE alike_too (LIKE t INCLUDING IDENTITY);
DROP EVENT TRIGGER alters_source;
SELECT sequence_name, start_value, increment, increment_here = increment * :stride AS share FROM onetrip.sequences
WHERE schema_name = 'sequence' AND sequence_name IN ('t_g_seq', 'alike_too_g_seq') ORDER BY 1;

-- What an event trigger draws from the sequence that the statement makes or alters is this node's, and is given once.
CREATE TABLE audit (id serial, at text);
CREATE TABLE audit_of_short (id smallint GENERATED ALWAYS AS IDENTITY (MAXVALUE 7), at text);
CREATE FUNCTION audits() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('INSERT INTO %I (at) VALUES ($1)', current_setting('sequence.audit')) USING tg_event;
    IF tg_tag = 'CREATE SEQUENCE' AND tg_event = 'ddl_command_end' THEN
        PERFORM nextval('drawn_at_once');
    END IF;
END $$;
CREATE EVENT TRIGGER audits_start ON ddl_command_start WHEN TAG IN ('CREATE SEQUENCE', 'ALTER SEQUENCE') EXECUTE FUNCTION audits();
CREATE EVENT TRIGGER audits_end ON ddl_command_end WHEN TAG IN ('CREATE SEQUENCE', 'ALTER SEQUENCE') EXECUTE FUNCTION audits();
SET sequence.audit = 'audit';
BEGIN;
CREATE SEQUENCE drawn_at_once;
ALTER SEQUENCE audit_id_seq MAXVALUE 1000000;
ALTER SEQUENCE audit_id_seq CACHE 10;
ALTER SEQUENCE audit_id_seq RESTART WITH 1000 CACHE 1;
SET sequence.audit = 'audit_of_short';
ALTER SEQUENCE audit_of_short_id_seq CYCLE;
ALTER SEQUENCE audit_of_short_id_seq NO CYCLE;
SELECT regexp_replace(operation, E'id=\'\\d+\'', 'id') AS operation FROM unit.operations() AS operation;
COMMIT;
DROP EVENT TRIGGER audits_start;
DROP EVENT TRIGGER audits_end;
INSERT INTO audit (at) VALUES ('behind'), ('them');
INSERT INTO audit_of_short (at) VALUES ('behind');
SELECT own(1, 1, id) AS own, id > 1000 AS restarted, count(*) OVER (PARTITION BY id) AS times, at FROM audit ORDER BY id;
SELECT * FROM audit_of_short ORDER BY id;
SELECT own(1, 1, currval('drawn_at_once'), last_value, nextval('drawn_at_once')) AS own, currval('drawn_at_once') > last_value AS not_again FROM drawn_at_once;

-- Who asks for a definition gets it as it was written, however they ask; the server itself has the node's share.
CREATE SEQUENCE shown INCREMENT 10 START 20 MINVALUE 5 MAXVALUE 100000 CYCLE CACHE 2;
CREATE TABLE with_sequences (id int GENERATED ALWAYS AS IDENTITY (START 7), s bigserial);
SELECT seqstart, seqincrement, seqmin, seqmax, seqcache, seqcycle FROM pg_sequence WHERE seqrelid = 'shown'::regclass;
SELECT start_value, min_value, max_value, increment_by, last_value FROM pg_sequences WHERE sequencename = 'shown';
SELECT start_value, minimum_value, maximum_value, increment FROM information_schema.sequences WHERE sequence_name = 'shown';
SELECT identity_start, identity_increment FROM information_schema.columns WHERE table_schema = 'sequence' AND column_name = 'id' AND table_name = 'with_sequences';
\d shown
WITH s AS (SELECT * FROM pg_sequence) SELECT seqincrement, (SELECT seqstart FROM pg_sequence x WHERE x.seqrelid = s.seqrelid),
    EXISTS (SELECT FROM pg_sequence x WHERE x.seqincrement = 10 AND x.seqrelid = s.seqrelid)
    FROM s JOIN pg_sequence USING (seqrelid, seqincrement) WHERE s.seqrelid = 'shown'::regclass;
SELECT (s).seqincrement, (s).seqcache FROM (SELECT s FROM pg_sequence s WHERE seqrelid = 'shown'::regclass) AS s;
CREATE VIEW seen AS SELECT seqincrement FROM pg_sequence WHERE seqrelid = 'shown'::regclass;
CREATE FUNCTION seen() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT seqincrement FROM pg_sequence WHERE seqrelid = 'shown'::regclass $$;
PREPARE seen AS SELECT seqincrement FROM pg_sequence WHERE seqrelid = 'shown'::regclass;
SELECT *, seen() FROM seen;
EXECUTE seen;
ALTER SEQUENCE shown INCREMENT 20 RESTART;
SELECT *, seen() FROM seen;
EXECUTE seen;
-- Not where rows of the catalog itself are meant, or the share is.
SELECT seqincrement = 20 * :stride AS share FROM pg_sequence WHERE seqrelid = 'shown'::regclass AND ctid IS NOT NULL;
SELECT seqincrement = 20 * :stride AS share FROM pg_sequence WHERE seqrelid = 'shown'::regclass FOR SHARE;
SET onetrip.show_sequence_shares = on;
SELECT seqincrement = 20 * :stride AS share FROM pg_sequence WHERE seqrelid = 'shown'::regclass;
RESET onetrip.show_sequence_shares;
SELECT start_value, increment, increment_here = 20 * :stride AS share FROM onetrip.sequences WHERE sequence_name = 'shown';
SELECT onetrip.sequence_defined('shown'::regclass, 'middle', 0);
SELECT onetrip.sequence_share_here(0, 'start') IS NULL AS none, onetrip.sequence_defined(0, 'start', 3) AS given;
SELECT pg_sequence_last_value('shown') IS NULL AS unused, nextval('shown') <= pg_sequence_last_value('shown') AS used;
-- There is none before the first.
CREATE SEQUENCE set_to_first START 97 MINVALUE 1;
SELECT setval('set_to_first', 1, false);
SELECT last_value < 1 AS before_the_first FROM pg_sequences WHERE sequencename = 'set_to_first';
SET ROLE pg_monitor;
SELECT seqincrement FROM pg_sequence JOIN pg_class c ON c.oid = seqrelid WHERE relname = 'shown';
SELECT pg_sequence_last_value(c.oid) FROM pg_class c WHERE relname = 'shown';
SELECT last_value FROM pg_sequences WHERE sequencename = 'shown';
RESET ROLE;
DROP FUNCTION seen();
DROP VIEW seen;

-- Who may not call what PostgreSQL has may not call what calls of it go to.
\set ON_ERROR_ROLLBACK on
BEGIN;
CREATE ROLE sequence_user;
GRANT USAGE ON SCHEMA sequence TO sequence_user;
GRANT ALL ON SEQUENCE up TO sequence_user;
SET LOCAL ROLE sequence_user;
SELECT setval('up', 5000), onetrip.setval('up', 5000, true), onetrip.nextval('up') > 5000 AS next;
SELECT pg_sequence_last_value('up') > 5000 AS last, onetrip.sequence_last_value('up') > 5000 AS last_again;
SELECT count(*) FROM pg_prepared_xacts;
RESET ROLE;
REVOKE EXECUTE ON FUNCTION pg_catalog.setval(regclass, bigint), pg_catalog.setval(regclass, bigint, boolean),
    pg_catalog.nextval(regclass), pg_catalog.pg_sequence_last_value(regclass), pg_catalog.pg_prepared_xact() FROM PUBLIC;
SET LOCAL ROLE sequence_user;
SELECT setval('up', 5000);
SELECT setval('up', 5000, true);
SELECT onetrip.setval('up', 5000);
SELECT onetrip.setval('up', 5000, true);
SELECT onetrip.nextval('up');
SELECT pg_sequence_last_value('up');
SELECT onetrip.sequence_last_value('up');
SELECT count(*) FROM pg_prepared_xacts;
ROLLBACK;
\set ON_ERROR_ROLLBACK off

SET client_min_messages = warning;
DROP SCHEMA sequence CASCADE;
