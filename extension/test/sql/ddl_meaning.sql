-- Goal: a statement is recorded with the role, names and values that it had, or it is refused.
-- Method: statements during which these change, or whose words can have another meaning; operations of open transactions, applied again.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA ddl_meaning;
SET search_path = ddl_meaning;
SET client_min_messages = warning;
CREATE ROLE meaning_owner;
CREATE ROLE meaning_other;
GRANT ALL ON SCHEMA ddl_meaning TO meaning_owner, meaning_other;

-- Before PostgreSQL 16, a table becomes a view if it is not believed to have an index, whichever server has vacuumed it since.
SELECT current_setting('server_version_num')::int < 160000 AS becomes_view \gset
\if :becomes_view
CREATE TABLE seen (a int);
CREATE INDEX seen_a ON seen (a);
DROP INDEX seen_a;
BEGIN;
UPDATE pg_class SET relhasindex = false WHERE relname = 'seen';
CREATE RULE "_RETURN" AS ON SELECT TO seen DO INSTEAD SELECT 5 AS a;
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'write_set') AS applied \gset
DO $$ BEGIN ASSERT (SELECT a FROM seen) = 5; END $$;
ROLLBACK;
DROP TABLE seen;
\endif

-- CREATE TABLE AS is recorded when its table is made, whatever its query does to the role, the settings or the name, or in a savepoint.
CREATE TABLE noted (id serial PRIMARY KEY, what text);
GRANT ALL ON noted TO PUBLIC;
GRANT ALL ON SEQUENCE noted_id_seq TO PUBLIC;
CREATE FUNCTION does(what text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    CASE what
        WHEN 'role' THEN SET ROLE meaning_other;
        WHEN 'path' THEN SET search_path = pg_catalog;
        WHEN 'rename' THEN ALTER TABLE ddl_meaning.made RENAME TO renamed;
        WHEN 'comment' THEN COMMENT ON TABLE ddl_meaning.made IS 'x';
        WHEN 'note' THEN INSERT INTO ddl_meaning.noted (id, what) VALUES (1, 'x');
        WHEN 'rolled back' THEN
            BEGIN
                COMMENT ON TABLE ddl_meaning.made IS 'x';
                RAISE EXCEPTION 'back';
            EXCEPTION WHEN raise_exception THEN NULL;
            END;
        ELSE NULL;
    END CASE;
    RETURN what;
END $$;
\set rows 'FROM generate_series(1, 2)'
BEGIN; SET LOCAL ROLE meaning_owner;
CREATE TABLE made AS SELECT ddl_meaning.does('role') :rows;
RESET ROLE;
:operations;
ROLLBACK;
BEGIN; SET LOCAL ROLE meaning_owner;
CREATE TABLE made AS SELECT ddl_meaning.does('path') :rows;
RESET ROLE;
:operations;
ROLLBACK;
BEGIN;
CREATE TABLE made AS SELECT ddl_meaning.does('rename') FROM generate_series(1, 1);
:operations;
ROLLBACK;
BEGIN;
CREATE TABLE made AS SELECT ddl_meaning.does('comment') :rows WHERE ddl_meaning.does('comment') IS NULL;
:operations;
ROLLBACK;
BEGIN;
CREATE TABLE made AS SELECT ddl_meaning.does('rolled back') :rows;
:operations;
ROLLBACK;
BEGIN;
EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) CREATE TABLE made AS SELECT ddl_meaning.does('note') FROM generate_series(1, 1);
SELECT ddl_meaning.does('nothing') AS what INTO made_too;
CREATE TABLE IF NOT EXISTS made AS SELECT 1;
CREATE TABLE made_empty AS SELECT 1 AS one WITH NO DATA;
:operations;
ROLLBACK;
CREATE TABLE made AS SELECT 1 / (g - 2) :rows g;
SELECT to_regclass('made') IS NULL AS gone;

-- A table that an event trigger drops is recorded as created and dropped; the rows of one that it renames travel under the new name.
CREATE FUNCTION tidies() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass('ddl_meaning.drop_me') IS NOT NULL THEN DROP TABLE ddl_meaning.drop_me; END IF;
    IF to_regclass('ddl_meaning.drop_mv') IS NOT NULL THEN DROP MATERIALIZED VIEW ddl_meaning.drop_mv; END IF;
    IF to_regclass('ddl_meaning.name_mv') IS NOT NULL THEN ALTER MATERIALIZED VIEW ddl_meaning.name_mv RENAME TO named_mv; END IF;
