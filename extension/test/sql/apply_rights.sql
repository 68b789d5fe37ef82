-- Goal: in the apply worker, a user's functions can do no more than they could do before, and they leave nothing behind.
-- Method: a function that tries everything, in every place where a user can make one run; the write sets are rolled back and then applied.
-- What it tries: another role, a temporary table, a change of a table, a setting for whatever runs next; to write past the trigger and
-- the foreign key of somebody else's tables whose rows are each server's own; and to be somebody else for their functions.
CREATE ROLE mallory LOGIN;
CREATE ROLE guard;
SELECT current_user AS super \gset
CREATE SCHEMA mallory AUTHORIZATION mallory;
CREATE SCHEMA guarded AUTHORIZATION guard;
SET ROLE guard;
SET search_path = guarded;
GRANT USAGE ON SCHEMA guarded TO mallory;
CREATE TABLE known (id int PRIMARY KEY);
INSERT INTO known VALUES (1);
CREATE TABLE in_heap (who text, what int REFERENCES known) USING heap;
CREATE UNLOGGED TABLE in_unlogged (who text, what int REFERENCES known);
CREATE FUNCTION checks_who() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.who <> current_user THEN RAISE 'not %', NEW.who USING ERRCODE = 'GUARD'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER checks_who BEFORE INSERT ON in_heap FOR EACH ROW EXECUTE FUNCTION checks_who();
CREATE TRIGGER checks_who BEFORE INSERT ON in_unlogged FOR EACH ROW EXECUTE FUNCTION checks_who();
GRANT INSERT ON in_heap, in_unlogged TO mallory;
CREATE FUNCTION answers() RETURNS text LANGUAGE sql STABLE SECURITY DEFINER AS
    $$SELECT CASE WHEN session_user = 'mallory' THEN 'nothing' ELSE 'a secret' END$$;
RESET ROLE;
GRANT USAGE ON SCHEMA unit TO mallory;
\c - mallory
SET search_path = mallory;
CREATE TABLE notes (id int PRIMARY KEY);
CREATE FUNCTION tries() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    done text := 'as ' || current_user;
    other text;
BEGIN
    BEGIN EXECUTE 'SET ROLE postgres'; done := done || ', role taken'; RESET ROLE;
    EXCEPTION WHEN OTHERS THEN done := done || ', no role'; END;
    BEGIN CREATE TEMP TABLE trap (a int); done := done || ', trap laid'; DROP TABLE trap;
    EXCEPTION WHEN OTHERS THEN done := done || ', no trap'; END;
    BEGIN INSERT INTO mallory.notes VALUES (1); done := done || ', row written'; DELETE FROM mallory.notes;
    EXCEPTION WHEN OTHERS THEN done := done || ', no row'; END;
    FOR other IN SELECT unnest('{in_heap,in_unlogged}'::text[]) LOOP
        BEGIN EXECUTE format('INSERT INTO guarded.%I VALUES (''admin'', 1)', other); done := done || ', past the trigger of ' || other;
        EXCEPTION WHEN OTHERS THEN done := done || ', ' || SQLSTATE; END;
        BEGIN EXECUTE format('INSERT INTO guarded.%I VALUES (''mallory'', -1)', other); done := done || ', past the key of ' || other;
        EXCEPTION WHEN OTHERS THEN done := done || ', ' || SQLSTATE; END;
    END LOOP;
    done := done || ', logged in as ' || CASE session_user WHEN 'mallory' THEN 'mallory' ELSE 'somebody' END ||
        CASE current_setting('is_superuser') WHEN 'on' THEN ' (superuser)' ELSE '' END || ', is told ' || guarded.answers();
    PERFORM set_config('lock_timeout', '1234', false);
    RETURN done;
