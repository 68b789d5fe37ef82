-- Goal: a function that depends on a temporary object is as temporary as that: statements about it stay local, nothing permanent
-- depends on it, and it goes with the object.
-- Method: every place of a signature, bodies that use temporary objects, every statement about functions, and every object that
-- can depend on one.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA temporary_functions;
SET search_path = temporary_functions;
SET client_min_messages = warning;
CREATE ROLE of_functions;
CREATE TABLE subject (id int PRIMARY KEY, n int, f regprocedure);
INSERT INTO subject VALUES (1, 1, NULL);
CREATE TYPE pair AS (a int, b int);
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE FUNCTION twice(int, int) RETURNS pair LANGUAGE sql IMMUTABLE AS 'SELECT $1, $2';
CREATE TEMP TABLE tab (id int PRIMARY KEY, v text);
CREATE TYPE pg_temp.label AS ENUM ('a', 'b');
CREATE TEMP TABLE typed (l pg_temp.label);
CREATE DOMAIN pg_temp.number AS int CHECK (value < 5);
CREATE TYPE pg_temp.span AS RANGE (subtype = pg_temp.number);
CREATE TEMP SEQUENCE counter;
CREATE FUNCTION pg_temp.here(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION plus(pg_temp.number, int) RETURNS pg_temp.number LANGUAGE sql AS 'SELECT 1';

-- What a statement comes to, and whether it leaves something in the write set.
CREATE FUNCTION comes_to(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
    before bigint := onetrip.pending_bytes();
BEGIN
    BEGIN
        EXECUTE statement;
        SELECT CASE WHEN onetrip.pending_bytes() > before THEN 'recorded' ELSE 'local' END INTO answer;
        RAISE EXCEPTION USING ERRCODE = 'ZZZZZ', MESSAGE = answer;
    EXCEPTION WHEN OTHERS THEN
        answer := CASE SQLSTATE WHEN 'ZZZZZ' THEN SQLERRM ELSE SQLSTATE || ' ' || regexp_replace(SQLERRM, 'pg_temp_\d+', 'pg_temp', 'g') END;
    END;
    RETURN answer;
END $$;
CREATE FUNCTION local(tab) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE FUNCTION local(int) RETURNS pg_temp.label LANGUAGE sql IMMUTABLE AS $$ SELECT 'a'::pg_temp.label $$;
CREATE FUNCTION local_value(int) RETURNS int LANGUAGE sql RETURN (SELECT count(*)::int FROM tab);
CREATE FUNCTION counts() RETURNS bigint LANGUAGE sql RETURN (SELECT count(*) FROM tab);
CREATE FUNCTION counts_again() RETURNS bigint LANGUAGE sql RETURN counts();
CREATE PROCEDURE local_procedure(INOUT tab) LANGUAGE plpgsql AS 'BEGIN END';
CREATE AGGREGATE local_aggregate(int) (sfunc = plus, stype = pg_temp.number);
\set QUIET on
\pset format unaligned
\pset tuples_only on
SELECT s || E'\n    ' || comes_to(s) FROM unnest(ARRAY[
    -- the places of a signature
    'CREATE FUNCTION made(tab) RETURNS int LANGUAGE sql AS ''SELECT 1''',
    'CREATE FUNCTION made(int, VARIADIC tab[]) RETURNS int LANGUAGE sql AS ''SELECT 1''',
    'CREATE FUNCTION made(a tab.id%TYPE) RETURNS int LANGUAGE sql AS ''SELECT 1''',
    'CREATE FUNCTION made() RETURNS typed.l%TYPE LANGUAGE sql AS ''SELECT NULL::pg_temp.label''',
    'CREATE FUNCTION made() RETURNS subject.n%TYPE LANGUAGE sql AS ''SELECT 1''',
    'COMMENT ON FUNCTION twice(tab.id%TYPE) IS ''x''',
    'COMMENT ON FUNCTION local(tab.id%TYPE) IS ''x''',
    'DROP FUNCTION twice(subject.n%TYPE)',
    'CREATE FUNCTION made(a pg_temp.label, b int DEFAULT 1) RETURNS int LANGUAGE sql AS ''SELECT 1''',
    'CREATE FUNCTION made() RETURNS SETOF tab LANGUAGE sql AS ''SELECT 1, ''''x''''''',
    'CREATE FUNCTION made() RETURNS pg_temp.span LANGUAGE sql AS ''SELECT NULL::pg_temp.span''',
    'CREATE FUNCTION made() RETURNS pg_temp.number[] LANGUAGE sql AS ''SELECT NULL::pg_temp.number[]''',
    'CREATE FUNCTION made() RETURNS TABLE (a int, b pg_temp.number) LANGUAGE sql AS ''SELECT 1, 1::pg_temp.number''',
    'CREATE FUNCTION made(OUT a int, OUT b pg_temp.label) LANGUAGE sql AS ''SELECT 1, ''''a''''::pg_temp.label''',
    'CREATE PROCEDURE made(OUT a pg_temp.label) LANGUAGE plpgsql AS ''BEGIN END''',
    'CREATE AGGREGATE made(pg_temp.number) (sfunc = int4pl, stype = int)',
    'CREATE AGGREGATE made(basetype = pg_temp.number, sfunc = int4pl, stype = int)',
    'CREATE AGGREGATE made(int) (sfunc = plus, stype = pg_temp.number)',
    'CREATE AGGREGATE made(int) (sfunc = int4pl, stype = int, finalfunc = local)',
    'CREATE FUNCTION made() RETURNS int LANGUAGE sql AS ''SELECT local(1)::text::int''',
    'CREATE FUNCTION made(cstring) RETURNS pg_temp.shell LANGUAGE internal STRICT AS ''int4in''',
    -- bodies, defaults, and what an aggregate is made of
    'CREATE FUNCTION made() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM tab; END',
    'CREATE FUNCTION made() RETURNS int LANGUAGE sql RETURN pg_temp.here(1)',
    'CREATE FUNCTION made() RETURNS text LANGUAGE sql RETURN ''a''::pg_temp.label::text',
    'CREATE FUNCTION made() RETURNS text LANGUAGE sql RETURN local(1)::text',
    'CREATE FUNCTION made() RETURNS bigint LANGUAGE sql RETURN counts()',
    'CREATE FUNCTION made() RETURNS bigint LANGUAGE sql RETURN counts_again()',
    'CREATE FUNCTION made() RETURNS bigint LANGUAGE sql RETURN nextval(''counter'')',
    'CREATE FUNCTION made(int DEFAULT nextval(''counter'')) RETURNS int LANGUAGE sql RETURN $1',
    'CREATE PROCEDURE made() LANGUAGE sql BEGIN ATOMIC INSERT INTO tab VALUES (1, ''x''); DELETE FROM subject; END',
    'CREATE FUNCTION made() RETURNS bigint LANGUAGE sql RETURN (SELECT count(*) FROM subject)',
    'CREATE FUNCTION made() RETURNS bigint LANGUAGE sql AS ''SELECT count(*) FROM tab''',
    'CREATE FUNCTION made() RETURNS bigint LANGUAGE sql RETURN nothing()',
    'CREATE AGGREGATE made(int) (sfunc = int4pl, stype = int, finalfunc = local_value)',
    -- another body
    'CREATE OR REPLACE FUNCTION counts() RETURNS bigint LANGUAGE sql RETURN (SELECT count(*) + 1 FROM typed)',
    'CREATE OR REPLACE FUNCTION counts() RETURNS bigint LANGUAGE sql RETURN 1',
    'CREATE OR REPLACE FUNCTION counts() RETURNS bigint LANGUAGE sql AS ''SELECT count(*) FROM tab''',
    'CREATE OR REPLACE FUNCTION counts() RETURNS bigint LANGUAGE sql RETURN counts_again()',
    'CREATE OR REPLACE FUNCTION twice(int) RETURNS int LANGUAGE sql RETURN (SELECT count(*)::int FROM tab)',
    'CREATE OR REPLACE FUNCTION twice(int) RETURNS int LANGUAGE sql RETURN 2 * $1',
    'CREATE OR REPLACE FUNCTION made() RETURNS bigint LANGUAGE sql RETURN counts()',
    'ALTER FUNCTION counts() STABLE',
    'ALTER FUNCTION counts() RENAME TO renamed',
    'DROP FUNCTION counts()',
    'DROP FUNCTION counts() CASCADE',
    'DROP FUNCTION counts(), counts_again()',
    'DROP FUNCTION counts_again(), twice(int)',
    'CREATE VIEW made AS SELECT counts() AS n',
    'CREATE VIEW made AS SELECT counts_again() AS n',
    'CREATE TEMP VIEW made AS SELECT counts_again() AS n',
    'ALTER TABLE subject ALTER n TYPE bigint USING counts()',
    'UPDATE subject SET f = ''counts()''::regprocedure',
    'SELECT counts() + counts_again() + (SELECT count(*) FROM tab)',
    -- another of the same name and arguments
    'CREATE OR REPLACE FUNCTION local(int) RETURNS pg_temp.label LANGUAGE sql AS $x$ SELECT ''b''::pg_temp.label $x$',
    'CREATE OR REPLACE FUNCTION local(int) RETURNS int LANGUAGE sql AS ''SELECT 1''',
    'CREATE OR REPLACE FUNCTION twice(int) RETURNS pg_temp.number LANGUAGE sql AS ''SELECT 1''',
    'CREATE FUNCTION local(int) RETURNS int LANGUAGE sql AS ''SELECT 1''',
    -- statements about one
    'ALTER FUNCTION local(int) STRICT',
    'ALTER ROUTINE local(int) SET search_path = public',
    'ALTER FUNCTION local(tab) RENAME TO renamed',
    'ALTER FUNCTION local(tab) RENAME TO twice',
    'ALTER FUNCTION local(int) RENAME TO twice',
    'ALTER FUNCTION local(tab) OWNER TO of_functions',
    'ALTER FUNCTION local(tab) SET SCHEMA public',
    'ALTER FUNCTION local(tab) SET SCHEMA pg_temp',
    'ALTER FUNCTION local(tab) DEPENDS ON EXTENSION plpgsql',
    'ALTER PROCEDURE local_procedure RENAME TO renamed',
    'ALTER AGGREGATE local_aggregate(int) RENAME TO renamed',
    'COMMENT ON FUNCTION local(tab) IS ''x''',
    'COMMENT ON AGGREGATE local_aggregate(int) IS ''x''',
    'GRANT EXECUTE ON FUNCTION local(tab) TO of_functions',
    'GRANT EXECUTE ON FUNCTION local(tab), local(int) TO of_functions',
    'GRANT EXECUTE ON FUNCTION local(tab), twice(int) TO of_functions',
    'REVOKE EXECUTE ON PROCEDURE local_procedure FROM public',
    'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA temporary_functions TO of_functions',
    'ALTER EXTENSION plpgsql ADD FUNCTION local(tab)',
    'DROP FUNCTION local(tab), local(int)',
    'DROP FUNCTION local(tab), twice(int)',
    'DROP FUNCTION local',
    'DROP FUNCTION IF EXISTS local(int), pg_temp.nothing()',
    'DROP ROUTINE local_procedure',
    'DROP AGGREGATE local_aggregate(int)',
    'DROP FUNCTION twice(int)',
    -- what would depend on one
    'CREATE VIEW made AS SELECT local(1)::text AS t',
    'CREATE VIEW made AS SELECT local_aggregate(n)::int AS t FROM subject',
    'CREATE TEMP VIEW made AS SELECT local(1)::text AS t',
    'CREATE MATERIALIZED VIEW made AS SELECT local(1)::text AS t',
    'CREATE TABLE made AS SELECT local(1)::text AS t',
    'CREATE TABLE made AS SELECT local(1) AS t',
    'CREATE TABLE made (a text DEFAULT local(1)::text)',
    'CREATE TABLE made (a int CHECK (local(a) IS NOT NULL))',
    'CREATE FUNCTION made(a text DEFAULT local(1)::text) RETURNS int LANGUAGE sql AS ''SELECT 1''',
    'CREATE FUNCTION made() RETURNS text LANGUAGE sql BEGIN ATOMIC SELECT local(1)::text; END',
    'CREATE INDEX ON subject (id) WHERE local(n) IS NULL',
    'CREATE POLICY made ON subject USING (local(n) IS NULL)',
    'CREATE RULE made AS ON INSERT TO subject WHERE local(new.n) IS NULL DO NOTHING',
    'CREATE DOMAIN made AS int CHECK (local(value) IS NULL)',
    'CREATE OPERATOR ### (function = local, rightarg = int)',
    'CREATE OPERATOR pg_temp.### (function = temporary_functions.local, rightarg = int)',
    'CREATE CAST (int AS pg_temp.label) WITH FUNCTION local(int)',
    'CREATE TYPE made AS RANGE (subtype = pg_temp.number)',
    'ALTER TABLE subject ALTER n TYPE text USING local(n)::text',
    'ALTER TABLE subject ADD c text DEFAULT local(1)::text',
    'ALTER TABLE subject ADD c oid DEFAULT ''local(int)''::regprocedure',
    'ALTER TABLE subject ALTER n TYPE oid USING ''local(int)''::regprocedure',
    'UPDATE subject SET f = ''local(int)''::regprocedure',
    'UPDATE subject SET f = ''local(tab)''::regprocedure',
    'UPDATE subject SET f = ''twice(int)''::regprocedure',
    -- it goes with what it is in, or depends on
    'DROP SCHEMA temporary_functions',
    'DROP SCHEMA temporary_functions CASCADE',
    'ALTER SCHEMA temporary_functions RENAME TO renamed',
    'DROP TABLE tab',
    'DROP TABLE tab CASCADE',
    'DISCARD TEMP',
    'REASSIGN OWNED BY of_functions TO postgres',
    'DROP OWNED BY of_functions'
]) s;
\pset format aligned
\pset tuples_only off

-- A statement about one takes the key of all DDL; so does what drops one, and nothing else about temporary objects.
BEGIN;
CREATE TEMP TABLE other (id int);
:keys;
DROP TABLE other;
:keys;
COMMENT ON FUNCTION local(int) IS 'x';
:keys;
:operations;
ROLLBACK;
BEGIN;
DROP TABLE tab CASCADE;
:keys;
:operations;
ROLLBACK;
-- In one transaction, with what travels; and dropped by COMMIT.
BEGIN;
CREATE TEMP TABLE passing (id int) ON COMMIT DROP;
CREATE FUNCTION of_passing(passing) RETURNS int LANGUAGE sql AS 'SELECT 1';
UPDATE subject SET n = of_passing(ROW(1)::passing) + 1;
CREATE TABLE beside (id int PRIMARY KEY);
COMMIT;
BEGIN;
CREATE TEMP TABLE passing (id int) ON COMMIT DROP;
SAVEPOINT s;
CREATE FUNCTION of_passing(passing) RETURNS int LANGUAGE sql AS 'SELECT 1';
ROLLBACK TO s;
COMMIT;
SELECT n, to_regproc('of_passing') IS NULL AS gone FROM subject;
BEGIN;
CREATE TEMP TABLE passing (id int) ON COMMIT DROP;
CREATE FUNCTION of_passing() RETURNS bigint LANGUAGE sql RETURN (SELECT count(*) FROM passing);
CREATE FUNCTION again() RETURNS bigint LANGUAGE sql RETURN of_passing();
SAVEPOINT s;
DROP FUNCTION of_passing() CASCADE;
CREATE FUNCTION of_passing() RETURNS bigint LANGUAGE sql RETURN 1;
ROLLBACK TO s;
:operations;
INSERT INTO passing VALUES (1);
UPDATE subject SET n = of_passing() + again();
ALTER TABLE beside ADD n int;
COMMIT;
SELECT n, to_regproc('of_passing') IS NULL AS gone, to_regproc('again') IS NULL AS gone_too FROM subject;
-- Each may call the other.
BEGIN;
CREATE TEMP TABLE passing (id int) ON COMMIT DROP;
CREATE FUNCTION ping(int) RETURNS bigint LANGUAGE sql RETURN (SELECT count(*) FROM passing);
CREATE FUNCTION pong(int) RETURNS bigint LANGUAGE sql RETURN ping($1);
CREATE OR REPLACE FUNCTION ping(int) RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM passing WHERE pong(id) = 1; END;
CREATE TABLE beside_too (id int PRIMARY KEY);
DROP FUNCTION ping(int) CASCADE;
COMMIT;
SELECT to_regproc('ping') IS NULL AS gone, to_regproc('pong') IS NULL AS gone_too;

-- The worker locks all of them, so there are not many.
\set VERBOSITY terse
BEGIN;
DO $$ BEGIN FOR i IN 1..1000 LOOP EXECUTE format('CREATE FUNCTION many_%s(tab) RETURNS int LANGUAGE sql AS ''SELECT 1''', i); END LOOP; END $$;
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
\set VERBOSITY default

-- They work, and end with the session.
SELECT local(tab), local(2), local_aggregate(1) FROM (SELECT (1, 'x')::tab AS tab) t GROUP BY tab;
CALL local_procedure((1, 'x')::tab);
\c -
DO $$
BEGIN
    FOR i IN 1..500 LOOP
        EXIT WHEN NOT EXISTS (SELECT FROM pg_proc WHERE proname ~ '^(local|plus|counts)' AND pronamespace = 'temporary_functions'::regnamespace);
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;
SELECT count(*) FROM pg_proc WHERE pronamespace = 'temporary_functions'::regnamespace AND proname ~ '^(local|plus|counts)';

-- What a session has left behind in a crash is dropped by the next one in its place, without an entry: on a read replica, and
-- while the node does not answer.
SET client_min_messages = warning;
SET search_path = temporary_functions;
CREATE PROCEDURE leave_behind() LANGUAGE plpgsql AS $$
BEGIN
    CREATE TEMP TABLE tab (id int PRIMARY KEY);
    CREATE FUNCTION local(tab) RETURNS int LANGUAGE sql AS 'SELECT 1';
    CREATE FUNCTION counts() RETURNS bigint LANGUAGE sql RETURN (SELECT count(*) FROM tab);
    CREATE TEMP TABLE child () INHERITS (subject);
    COMMIT;
    PERFORM unit.leave_temporary();
END $$;
CALL leave_behind();
SELECT unit.use_read_only(true);
CREATE TEMP TABLE heir (id int);
SELECT unit.use_read_only(false);
SELECT count(*) FROM pg_proc WHERE pronamespace = 'temporary_functions'::regnamespace AND proname IN ('local', 'counts');
CALL leave_behind();
SET onetrip.commit_timeout = '200ms';
SELECT unit.use_socket('/nobody');
CREATE TEMP TABLE heir (id int);
SELECT unit.use_socket(NULL);
RESET onetrip.commit_timeout;
SELECT count(*) FROM pg_proc WHERE pronamespace = 'temporary_functions'::regnamespace AND proname IN ('local', 'counts');
-- So does a transaction that changes something replicated as well.
CALL leave_behind();
BEGIN;
CREATE TEMP TABLE heir (id int);
UPDATE subject SET n = 5;
:keys;
COMMIT;
SELECT n FROM subject;
DROP SCHEMA temporary_functions CASCADE;
DROP ROLE of_functions;
