-- Statements about subscriptions: they are the server's own, and what they are about is in a replicated row.
-- (What the workers apply is in crates/lab/tests/cluster/subscription.rs.)
SET client_min_messages = error;
ALTER SYSTEM SET onetrip.subscription_move_after = -1;
SELECT pg_reload_conf();
CREATE TABLE followed (id int PRIMARY KEY);
SELECT format('host=%s port=%s dbname=postgres', :'HOST', :'PORT') AS conninfo \gset
\set rows 'SELECT subscription, relid, node_id, region, s.oid IS NOT NULL AS is_here, position, copying FROM onetrip.subscription_position p LEFT JOIN pg_subscription s ON s.oid = p.subid AND node_id = 1 ORDER BY 1, 2'
CREATE SUBSCRIPTION s CONNECTION 'dbname=nowhere' PUBLICATION p WITH (connect = false, slot_name = NONE);
:rows;
-- what does not change the row is no entry
SELECT onetrip.position() AS before \gset
COMMENT ON SUBSCRIPTION s IS 'of this server';
ALTER SUBSCRIPTION s OWNER TO CURRENT_USER;
SELECT onetrip.position() = :before AS nothing_travelled;
-- but how it is made is known everywhere; later versions of PostgreSQL have more options
\set definitions 'SELECT subscription, owner, connection, publications, enabled, options @> $${"binary": "true", "slot_name": "none", "streaming": "on"}$$ AS options, tables FROM onetrip.subscription_definition ORDER BY 1'
CREATE ROLE "of s" SUPERUSER;
SET ROLE "of s";
CREATE SUBSCRIPTION made CONNECTION 'dbname=else''where' PUBLICATION p, "Q""q" WITH (connect = false, slot_name = NONE, binary = true, streaming = on);
RESET ROLE;
:definitions;
ALTER SUBSCRIPTION made RENAME TO remade;
:definitions;
DROP SUBSCRIPTION remade;
:definitions;
DROP ROLE "of s";
ALTER SUBSCRIPTION s RENAME TO renamed;
:rows;
CREATE ROLE monitors IN ROLE pg_monitor;
SET ROLE monitors;
SELECT count(*) FROM onetrip.subscription_position;
SELECT count(*) FROM onetrip.subscription_definition;
RESET ROLE;
DROP ROLE monitors;

-- rolled back with the rest
BEGIN;
DROP SUBSCRIPTION renamed;
:rows;
ROLLBACK;
BEGIN;
CREATE SUBSCRIPTION other CONNECTION '' PUBLICATION p WITH (connect = false, slot_name = NONE);
ROLLBACK;
:rows;

-- a name that another node has: only to go on where that one is
INSERT INTO onetrip.subscription_position (subscription, relid, node_id, region, subid, position, copying)
    VALUES ('far', 0, 7, 'far away', 77, '0/77', '{}'), ('filling', 0, 7, 'far away', 78, '0/77', '{public.followed}');
CREATE SUBSCRIPTION far CONNECTION :'conninfo' PUBLICATION p;
CREATE SUBSCRIPTION far CONNECTION :'conninfo' PUBLICATION p WITH (create_slot = false);
CREATE SUBSCRIPTION far CONNECTION '' PUBLICATION p WITH (connect = false, slot_name = far);
CREATE SUBSCRIPTION filling CONNECTION :'conninfo' PUBLICATION p WITH (create_slot = false, copy_data = false, enabled = false);
ALTER SUBSCRIPTION renamed RENAME TO far;
CREATE SUBSCRIPTION far CONNECTION :'conninfo' PUBLICATION p WITH (create_slot = false, copy_data = false, enabled = false);
:rows;

-- and the reverse: this one belongs to another node from now on
UPDATE onetrip.subscription_position SET node_id = 7, region = 'far away' WHERE subscription = 'far';
ALTER SUBSCRIPTION far SET (slot_name = far);
ALTER SUBSCRIPTION far ENABLE;
DROP SUBSCRIPTION far;
ALTER SUBSCRIPTION far SET (slot_name = NONE);
DROP SUBSCRIPTION far;
:rows;
DELETE FROM onetrip.subscription_position WHERE node_id = 7;

-- nor does one of this name and node, but of an earlier server: this one has not made it
CREATE SUBSCRIPTION early CONNECTION '' PUBLICATION p WITH (connect = false, slot_name = NONE);
UPDATE onetrip.subscription_position SET subid = 7 WHERE subscription = 'early';
ALTER SUBSCRIPTION early SET (slot_name = early);
ALTER SUBSCRIPTION early ENABLE;
ALTER SUBSCRIPTION early SET (slot_name = NONE);
DROP SUBSCRIPTION early;
:rows;
DELETE FROM onetrip.subscription_position WHERE subscription = 'early';

-- whose names a session has, the row does not know
CREATE SCHEMA evil;
CREATE FUNCTION evil.equal(text, text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE ''called as %'', current_user; END';
CREATE FUNCTION evil.equal(oid, oid) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE ''called as %'', current_user; END';
CREATE FUNCTION evil.equal(int, int) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE ''called as %'', current_user; END';
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.equal);
CREATE OPERATOR evil.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = evil.equal);
CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.equal);
SET search_path = evil, pg_catalog;
CREATE SUBSCRIPTION s CONNECTION '' PUBLICATION p WITH (connect = false, slot_name = NONE);
ALTER SUBSCRIPTION s RENAME TO t;
DROP SUBSCRIPTION t;
SHOW search_path;
RESET search_path;
DROP SCHEMA evil CASCADE;

-- refused
CREATE SUBSCRIPTION x CONNECTION '' PUBLICATION p WITH (two_phase);
DROP SUBSCRIPTION absent;
DROP SUBSCRIPTION IF EXISTS absent;
DROP SUBSCRIPTION renamed;
:rows;
DROP TABLE followed;
ALTER SYSTEM RESET onetrip.subscription_move_after;
SELECT pg_reload_conf();
