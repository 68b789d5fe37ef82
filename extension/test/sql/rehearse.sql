-- Goal: a rehearsed write set leaves nothing behind and fails where it would fail; only the node may rehearse.
-- Method: write sets of this session, tried after it was rolled back; a session that rehearses gets the worker's settings, so each rehearsal has its own session.
CREATE SCHEMA rehearse;
SET search_path = rehearse;
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE SEQUENCE s;
INSERT INTO t VALUES (1, 'one');
BEGIN;
INSERT INTO t VALUES (2, 'two');
SELECT setval('s', 100);
ALTER TABLE t ADD COLUMN n int DEFAULT 7;
CREATE TABLE made (id serial PRIMARY KEY);
UPDATE t SET v = 'changed' WHERE id = 1;
SELECT unit.write_set() AS good \gset
ROLLBACK;
BEGIN;
CREATE INDEX by_v ON t (v);
SELECT unit.write_set() AS index \gset
ROLLBACK;
CREATE UNLOGGED TABLE own (id int PRIMARY KEY);
BEGIN;
ALTER TABLE own SET LOGGED;
SELECT unit.write_set() AS logged \gset
ROLLBACK;

\c -
BEGIN;
SELECT last_value FROM rehearse.s;
SELECT onetrip.rehearse(0, :'good');
SELECT onetrip.rehearse(0, :'good');
-- Nothing of it is visible, now or later, or captured; what follows is captured as usual.
SELECT *, to_regclass('rehearse.made') FROM rehearse.t;
SELECT last_value FROM rehearse.s;
SELECT onetrip.pending_bytes();
INSERT INTO rehearse.t VALUES (3, 'three');
SELECT onetrip.pending_bytes() > 0 AS captured;
COMMIT;
SELECT * FROM rehearse.t ORDER BY id;

-- A failure is an error.
\c -
CREATE INDEX by_v ON rehearse.t (v);
SELECT onetrip.rehearse(0, :'index');
SELECT onetrip.rehearse(0, '\x0253');
-- After the failure the session captures as before.
BEGIN;
INSERT INTO rehearse.t VALUES (4, 'four');
SELECT onetrip.pending_bytes() > 0 AS captured;
ROLLBACK;

-- Rows of the region's own are not replaced by another region's without a word.
\c -
SELECT onetrip.rehearse(0, :'logged');
INSERT INTO rehearse.own VALUES (1);
SELECT onetrip.rehearse(0, :'logged');
\echo :LAST_ERROR_SQLSTATE

-- A statement fails where its settings cannot be as they were; a row does not.
\c -
SET search_path = rehearse;
SET TimeZone = 'Europe/Berlin';
CREATE TABLE times (id int PRIMARY KEY, t timestamptz);
CREATE INDEX ON times ((id + 1));
INSERT INTO times VALUES (1, '2026-07-01 12:00');
BEGIN;
ALTER TABLE times ALTER t TYPE timestamp;
SELECT unit.write_set() AS changes \gset
ROLLBACK;
BEGIN;
INSERT INTO times VALUES (2, '2026-07-01 12:00');
SELECT unit.write_set() AS adds \gset
ROLLBACK;
CREATE FUNCTION with_zone(write_set bytea, zone text) RETURNS bytea LANGUAGE sql AS
    $$SELECT decode(replace(encode(write_set, 'hex'), encode('Europe/Berlin', 'hex'), encode(zone::bytea, 'hex')), 'hex')$$;
SELECT rehearse.with_zone(:'changes', 'Europe/Madrid') <> :'changes'::bytea AS statement, rehearse.with_zone(:'adds', 'Europe/Madrid') <> :'adds'::bytea AS row;
\c -
SELECT onetrip.rehearse(0, rehearse.with_zone(:'changes', 'Europe/Madrid'));
SELECT onetrip.rehearse(0, rehearse.with_zone(:'changes', 'Europe/Berlix'));
\echo :LAST_ERROR_SQLSTATE
SELECT onetrip.rehearse(0, rehearse.with_zone(:'adds', 'Europe/Berlix'));

-- An index is not computed for versions of rows that are dead, which there are where a page is full.
\c -
SET search_path = rehearse;
CREATE TABLE versions (id int PRIMARY KEY, v int);
INSERT INTO versions VALUES (1, 0);
BEGIN;
UPDATE versions SET v = 1;
CREATE INDEX ON versions ((1 / v));
CREATE INDEX ON versions (v) WHERE 1 / v = 1;
SELECT unit.write_set() AS divides \gset
ROLLBACK;
VACUUM versions;
INSERT INTO versions SELECT g, 1 FROM generate_series(2, 1000) g;
\c -
SELECT onetrip.rehearse(0, :'divides');

-- A function that sets a sequence in other regions only would do so in the rehearsal, for good.
\c -
SET search_path = rehearse;
CREATE TABLE counted (id int PRIMARY KEY, v int);
CREATE FUNCTION sets_there(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF current_setting('check_function_bodies') = 'off' THEN PERFORM setval('rehearse.s', 500); END IF;
    RETURN $1;
END $$;
INSERT INTO counted VALUES (1, 1);
BEGIN;
ALTER TABLE counted ALTER v TYPE bigint USING sets_there(v);
SELECT unit.write_set() AS sets_there \gset
ROLLBACK;
\c -
\set SHOW_CONTEXT never
SELECT onetrip.rehearse(0, :'sets_there');
\set SHOW_CONTEXT errors
\echo :LAST_ERROR_SQLSTATE
SELECT last_value FROM rehearse.s;

-- A function that catches the cancel ends with its session, whatever it has set.
\c -
SET search_path = rehearse;
CREATE FUNCTION outlives(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    until timestamptz := clock_timestamp() + '60 s';
BEGIN
    IF current_setting('check_function_bodies') <> 'off' THEN RETURN $1; END IF;
    PERFORM set_config('client_connection_check_interval', '0', false);
    WHILE clock_timestamp() < until LOOP
        BEGIN PERFORM pg_sleep(1); EXCEPTION WHEN query_canceled THEN NULL; END;
    END LOOP;
    RETURN $1;
END $$;
BEGIN;
ALTER TABLE counted ALTER v TYPE bigint USING outlives(v);
SELECT unit.write_set() AS outlives \gset
ROLLBACK;
CREATE TABLE held AS SELECT :'outlives'::bytea AS write_set;
\setenv PGHOST :HOST
\setenv PGPORT :PORT
\setenv PGUSER :USER
\setenv PGDATABASE :DBNAME
\! PGOPTIONS='-c statement_timeout=100' psql -X -q -c 'SELECT onetrip.rehearse(0, write_set) FROM rehearse.held' 2>&1 | grep FATAL

-- It waits neither for a log index that this server does not show soon, nor for a lock that is held.
SELECT onetrip.rehearse(4000000000000000, :'good');

CREATE ROLE rehearsing;
SET ROLE rehearsing;
SELECT onetrip.rehearse(0, '\x02');
SET onetrip.rehearse = off;
RESET ROLE;
GRANT EXECUTE ON FUNCTION onetrip.rehearse(bigint, bytea) TO rehearsing;
SET ROLE rehearsing;
SELECT onetrip.rehearse(0, '\x02');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION onetrip.rehearse(bigint, bytea) FROM rehearsing;
DROP ROLE rehearsing;
SET client_min_messages = warning;
DROP SCHEMA rehearse CASCADE;