END $$;
CREATE EVENT TRIGGER tidies ON ddl_command_end WHEN TAG IN ('CREATE TABLE AS', 'SELECT INTO', 'CREATE MATERIALIZED VIEW') EXECUTE FUNCTION tidies();
BEGIN;
CREATE TABLE drop_me AS SELECT 1 AS one;
CREATE TABLE drop_me AS SELECT 1 AS one WITH NO DATA;
CREATE MATERIALIZED VIEW drop_mv AS SELECT 1 AS one;
CREATE MATERIALIZED VIEW name_mv AS SELECT 1 AS one;
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
DROP EVENT TRIGGER tidies;
BEGIN;
SELECT unit.apply(:'write_set');
SELECT to_regclass('drop_me') AS drop_me, to_regclass('drop_mv') AS drop_mv, to_regclass('name_mv') AS name_mv, one FROM named_mv;
ROLLBACK;

-- The settings of a function keep their order, even if a role is among them.
BEGIN;
CREATE FUNCTION many() RETURNS int LANGUAGE plpgsql SET work_mem = '1MB' SET role = 'meaning_other' SET search_path = ddl_meaning, pg_catalog
    SET extra_float_digits FROM CURRENT SET work_mem = '2MB' AS 'BEGIN RETURN 1; END';
CREATE FUNCTION two() RETURNS int LANGUAGE plpgsql SET search_path = ddl_meaning SET work_mem = '1MB' AS 'BEGIN RETURN 1; END';
CREATE OR REPLACE FUNCTION two() RETURNS int LANGUAGE plpgsql SET role = 'meaning_other' SET work_mem = '1MB' AS 'BEGIN RETURN 2; END';
CREATE PROCEDURE three() LANGUAGE plpgsql SET Role = 'meaning_other' AS 'BEGIN END';
SELECT string_agg(concat_ws(' ', proname, proconfig), '; ' ORDER BY proname) AS settings FROM pg_proc WHERE proname IN ('many', 'two', 'three') \gset here_
SELECT :'here_settings' AS settings;
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'write_set');
SELECT string_agg(concat_ws(' ', proname, proconfig), '; ' ORDER BY proname) = :'here_settings' AS alike FROM pg_proc WHERE proname IN ('many', 'two', 'three');
ROLLBACK;

-- A setting with a dot is known where its library is loaded, and a placeholder elsewhere, which others than superusers may neither set
-- nor reset, and which takes one value.  What is stored is what the origin has stored.
CREATE FUNCTION of_settings() RETURNS int LANGUAGE sql AS 'SELECT 1';
ALTER FUNCTION of_settings() OWNER TO meaning_owner;
\c -
SET search_path = ddl_meaning;
SET client_min_messages = warning;
ALTER ROLE meaning_owner SET work_mem = '1MB';
ALTER ROLE meaning_owner SET app.tenant = '1';
ALTER ROLE meaning_owner SET plpgsql.check_asserts = off;
ALTER ROLE meaning_owner SET app.users = '1';
ALTER ROLE meaning_other SET app.tenant = '1';
\set stored 'SELECT array_agg(setrole::regrole || '' '' || (setdatabase <> 0) || '' '' || setconfig::text ORDER BY 1) AS of_role, (SELECT array_agg(proname || '' '' || proconfig::text ORDER BY 1) FROM pg_proc WHERE proname ~ ''^of_settings'') AS of_function FROM pg_db_role_setting WHERE setrole IN (0, ''meaning_owner''::regrole, ''meaning_other''::regrole) AND setconfig::text !~ ''onetrip'''
DO 'BEGIN END';
BEGIN;
SET LOCAL ROLE meaning_owner;
ALTER ROLE CURRENT_USER RESET ALL;
ALTER ROLE meaning_owner SET plpgsql.extra_warnings = shadowed_variables, strict_multi_assignment;
ALTER ROLE meaning_owner IN DATABASE :"DBNAME" SET plpgsql.check_asserts = off;
ALTER ROLE meaning_owner IN DATABASE :"DBNAME" SET plpgsql.print_strict_params = on;
ALTER ROLE meaning_owner IN DATABASE :"DBNAME" RESET plpgsql.check_asserts;
ALTER FUNCTION of_settings() SET plpgsql.check_asserts = off SET work_mem = '2MB' STRICT;
ALTER FUNCTION of_settings() RESET work_mem SET plpgsql.check_asserts = on SET search_path = ddl_meaning;
CREATE FUNCTION of_settings_new() RETURNS int LANGUAGE sql SET plpgsql.check_asserts = off SET work_mem = '1MB' AS 'SELECT 1';
CREATE OR REPLACE FUNCTION of_settings_new() RETURNS int LANGUAGE sql SET plpgsql.print_strict_params = on AS 'SELECT 1';
CREATE FUNCTION of_settings_reset() RETURNS int LANGUAGE sql SET plpgsql.check_asserts = off AS 'SELECT 1';
ALTER ROUTINE of_settings_reset() RESET ALL;
RESET ROLE;
ALTER ROLE meaning_other RESET ALL;
SELECT operation FROM unit.operations() AS operation WHERE operation ~ 'RESET';
:stored;
:stored \gset here_
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
BEGIN;
SET LOCAL ROLE meaning_other;
ALTER ROLE meaning_other RESET ALL;
RESET ROLE;
SELECT count(*) AS nothing FROM unit.operations();
ROLLBACK;
\c -
SET search_path = ddl_meaning;
BEGIN;
SELECT unit.apply(:'write_set');
:stored \gset
SELECT :'of_role' = :'here_of_role' AS of_role, :'of_function' = :'here_of_function' AS of_function;
ROLLBACK;