END $$;
CREATE FUNCTION checks(v text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN RAISE NOTICE '%: %', v, mallory.tries(); RETURN true; END $$;
CREATE FUNCTION indexed(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN RAISE NOTICE '%: %', v, mallory.tries(); RETURN v; END $$;
CREATE DOMAIN checked AS text CHECK (checks(VALUE));
CREATE TYPE pair AS (a int, b checked);
CREATE TABLE values_t (id int PRIMARY KEY, p pair, ps pair[], ds checked[]);
CREATE TABLE index_t (id int PRIMARY KEY, v text);
CREATE INDEX ON index_t (indexed(v));
\set quiet 'SET client_min_messages = warning'
\set loud 'SET client_min_messages = notice'

-- An index with an expression: its function runs as the role that wrote the row, and changes nothing.  Values that contain a domain run no function.
:quiet;
BEGIN;
INSERT INTO values_t VALUES (1, ROW(1, 'in a pair'), ARRAY[ROW(1, 'in an array')::pair], ARRAY['itself']::checked[]);
INSERT INTO index_t VALUES (1, 'in an index');
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
\c - :super
SET search_path = mallory;
CREATE TEMP TABLE held AS SELECT :'write_set'::bytea AS bytes;
BEGIN;
:loud;
SELECT unit.apply(bytes) FROM held;
SHOW lock_timeout;
SELECT id, (p).b, (ps[1]).b AS in_array, ds FROM values_t;
ROLLBACK;

-- A generated column: its function has run where the row was written, and does not run in the worker.
\c - mallory
SET search_path = mallory;
CREATE FUNCTION made(v int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN RAISE NOTICE '%: %', v, mallory.tries(); RETURN v; END $$;
:quiet;
CREATE TABLE made_t (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (v + mallory.made(1)) STORED);
CREATE INDEX ON made_t (v);
INSERT INTO made_t VALUES (1, 1);
BEGIN;
UPDATE made_t SET v = 2;
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
\c - :super
SET search_path = mallory;
BEGIN;
:loud;
SELECT unit.apply(:'write_set'::bytea);
SELECT * FROM made_t;
ROLLBACK;

-- An index on a range of a user's, or on its multirange: GiST would ask the user's function how far two values are apart, and does without it.
\c - mallory
SET search_path = mallory;
CREATE FUNCTION apart(a float8, b float8) RETURNS float8 LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN a - b; END';
CREATE TYPE span AS RANGE (subtype = float8, subtype_diff = apart, multirange_type_name = spans);
CREATE DOMAIN short_span AS span CHECK (upper(VALUE) - lower(VALUE) < 10);
:quiet;
CREATE TABLE spans_t (id int PRIMARY KEY, s span);
CREATE INDEX ON spans_t USING gist (s);
CREATE TABLE short_spans_t (id int PRIMARY KEY, s short_span);
CREATE INDEX ON short_spans_t USING gist (s);
CREATE TABLE multi_spans_t (id int PRIMARY KEY, s spans);
CREATE INDEX ON multi_spans_t USING gist (s);
-- Enough for a second page, so that a value has to be put into one of them.
INSERT INTO spans_t SELECT g, span(g, g + 1) FROM generate_series(1, 1000) g;
INSERT INTO short_spans_t TABLE spans_t;
INSERT INTO multi_spans_t SELECT id, spans(s) FROM spans_t;
CREATE OR REPLACE FUNCTION apart(a float8, b float8) RETURNS float8 LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('mallory.told', true) = 'not yet' THEN
        PERFORM set_config('mallory.told', 'yes', false);
        RAISE NOTICE 'as %, read only: %', current_user, current_setting('transaction_read_only');
        PERFORM set_config('lock_timeout', '1234', false);
    END IF;
    RETURN a - b;
END $$;
\set not_told 'SET mallory.told = ''not yet'''
BEGIN;
INSERT INTO spans_t VALUES (-1, '[500,501)');
SELECT unit.write_set() AS of_range \gset
ROLLBACK;
BEGIN;
INSERT INTO short_spans_t VALUES (-1, '[500,501)');
SELECT unit.write_set() AS of_domain \gset
ROLLBACK;
BEGIN;
INSERT INTO multi_spans_t VALUES (-1, '{[500,501)}');
SELECT unit.write_set() AS of_multirange \gset
ROLLBACK;
\c - :super
SET search_path = mallory;
BEGIN;
:loud;
:not_told;
SELECT unit.apply(:'of_range'::bytea);
:not_told;
SELECT unit.apply(:'of_domain'::bytea);
:not_told;
SELECT unit.apply(:'of_multirange'::bytea);
SHOW lock_timeout;
ROLLBACK;

-- REINDEX by a function of a statement, or by the script of an extension, is none that is an entry of its own.
\c - mallory
SET search_path = mallory;
:quiet;
CREATE TABLE reindexed (id int PRIMARY KEY, v int);
CREATE INDEX reindexed_v ON reindexed (v);
INSERT INTO reindexed VALUES (1, 1);
CREATE FUNCTION reindexes(v int) RETURNS int LANGUAGE plpgsql VOLATILE AS 'BEGIN REINDEX INDEX mallory.index_t_pkey; RETURN v; END';
CREATE FUNCTION hides(v int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN mallory.reindexes(v); END';
BEGIN;
CREATE INDEX ON reindexed (hides(v));
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
\c - :super
SET search_path = mallory;
BEGIN;
SELECT unit.apply(:'write_set'::bytea);
ROLLBACK;

-- Nor is a statement of a function that runs while the entry's own is parsed.
\c - mallory
SET search_path = mallory;
:quiet;
CREATE FUNCTION runs_there(v text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('check_function_bodies') = 'off' THEN EXECUTE v; END IF;
    RETURN true;
END $$;
CREATE DOMAIN runs AS text CHECK (runs_there(VALUE));
BEGIN;
CREATE MATERIALIZED VIEW parsed AS SELECT '{CREATE TABLE mallory.made_there (a int)}'::runs[] AS v;
SELECT unit.write_set() AS creates \gset
ROLLBACK;
BEGIN;
CREATE MATERIALIZED VIEW parsed AS SELECT '{REINDEX INDEX mallory.index_t_pkey}'::runs[] AS v;
SELECT unit.write_set() AS reindexes \gset
ROLLBACK;
\c - :super
SET search_path = mallory;
CREATE TEMP TABLE held AS SELECT :'creates'::bytea AS creates, :'reindexes'::bytea AS reindexes;
BEGIN;
SELECT unit.apply(creates) FROM held;
ROLLBACK;
BEGIN;
SELECT unit.apply(reindexes) FROM held;
ROLLBACK;

-- PostgreSQL calls functions to simplify the expressions of an index: not where a table is emptied, and not where statements are compared.
\c - mallory
SET search_path = mallory;
:quiet;
CREATE TABLE told (v int);
CREATE FUNCTION tells() RETURNS int LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('mallory.told', true) = 'not yet' THEN
        RAISE NOTICE 'as %, read only: %', current_user, current_setting('transaction_read_only');
        PERFORM pg_advisory_lock(7);
        INSERT INTO mallory.told VALUES (1);
    END IF;
    RETURN 1;
END $$;
CREATE FUNCTION folds(v int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN mallory.tells(); END';
CREATE FUNCTION adds(a int, b int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN a + b; END';
CREATE TABLE emptied (id int PRIMARY KEY, v int, t text, EXCLUDE USING gist (int4range(v, adds(v, folds(1))) WITH &&));
CREATE INDEX emptied_i ON emptied (adds(v, folds(1)));
CREATE UNIQUE INDEX ON emptied (v) WHERE adds(v, folds(1)) > 0;
CREATE INDEX ON emptied USING hash (adds(v, folds(1)));
CREATE INDEX ON emptied USING brin (adds(v, folds(1)));
CREATE INDEX ON emptied USING gin ((ARRAY[adds(v, folds(1))]));
INSERT INTO emptied SELECT g, 2 * g FROM generate_series(1, 3) g;
CREATE MATERIALIZED VIEW filled AS SELECT id, v FROM emptied;
CREATE INDEX filled_i ON filled (adds(v, folds(1)));
BEGIN;
TRUNCATE emptied;
SELECT unit.write_set() AS empties \gset
ROLLBACK;
BEGIN;
REFRESH MATERIALIZED VIEW filled WITH NO DATA;
SELECT unit.write_set() AS refreshes \gset
ROLLBACK;
BEGIN;
CREATE INDEX ON emptied ((v + 1));
SELECT unit.write_set() AS compares \gset
ROLLBACK;
\c - :super
SET search_path = mallory;
SELECT relname, relfilenode INTO TEMP files FROM pg_class WHERE relnamespace = 'mallory'::regnamespace AND relname ~ '^(emptied|filled)';
-- As of a job that has not built them: TRUNCATE makes valid those that compare nothing.
BEGIN;
UPDATE pg_index SET indisready = indexrelid <> 'emptied_i'::regclass, indisvalid = false WHERE indrelid = 'emptied'::regclass AND NOT indisprimary;
:loud;
:not_told;
SELECT unit.apply(:'empties'::bytea);
SELECT unit.apply(:'refreshes'::bytea);
SELECT relname, c.relfilenode <> f.relfilenode AS new_file, indisready, indisvalid
FROM pg_class c JOIN files f USING (relname) LEFT JOIN pg_index ON indexrelid = c.oid WHERE relnamespace = 'mallory'::regnamespace ORDER BY 1;
SELECT (SELECT count(*) FROM told) AS rows, (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks;
RESET mallory.told;
SELECT count(*), (SELECT relispopulated FROM pg_class WHERE oid = 'filled'::regclass) FROM emptied;
-- They work.
INSERT INTO emptied SELECT g, 2 * g FROM generate_series(1, 3) g;
SET LOCAL enable_seqscan = off;
SELECT id FROM emptied WHERE adds(v, folds(1)) = 5;
SELECT count(*) FROM emptied WHERE int4range(v, adds(v, folds(1))) && '[2,6]';
INSERT INTO emptied VALUES (4, 6);
ROLLBACK;
\c - :super
SET search_path = mallory;
CREATE TEMP TABLE held AS SELECT '\xC0' || :'compares'::bytea AS bytes;
:loud;
:not_told;
DO $$
BEGIN
    PERFORM onetrip.rehearse(0, bytes) FROM held;
EXCEPTION WHEN OTHERS THEN RAISE NOTICE 'compared: %', SQLSTATE;
END $$;

-- With the writer's search_path the writer's functions are found: they run as the writer, not as the table's owner.
CREATE ROLE eve LOGIN;
CREATE SCHEMA eve AUTHORIZATION eve;
CREATE SCHEMA shop;
GRANT USAGE ON SCHEMA shop, unit TO eve;
CREATE TABLE shop.goods (id int PRIMARY KEY, v text);
CREATE FUNCTION shop.norm(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN lower(v); END';
CREATE INDEX ON shop.goods (shop.norm(v));
GRANT INSERT ON shop.goods TO eve;
\c - eve
CREATE FUNCTION eve.lower(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RAISE NOTICE ''as %'', current_user; RETURN v; END';
:quiet;
SET search_path = eve, pg_catalog;
BEGIN;
INSERT INTO shop.goods VALUES (1, 'A');
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
-- A function of a unique index that locks rows would do so in the middle of another row.
RESET search_path;
SET search_path = eve;
CREATE TABLE rows (id int PRIMARY KEY, v int);
CREATE FUNCTION locks(v int) RETURNS int LANGUAGE plpgsql VOLATILE AS 'BEGIN PERFORM 1 FROM eve.rows FOR UPDATE; RETURN v; END';
CREATE FUNCTION pretends(v int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM eve.locks(v); RETURN v; END';
CREATE UNIQUE INDEX ON rows (pretends(v));
INSERT INTO rows SELECT g, g FROM generate_series(1, 50) g;
SELECT count(*) FROM rows;
\c - :super
SET search_path = mallory;
BEGIN;
:loud;
SELECT unit.apply(:'write_set');
ROLLBACK;
:quiet;
DROP SCHEMA eve CASCADE;
DROP SCHEMA shop CASCADE;
REVOKE USAGE ON SCHEMA unit FROM eve;
DROP ROLE eve;

-- Statements, as the role that ran them: constants while they are parsed, expressions over rows, defaults of arguments.
\c - mallory
SET search_path = mallory;
:quiet;
INSERT INTO index_t VALUES (2, 'a row of before');
BEGIN;
CREATE VIEW constants AS SELECT '(1,"in a view")'::pair AS p;
ALTER TABLE index_t ALTER v TYPE varchar(20) USING indexed('using ' || id);
CREATE FUNCTION defaults(p pair DEFAULT '(1,"in a default")') RETURNS int LANGUAGE sql SET role = 'mallory' AS 'SELECT 1';
CREATE FUNCTION takes(IN a int, OUT b int, VARIADIC c int[] DEFAULT '{}') LANGUAGE sql SET role = 'mallory' SET work_mem = '1MB' AS 'SELECT 2';
CREATE PROCEDURE does(INOUT a int) LANGUAGE sql SET role TO mallory AS 'SELECT 3';
ALTER FUNCTION checks(text) SET role = 'mallory';
ALTER ROLE mallory SET role = 'mallory';
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
\c - :super
SET search_path = mallory;
CREATE TEMP TABLE held AS SELECT :'write_set'::bytea AS bytes;
BEGIN;
:loud;
SELECT unit.apply(bytes) FROM held;
SHOW lock_timeout;
SELECT current_user, session_user;
SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'mallory'::regnamespace AND proconfig IS NOT NULL ORDER BY proname;
SELECT setconfig FROM pg_db_role_setting WHERE setrole = 'mallory'::regrole;
ROLLBACK;

-- A role may be renamed by a function that runs as this role, in the session of another one.
CREATE ROLE self SUPERUSER;
CREATE FUNCTION guarded.renames() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'ALTER ROLE self RENAME TO oneself';
ALTER FUNCTION guarded.renames() OWNER TO self;
\c - mallory
BEGIN;
SELECT guarded.renames();
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
\c - :super
SET search_path = mallory;
BEGIN;
SELECT unit.apply(:'write_set');
SELECT rolname FROM pg_roles WHERE rolname IN ('self', 'oneself');
SELECT current_user = session_user AND current_user <> 'self' AS is_back, current_setting('is_superuser'), current_setting('session_replication_role');
ROLLBACK;

-- A user who may not change a type, a schema or a publication makes nobody wait by trying.
CREATE TYPE mood AS ENUM ('fine');
CREATE TABLE public.moods (id int PRIMARY KEY, m mood);
CREATE DOMAIN short AS text;
CREATE TABLE public.shorts (id int PRIMARY KEY, s short);
CREATE SCHEMA other;
CREATE TABLE other.t (id int);
CREATE ROLE publisher;
SET client_min_messages = error;
CREATE PUBLICATION published FOR TABLE public.shorts;
RESET client_min_messages;
ALTER PUBLICATION published OWNER TO publisher;
CREATE FUNCTION strong_locks() RETURNS bigint LANGUAGE sql AS
    $$SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND mode IN ('ShareRowExclusiveLock', 'ExclusiveLock')$$;
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
    RETURN 'done, locks: ' || mallory.strong_locks();
EXCEPTION WHEN insufficient_privilege THEN
    RETURN 'refused';
END $$;
\set attempts 'SELECT attempt($$ALTER TYPE mood RENAME VALUE ''fine'' TO ''well''$$) AS type, attempt($$ALTER DOMAIN short ADD CHECK (true)$$) AS domain, attempt($$ALTER SCHEMA other RENAME TO another$$) AS schema, attempt($$DROP OWNED BY publisher$$) AS owned'
BEGIN;
:attempts;
ROLLBACK;
-- If the attempt took a lock, it would wait here for a writer in another session.
\setenv PGHOST :HOST
\setenv PGPORT :PORT
\setenv PGUSER :USER
\setenv PGDATABASE :DBNAME
CREATE PROCEDURE writes_meanwhile() LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.moods VALUES (1); INSERT INTO public.shorts VALUES (1); PERFORM pg_sleep(60); END $$;
\! psql -X -q -c 'CALL mallory.writes_meanwhile()' 2>/dev/null &
DO $$
BEGIN
    FOR i IN 1..3000 LOOP
        EXIT WHEN EXISTS (SELECT FROM pg_locks WHERE relation = 'public.shorts'::regclass AND mode = 'RowExclusiveLock');
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;
\c - mallory
SET search_path = mallory;
SET lock_timeout = '5s';
:attempts;
\c - :super
SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE relation = 'public.shorts'::regclass;

-- A query may make a table of types and collations in a schema that the role may not use.
:quiet;
CREATE SCHEMA hidden;
CREATE TYPE hidden.mood AS ENUM ('ok');
CREATE DOMAIN hidden.few AS numeric(3, 1);
CREATE COLLATION hidden.plain FROM "C";
CREATE VIEW public.of_hidden AS SELECT 'ok'::hidden.mood AS m, ARRAY['ok'::hidden.mood] AS ms, 1::hidden.few AS f, 'x' COLLATE hidden.plain AS t, 'x'::varchar(3) COLLATE "C" AS v;
GRANT SELECT ON public.of_hidden TO mallory;
-- And it may make functions in a schema that it may not use.
GRANT CREATE ON SCHEMA hidden TO mallory;
\c - mallory
BEGIN;
CREATE FUNCTION hidden.made() RETURNS int SET search_path = pg_catalog RETURN 1;
CREATE OR REPLACE FUNCTION hidden.made() RETURNS int SET search_path = pg_catalog, pg_temp RETURN 2;
SELECT unit.write_set() AS made \gset
ROLLBACK;
SET search_path = mallory;
BEGIN;
CREATE TABLE of_query AS SELECT * FROM public.of_hidden;
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
CREATE TABLE of_query (m hidden.mood);
CREATE TEMP TABLE temporary AS SELECT * FROM public.of_hidden;
CREATE TEMP TABLE other (a int, b int);
ALTER TABLE other DROP a;
BEGIN;
CREATE TABLE like_temporary (id int, LIKE temporary, CHECK (id > 0), LIKE other, last text);
SELECT unit.write_set() AS like_temporary \gset
ROLLBACK;
CREATE TABLE like_temporary (LIKE temporary, own hidden.mood);
\c - :super
SET search_path = mallory;
BEGIN;
SELECT unit.apply(:'write_set'::bytea);
SELECT attname, format_type(atttypid, atttypmod) AS type, attndims, attcollation::regcollation FROM pg_attribute WHERE attrelid = 'of_query'::regclass AND attnum > 0 ORDER BY attnum;
SELECT unit.apply(:'like_temporary'::bytea);
\d like_temporary
SELECT unit.apply(:'made'::bytea);
SELECT proconfig FROM pg_proc WHERE proname = 'made' AND pronamespace = 'hidden'::regnamespace;
SELECT relowner::regrole, (SELECT o FROM of_query o) AS o FROM pg_class WHERE oid = 'of_query'::regclass;
ROLLBACK;

:quiet;
DROP VIEW public.of_hidden;
DROP SCHEMA hidden CASCADE;
SELECT * FROM guarded.in_heap UNION ALL SELECT * FROM guarded.in_unlogged;
DROP SCHEMA guarded CASCADE;
DROP ROLE self;
DROP OWNED BY mallory, publisher CASCADE;
DROP SCHEMA other CASCADE;
DROP TABLE public.moods, public.shorts;
DROP SCHEMA IF EXISTS mallory CASCADE;
DROP ROLE mallory, publisher, guard;