-- The other way round: a library refuses what nobody checked.  And the settings of a session decide what others may be.
\c -
SET search_path = ddl_meaning;
BEGIN ISOLATION LEVEL REPEATABLE READ;
ALTER ROLE meaning_other SET plpgsql.variable_conflict = 'nonsense';
ALTER ROLE meaning_other SET plpgsql.typing_error = on;
ALTER DATABASE :"DBNAME" SET plpgsql.check_asserts = 'nonsense';
ALTER FUNCTION of_settings() SET plpgsql.variable_conflict = 'nonsense';
ALTER ROLE meaning_other SET transaction_isolation = 'repeatable read';
ALTER FUNCTION of_settings() SET Transaction_isolation = 'repeatable read';
ALTER ROLE meaning_other SET log_parser_stats = on;
GRANT SET ON PARAMETER plpgsql.Typing_error, plpgsql.check_asserts, work_mem TO meaning_other;
GRANT SET ON PARAMETER plpgsql.typing_error TO meaning_owner;
REVOKE SET ON PARAMETER plpgsql.check_asserts FROM meaning_other;
REVOKE SET ON PARAMETER plpgsql.other_error FROM meaning_other;
\set granted 'SELECT parname, paracl FROM pg_parameter_acl ORDER BY parname COLLATE "C"'
:granted;
:stored \gset here_
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
DO 'BEGIN END';
BEGIN;
SET LOCAL log_statement_stats = on;
SELECT unit.apply(:'write_set');
:granted;
:stored;
:stored \gset
SELECT :'of_role' = :'here_of_role' AS of_role, :'of_function' = :'here_of_function' AS of_function;
ROLLBACK;
ALTER ROLE meaning_owner RESET ALL;
SET client_min_messages = warning;

-- Constraints are checked if the rows are this region's own, or if they refer to such rows.
CREATE TABLE of_log (id int PRIMARY KEY);
CREATE TABLE of_region (id int PRIMARY KEY) USING heap;
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
CREATE TABLE tree (id int);
CREATE TABLE branch () INHERITS (tree) USING heap;
CREATE TABLE parted (id int) PARTITION BY LIST (id);
CREATE TABLE part PARTITION OF parted FOR VALUES IN (1, 2, 3);
BEGIN; ALTER TABLE of_log ADD CHECK (id < 3); SELECT unit.write_set() AS of_log \gset
ROLLBACK;
BEGIN; ALTER TABLE of_region ADD CHECK (id < 3); SELECT unit.write_set() AS of_region \gset
ROLLBACK;
BEGIN; ALTER TABLE of_region ADD CHECK (id < 3) NOT VALID; SELECT unit.write_set() AS not_valid \gset
ROLLBACK;
BEGIN; ALTER TABLE unlogged ADD CHECK (id < 3); SELECT unit.write_set() AS unlogged \gset
ROLLBACK;
BEGIN; ALTER TABLE unlogged ADD COLUMN n int DEFAULT 7 CHECK (n + id < 10); SELECT unit.write_set() AS of_column \gset
ROLLBACK;
BEGIN; ALTER TABLE tree ADD CHECK (id < 3); SELECT unit.write_set() AS tree \gset
ROLLBACK;
BEGIN; ALTER TABLE parted ADD CHECK (id < 3); SELECT unit.write_set() AS parted \gset
ROLLBACK;
BEGIN; ALTER TABLE of_region ADD FOREIGN KEY (id) REFERENCES of_log; SELECT unit.write_set() AS of_region_to_log \gset
ROLLBACK;
BEGIN; ALTER TABLE of_log ADD FOREIGN KEY (id) REFERENCES of_region; SELECT unit.write_set() AS of_log_to_region \gset
ROLLBACK;
BEGIN; ALTER TABLE parted ADD FOREIGN KEY (id) REFERENCES of_log; SELECT unit.write_set() AS parted_to_log \gset
ROLLBACK;
INSERT INTO of_region VALUES (4); INSERT INTO unlogged VALUES (4); INSERT INTO branch VALUES (4);
INSERT INTO of_log VALUES (3); INSERT INTO part VALUES (1), (3);
CREATE FUNCTION applied(write_set bytea) RETURNS text LANGUAGE plpgsql AS $$
DECLARE answer text;
BEGIN
    PERFORM unit.apply(write_set);
    SELECT 'valid: ' || string_agg(convalidated::text, ' ') INTO answer FROM pg_constraint
    WHERE connamespace = 'ddl_meaning'::regnamespace AND contype IN ('c', 'f') AND conparentid = 0;
    RAISE EXCEPTION USING ERRCODE = 'ZZZZZ', MESSAGE = answer;
EXCEPTION WHEN OTHERS THEN
    RETURN SQLERRM;
END $$;
SELECT applied(:'of_region') AS of_region, applied(:'not_valid') AS not_valid;
SELECT applied(:'unlogged') AS unlogged, applied(:'of_column') AS of_column;
SELECT applied(:'tree') AS tree, applied(:'of_region_to_log') AS of_region_to_log, applied(:'of_log_to_region') AS of_log_to_region;
-- Replicated rows are the same everywhere, so they are not checked; that they are not here is this test's doing.
SELECT applied(:'of_log') AS of_log, applied(:'parted') AS parted, applied(:'parted_to_log') AS parted_to_log;

-- A bound is what its text says, or it is refused; no lock is taken on a table of another owner.
CREATE TABLE by_array (a text[]) PARTITION BY LIST (a);
SET array_nulls = off;
CREATE TABLE by_array_1 PARTITION OF by_array FOR VALUES IN (ARRAY['NULL', 'x']);
CREATE TABLE by_array_2 PARTITION OF by_array FOR VALUES IN (ARRAY[NULL, 'x']::text[]);
\echo :LAST_ERROR_SQLSTATE
RESET array_nulls;
CREATE TABLE by_array_2 PARTITION OF by_array FOR VALUES IN (ARRAY[NULL, 'x']::text[]);
SELECT relname, pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname LIKE 'by_array%' AND relispartition ORDER BY 1;
CREATE TABLE many_types (a timestamptz, b float8, c numeric, d bytea, e jsonb) PARTITION BY RANGE (a, b, c, d);
SET DateStyle = 'German'; SET TimeZone = 'Asia/Kolkata'; SET extra_float_digits = -5; SET bytea_output = 'escape';
CREATE TABLE many_types_1 PARTITION OF many_types FOR VALUES FROM (MINVALUE, MINVALUE, MINVALUE, MINVALUE)
    TO ('2026-01-02 03:04:05.678901+00'::timestamptz + '1 us'::interval, 1 / 3.0::float8, 1.000 / 3, '\x005c27ff'::bytea || 'x');
RESET DateStyle; RESET TimeZone; RESET extra_float_digits; RESET bytea_output;
CREATE TABLE by_json (e jsonb) PARTITION BY LIST (e);
CREATE TABLE by_json_1 PARTITION OF by_json FOR VALUES IN (jsonb_build_object('b', 1.0, 'a', array['x', null]));
SET ROLE meaning_other;
BEGIN;
SAVEPOINT s;
CREATE TABLE not_mine PARTITION OF by_array FOR VALUES IN (ARRAY['y']);
ROLLBACK TO s;
CREATE TABLE mine (a text[]);
SAVEPOINT s;
ALTER TABLE by_array ATTACH PARTITION mine FOR VALUES IN (ARRAY['y']);
ROLLBACK TO s;
SELECT count(*) AS locks FROM pg_locks WHERE relation = 'by_array'::regclass AND mode <> 'AccessShareLock';
ROLLBACK;
CREATE TABLE mine PARTITION OF missing FOR VALUES IN (now());
CREATE TABLE mine PARTITION OF of_log FOR VALUES IN (now());
RESET ROLE;
CREATE TABLE not_parted PARTITION OF of_log FOR VALUES IN (now());
CREATE TABLE other_kind PARTITION OF by_array FOR VALUES FROM (now()) TO (now());

-- GRANT by somebody who may read but not grant only warns, and keeps no lock.
CREATE MATERIALIZED VIEW granted AS SELECT 1 AS x;
GRANT SELECT ON granted TO meaning_other;
SET ROLE meaning_other;
BEGIN;
GRANT SELECT ON granted TO PUBLIC;
SELECT count(*) AS locks FROM pg_locks WHERE relation = 'granted'::regclass;
ROLLBACK;
RESET ROLE;
BEGIN;
GRANT SELECT ON granted TO PUBLIC;
SELECT mode FROM pg_locks WHERE relation = 'granted'::regclass;
ROLLBACK;

-- A password in Unicode escapes.
BEGIN;
CREATE ROLE meaning_login LOGIN PASSWORD U&'d\0061ta' VALID UNTIL 'infinity';
ALTER ROLE meaning_login PASSWORD U&'d!0061t!+000061' UESCAPE '!' CONNECTION LIMIT 3;
ALTER ROLE meaning_login PASSWORD u&'x' /* no escape */ UESCAPE /* at all */ '!';
ALTER ROLE meaning_login VALID UNTIL 'infinity' PASSWORD 'not escaped'
    ' and in two lines';
SELECT regexp_replace(operation, 'SCRAM-SHA-256\$[^'']*', 'VERIFIER') AS operation FROM unit.operations() AS operation;
ROLLBACK;

-- ALTER COLUMN TYPE makes indexes and statistics anew in the order of their names, in every region: others are chosen by their OIDs.
CREATE TABLE alike (a int, b int);
CREATE TABLE alike_child () INHERITS (alike);
CREATE UNIQUE INDEX alike_i4 ON alike (a);
CREATE INDEX alike_i2 ON alike USING hash (a);
CREATE INDEX alike_i3 ON alike (b, a);
CREATE UNIQUE INDEX alike_i1 ON alike (a) WHERE b > 0;
CREATE INDEX alike_i6 ON alike_child (a);
CREATE INDEX alike_i5 ON alike_child USING hash (a);
ALTER TABLE alike ADD CONSTRAINT alike_u2 UNIQUE (a);
ALTER TABLE alike ADD CONSTRAINT alike_u1 UNIQUE (a) DEFERRABLE;
CREATE STATISTICS alike_s2 ON a, b FROM alike;
CREATE STATISTICS alike_s1 ON b, a FROM alike;
ALTER TABLE alike ALTER a TYPE bigint;
\set order 'SELECT string_agg(relname, '' '' ORDER BY oid) FROM pg_class WHERE relname ^@ ''alike_'' AND relkind = ''i'' UNION ALL SELECT string_agg(stxname, '' '' ORDER BY oid) FROM pg_statistic_ext WHERE stxname ^@ ''alike_'''
:order;
CREATE TABLE copied (LIKE alike INCLUDING INDEXES);
SELECT relname, amname, indisunique, indpred IS NOT NULL AS partial FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am m ON m.oid = c.relam WHERE indrelid = 'copied'::regclass ORDER BY 1;
-- Where it is applied as well, and for the tables of a type.
DROP INDEX alike_i2;
CREATE INDEX alike_i2 ON alike USING hash (a);
CREATE TYPE alike_type AS (a int);
CREATE TABLE alike_of_type OF alike_type;
CREATE INDEX alike_t2 ON alike_of_type (a);
CREATE INDEX alike_t1 ON alike_of_type USING hash (a);
BEGIN;
ALTER TABLE alike ALTER a TYPE numeric;
ALTER TYPE alike_type ALTER ATTRIBUTE a TYPE bigint CASCADE;
SELECT unit.write_set() AS alters \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'alters'::bytea);
:order;
ROLLBACK;

-- What is computed from OIDs is in no index and no partition key, unless it only says which object it is.
CREATE TYPE of_mood AS ENUM ('x', 'y');
CREATE TABLE by_oid (id int PRIMARY KEY, r regclass, m of_mood);
CREATE TABLE by_oid_here (id int PRIMARY KEY, r regclass) USING heap;
CREATE FUNCTION refused(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE message text;
BEGIN
    EXECUTE statement;
    RETURN 'done';
EXCEPTION WHEN feature_not_supported THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT;
    RETURN message;
END $$;
SELECT statement, refused(statement) FROM unnest(ARRAY[
    $$CREATE INDEX ON by_oid ((id + 'by_oid'::regclass::oid::int))$$,
    $$CREATE UNIQUE INDEX ON by_oid (id) WHERE id > 'by_oid'::regclass::oid::int$$,
    $$CREATE UNIQUE INDEX ON by_oid ((r::oid::int8 % 10))$$,
    $$CREATE UNIQUE INDEX ON by_oid (id) WHERE r::oid::int8 % 2 = 0$$,
    $$CREATE INDEX ON by_oid (hashenum(m))$$,
    $$CREATE INDEX ON by_oid (id) WHERE r < 'by_oid'::regclass$$,
    $$ALTER TABLE by_oid ADD EXCLUDE USING btree ((r::oid::int8) WITH =)$$,
    $$CREATE TABLE parted_by_oid (id int) PARTITION BY LIST ((id + 'by_oid'::regclass::oid::int))$$,
    $$CREATE TABLE parted_by_oid (id int, m of_mood) PARTITION BY RANGE (hashenum(m))$$,
    $$CREATE TABLE made_by_oid (id int, r regclass, EXCLUDE USING btree (id WITH =) WHERE (r::oid = 7))$$,
    $$CREATE INDEX ON by_oid (id) WHERE r = 'by_oid'::regclass AND m <> 'x'$$,
    $$CREATE INDEX ON by_oid ((r = 'by_oid'::regclass))$$,
    $$CREATE INDEX ON by_oid USING gin (to_tsvector('english', id::text)) WHERE to_tsvector('simple'::regconfig, 'a') @@ 'a'::tsquery$$,
    $$CREATE INDEX ON by_oid (r, m)$$,
    $$CREATE INDEX ON by_oid (id) WHERE m > 'x' AND r IS NOT NULL$$,
    $$CREATE INDEX ON by_oid_here ((r::oid::int8))$$
]) AS statement;
-- What JSON_VALUE and its like make of what they have found (PostgreSQL 17), by casts that are in no tree.
CREATE DOMAIN of_json AS int CHECK (value > 0);
DO $$
DECLARE
    statement text;
BEGIN
    IF current_setting('server_version_num')::int < 170000 THEN
        RETURN;
    END IF;
    ALTER TABLE by_oid ADD j jsonb;
    FOREACH statement IN ARRAY ARRAY[
        'CREATE INDEX ON by_oid ((JSON_VALUE(j, ''$.a'')))',
        'CREATE INDEX ON by_oid ((JSON_VALUE(j, ''$.a'' RETURNING int DEFAULT 0 ON EMPTY)))',
        'CREATE INDEX ON by_oid (id) WHERE JSON_EXISTS(j, ''$.a'')',
        'CREATE INDEX ON by_oid ((JSON_QUERY(j, ''$.a'')))',
        'CREATE INDEX ON by_oid ((JSON_VALUE(j, ''$.a'' RETURNING regclass)))',
        'CREATE INDEX ON by_oid ((JSON_VALUE(j, ''$.a'' RETURNING of_json)))',
        'CREATE INDEX ON by_oid (id) WHERE JSON_VALUE(j, ''$.a'' RETURNING regclass DEFAULT ''by_oid'' ON EMPTY) IS NULL'] LOOP
        ASSERT (refused(statement) = 'done') = (statement !~ 'regclass|of_json'), statement;
    END LOOP;
END $$;
DROP DOMAIN of_json;
DROP TABLE by_oid, by_oid_here;

-- The extension cannot be moved or changed.
DROP EXTENSION onetrip;
DROP EXTENSION IF EXISTS onetrip CASCADE;
DROP SCHEMA onetrip CASCADE;
ALTER SCHEMA onetrip RENAME TO x;
ALTER EXTENSION onetrip DROP FUNCTION onetrip.position();
ALTER EXTENSION onetrip ADD TABLE noted;
ALTER EXTENSION onetrip SET SCHEMA public;
\echo :LAST_ERROR_SQLSTATE

DROP SCHEMA ddl_meaning CASCADE;
DROP ROLE meaning_owner, meaning_other;
