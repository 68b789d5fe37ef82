-- Goal: a recorded statement never refers to a temporary object: its names refer to the permanent object, or it is refused.
-- Method: the same names, temporary and permanent, and statements of every kind that can use them.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA ddl_temporary;
SET search_path = ddl_temporary;
SET client_min_messages = warning;
CREATE ROLE of_temporary;

-- What exists both temporary and permanent: a table, a view, a sequence, an enum, a domain, a composite; each as a relation, a type or both.
CREATE TABLE tab (id int PRIMARY KEY, v text);
CREATE VIEW seen AS SELECT 1 AS one;
CREATE SEQUENCE seq;
CREATE TYPE label AS ENUM ('a', 'b');
CREATE DOMAIN number AS int CONSTRAINT small CHECK (value < 10);
CREATE TYPE pair AS (a int, b int);
-- Tables that these are used in, with a row.
CREATE TABLE subject (id int PRIMARY KEY, n int, t text);
INSERT INTO subject VALUES (1, 1, 'tab');
CREATE VIEW subject_view AS SELECT id, n FROM subject;
CREATE TYPE subject_type AS (a int);
CREATE DOMAIN subject_domain AS text;
CREATE FUNCTION subject_function(oid) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE FUNCTION subject_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TABLE parted (l text) PARTITION BY LIST (l);

-- What is dropped if it exists may not exist, and the session need not have anything temporary.
DROP TABLE IF EXISTS pg_temp.tab;
DROP TYPE IF EXISTS pg_temp.label, pg_temp.pair;
DROP FUNCTION IF EXISTS pg_temp.subject_function(oid);
DROP TRIGGER IF EXISTS one ON pg_temp.tab;
CREATE TEMP TABLE tab (id int PRIMARY KEY, v text, of_this_session int);
DROP TABLE IF EXISTS pg_temp.nothing;
DROP VIEW IF EXISTS pg_temp.nothing, pg_temp.seen;
DROP FUNCTION IF EXISTS pg_temp.subject_function(oid);
CREATE TEMP VIEW seen AS SELECT 1 AS one, 2 AS two;
CREATE TEMP SEQUENCE seq;
CREATE TYPE pg_temp.label AS ENUM ('b', 'a');
CREATE DOMAIN pg_temp.number AS int CONSTRAINT small CHECK (value < 5);
CREATE TYPE pg_temp.pair AS (a int, b int, c int);
-- Objects of this session in a permanent schema, and objects that depend on each other.
CREATE STATISTICS ddl_temporary.own_statistics ON id, v FROM pg_temp.tab;
CREATE TEMP TABLE own (id serial REFERENCES pg_temp.tab, l pg_temp.label[], n pg_temp.number DEFAULT 3, p pg_temp.pair, s int DEFAULT nextval('pg_temp.seq'));
CREATE INDEX ON own (l);
CREATE TRIGGER t BEFORE INSERT ON own FOR EACH ROW EXECUTE FUNCTION subject_trigger();
CREATE RULE r AS ON DELETE TO own DO INSTEAD NOTHING;
ALTER TABLE own ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON own USING (id IN (SELECT id FROM pg_temp.tab));
CREATE TEMP VIEW over_own AS SELECT own, seen FROM own, pg_temp.seen;

-- Runs it and returns the result: the error, or "recorded"; then whether anything permanent depends on anything temporary, but for
-- functions that stay local.
CREATE FUNCTION uses() RETURNS bigint LANGUAGE sql AS $$
    SELECT count(*) FROM pg_depend
    WHERE (pg_identify_object(refclassid, refobjid, 0)).identity ~ 'pg_temp' AND (pg_identify_object(classid, objid, 0)).identity !~ 'pg_temp';
$$;
CREATE FUNCTION comes_to(statement text) RETURNS text LANGUAGE plpgsql SET search_path = ddl_temporary AS $$
DECLARE
    answer text;
    before bigint := onetrip.pending_bytes();
    used bigint := uses();
BEGIN
    BEGIN
        EXECUTE statement;
        SELECT CASE WHEN onetrip.pending_bytes() > before THEN 'recorded' ELSE 'local' END INTO answer;
        IF uses() > used AND NOT (answer = 'local' AND statement LIKE 'CREATE FUNCTION%') THEN answer := answer || ', AND USES WHAT IS TEMPORARY'; END IF;
        RAISE EXCEPTION USING ERRCODE = 'ZZZZZ', MESSAGE = answer;
    EXCEPTION WHEN OTHERS THEN
        answer := CASE SQLSTATE WHEN 'ZZZZZ' THEN SQLERRM ELSE SQLSTATE || ' ' || regexp_replace(SQLERRM, 'pg_temp_\d+', 'pg_temp', 'g') END;
    END;
    RETURN answer;
END $$;
\set QUIET on
\pset format unaligned
\pset tuples_only on
SELECT s || E'\n    ' || comes_to(s) FROM unnest(ARRAY[
    'ALTER TABLE subject ADD COLUMN c label',
    'ALTER TABLE subject ADD COLUMN c label[]',
    'ALTER TABLE subject ADD COLUMN c tab',
    'ALTER TABLE subject ADD COLUMN c number',
    'ALTER TABLE subject ADD COLUMN c ddl_temporary.number',
    'ALTER TABLE subject ADD COLUMN c text DEFAULT ''a''::label::text',
    'ALTER TABLE subject ADD COLUMN c oid DEFAULT ''seq''::regclass',
    'ALTER TABLE subject ALTER n SET DEFAULT nextval(''seq'')',
    'ALTER TABLE subject ALTER n SET DEFAULT nextval(''ddl_temporary.seq'')',
    'ALTER TABLE subject ADD COLUMN c text DEFAULT ''a''::label::text, ALTER c SET DEFAULT ''b''',
    'ALTER TABLE subject ADD COLUMN IF NOT EXISTS n int DEFAULT nextval(''seq''), ALTER n SET DEFAULT 1',
    'ALTER TABLE subject ADD COLUMN c int GENERATED ALWAYS AS ((1::number)::int) STORED',
    'ALTER TABLE subject ALTER n SET DEFAULT nextval(''seq''), ALTER n SET DEFAULT 1',
    'ALTER VIEW subject_view ALTER n SET DEFAULT nextval(''seq''), ALTER n DROP DEFAULT',
    'ALTER TABLE subject ALTER n SET DEFAULT nextval(''seq''::text)',
    'ALTER TABLE subject ADD CHECK (n < 2::number)',
    'ALTER TABLE subject ADD CHECK (t::regclass <> ''tab''::regclass)',
    'ALTER TABLE subject ALTER n TYPE number',
    'ALTER TABLE subject ALTER n TYPE int USING (ROW(n, n)::pair).a',
    'ALTER TABLE subject ALTER t TYPE text USING t::label::text',
    'ALTER TABLE subject ALTER t TYPE text USING ''tab''::regclass::text',
    'ALTER TABLE subject ADD FOREIGN KEY (n) REFERENCES tab',
    'ALTER TABLE subject ADD FOREIGN KEY (n) REFERENCES ddl_temporary.tab',
    'ALTER TABLE subject INHERIT tab',
    'ALTER TABLE subject NO INHERIT tab',
    'ALTER TABLE subject OF pair',
    'ALTER TABLE parted ATTACH PARTITION tab FOR VALUES IN (''x'')',
    'ALTER VIEW subject_view ALTER n SET DEFAULT nextval(''seq'')',
    'ALTER SEQUENCE ddl_temporary.seq OWNED BY tab.id',
    'ALTER TYPE subject_type ADD ATTRIBUTE b label',
    'ALTER TYPE subject_type ALTER ATTRIBUTE a TYPE number',
    'ALTER DOMAIN subject_domain ADD CHECK (value::label IS NOT NULL)',
    'ALTER DOMAIN subject_domain SET DEFAULT ''tab''::regclass::text',
    'CREATE TABLE made (a label)',
    'CREATE TABLE made (a int DEFAULT nextval(''seq''))',
    'CREATE TABLE made (a int CHECK (a < 2::number))',
    'CREATE TABLE made (a int GENERATED ALWAYS AS ((1::number)::int) STORED)',
    'CREATE TABLE made (LIKE tab)',
    'CREATE TABLE made () INHERITS (tab)',
    'CREATE TABLE made OF pair',
    'CREATE TABLE made (a int REFERENCES tab)',
    'CREATE TABLE made PARTITION OF tab FOR VALUES IN (1)',
    'CREATE TABLE made PARTITION OF parted FOR VALUES IN (''tab''::regclass::text)',
    'CREATE TABLE made AS SELECT ''a''::label AS l',
    'CREATE TABLE made AS SELECT * FROM tab',
    'SELECT t INTO made FROM tab t',
    'CREATE MATERIALIZED VIEW made AS SELECT * FROM tab',
    'CREATE MATERIALIZED VIEW made AS SELECT ''seq''::regclass',
    'CREATE MATERIALIZED VIEW made AS SELECT ''a''::label',
    'CREATE VIEW made AS SELECT * FROM tab',
    'CREATE VIEW ddl_temporary.made AS SELECT * FROM tab',
    'CREATE VIEW made AS SELECT nextval(''seq'')',
    'CREATE VIEW made AS SELECT ''a''::label',
    'CREATE VIEW made AS SELECT id FROM subject WHERE n = (SELECT count(*) FROM seen)',
    'CREATE OR REPLACE VIEW subject_view AS SELECT id, n, ''a''::label AS l FROM subject',
    'CREATE RECURSIVE VIEW made (a) AS SELECT ''1''::number',
    'CREATE SEQUENCE made OWNED BY tab.id',
    'CREATE INDEX ON subject ((n::number))',
    'CREATE INDEX ON subject (id) WHERE t::label = ''a''',
    'CREATE INDEX ON subject (subject_function(''tab''::regclass))',
    'CREATE INDEX ON tab (v)',
    'CREATE STATISTICS made ON (n::number), id FROM subject',
    'CREATE POLICY made ON subject USING (n IN (SELECT id FROM tab))',
    'CREATE POLICY made ON subject WITH CHECK (t = ''tab''::regclass::text)',
    'CREATE RULE made AS ON INSERT TO subject DO INSERT INTO tab VALUES (1)',
    'CREATE RULE made AS ON INSERT TO subject WHERE new.n = 1::number DO NOTHING',
    'CREATE TRIGGER made BEFORE UPDATE ON subject FOR EACH ROW WHEN (new.n = 1::number) EXECUTE FUNCTION subject_trigger()',
    'CREATE TRIGGER made BEFORE UPDATE ON subject FOR EACH ROW WHEN (new.id > ''tab''::regclass::int) EXECUTE FUNCTION subject_trigger()',
    'CREATE CONSTRAINT TRIGGER made AFTER INSERT ON subject FROM tab FOR EACH ROW EXECUTE FUNCTION subject_trigger()',
    'CREATE DOMAIN made AS label',
    'CREATE DOMAIN made AS int CHECK (value < 1::number)',
    'CREATE DOMAIN made AS oid DEFAULT ''seq''::regclass',
    'CREATE TYPE made AS (a label)',
    'CREATE TYPE made AS RANGE (subtype = number)',
    'CREATE FUNCTION made(label) RETURNS int LANGUAGE sql AS ''SELECT 1''',
    'CREATE FUNCTION made() RETURNS SETOF tab LANGUAGE sql AS ''SELECT NULL::int, NULL::text''',
    'CREATE FUNCTION made(a int DEFAULT 1::number) RETURNS int LANGUAGE sql AS ''SELECT 1''',
    'CREATE FUNCTION made() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM tab; END',
    'CREATE FUNCTION made() RETURNS int LANGUAGE sql AS ''SELECT of_this_session FROM tab''',
    'CREATE PROCEDURE made(INOUT a pair) LANGUAGE sql AS ''SELECT a''',
    'CREATE AGGREGATE made(int) (sfunc = int4pl, stype = number)',
    'CREATE OPERATOR ### (function = enum_eq, leftarg = label, rightarg = label)',
    'CREATE CAST (label AS int) WITH INOUT',
    'CREATE OPERATOR CLASS made FOR TYPE label USING hash AS OPERATOR 1 =(anyenum, anyenum), FUNCTION 1 hashenum(anyenum)',
    'CREATE SCHEMA made_schema CREATE TABLE made (a label)',
    'CREATE SCHEMA made_schema CREATE TABLE made (a int) CREATE VIEW over AS SELECT nextval(''seq'') FROM made',
    'CREATE SCHEMA made_schema CREATE TABLE made (LIKE tab)',
    'CREATE SCHEMA made_schema CREATE TABLE made (LIKE ddl_temporary.tab)',
    'DROP FUNCTION made(label)',
    'COMMENT ON TYPE label IS ''x''',
    'COMMENT ON CONSTRAINT small ON DOMAIN number IS ''x''',
    'ALTER DOMAIN number RENAME CONSTRAINT small TO smaller',
    'ALTER DOMAIN number DROP CONSTRAINT small',
    'COMMENT ON COLUMN tab.v IS ''x''',
    'ALTER TYPE label ADD VALUE ''c''',
    'GRANT USAGE ON SEQUENCE seq TO of_temporary',
    'GRANT USAGE ON TYPE label TO of_temporary',
    'ALTER EXTENSION plpgsql ADD TABLE tab',
    'ALTER EXTENSION plpgsql ADD TABLE ddl_temporary.tab',
    'ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO of_temporary'
]) s;
\pset format aligned
\pset tuples_only off

-- A temporary table may be a child of a permanent one.  ALTER of its parent is recorded; what is about the child is not.
CREATE TABLE parent_here (id int PRIMARY KEY) USING heap;
CREATE TEMP TABLE child () INHERITS (subject);
DROP TABLE child;
CREATE TEMP TABLE child () INHERITS (tab, parent_here);
ALTER TABLE child NO INHERIT parent_here;
DROP TABLE child;
CREATE TABLE pg_temp.child () INHERITS (parent_here);
DROP TABLE child;
CREATE TEMP TABLE child (id int NOT NULL, n int, t text);
BEGIN;
ALTER TABLE child INHERIT subject;
CREATE TEMP TABLE grandchild () INHERITS (child, tab);
ALTER TABLE grandchild NO INHERIT child;
ALTER TABLE grandchild INHERIT child;
INSERT INTO grandchild VALUES (1000);
UPDATE subject SET n = 1 WHERE id = 1000;
SELECT onetrip.pending_bytes();
ALTER TABLE subject ADD COLUMN of_all int DEFAULT 7;
SELECT onetrip.pending_bytes() > 0 AS recorded, (SELECT of_all FROM grandchild);
ROLLBACK;
CREATE TEMP TABLE sub PARTITION OF parted FOR VALUES IN ('x');
CREATE TEMP TABLE sub () INHERITS (missing);

-- Statistics of a temporary table stay here, whatever schema they are in; and so does a schema of temporary objects.
CREATE TEMP TABLE measured (a int, b int);
CREATE STATISTICS of_temporary ON a, b FROM measured;
CREATE STATISTICS of_permanent ON id, n FROM subject;
BEGIN;
COMMENT ON STATISTICS of_temporary IS 'temporary';
ALTER STATISTICS of_temporary SET STATISTICS 10;
ALTER STATISTICS of_temporary RENAME TO of_temporary_table;
DROP STATISTICS of_temporary_table;
DROP SCHEMA IF EXISTS pg_temp_1000, pg_toast_temp_1000 CASCADE;
SELECT onetrip.pending_bytes();
ALTER STATISTICS of_permanent SET STATISTICS 10;
SELECT onetrip.pending_bytes() > 0 AS captured;
ROLLBACK;
DROP SCHEMA pg_temp_1000;
DROP SCHEMA ddl_temporary, pg_temp_1000;
BEGIN;
SELECT nspname AS mine FROM pg_namespace WHERE oid = pg_my_temp_schema() \gset
GRANT USAGE ON SCHEMA :mine TO of_temporary;
GRANT SELECT ON ALL TABLES IN SCHEMA pg_temp TO of_temporary;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA :mine TO of_temporary;
ALTER SCHEMA :mine OWNER TO of_temporary;
SELECT onetrip.pending_bytes();
ROLLBACK;
GRANT SELECT ON ALL TABLES IN SCHEMA ddl_temporary, pg_temp TO of_temporary;
ALTER DEFAULT PRIVILEGES IN SCHEMA :mine GRANT SELECT ON TABLES TO of_temporary;
\echo :LAST_ERROR_SQLSTATE
ALTER DEFAULT PRIVILEGES FOR ROLE of_temporary IN SCHEMA ddl_temporary, :mine REVOKE SELECT ON TABLES FROM of_temporary;
-- Those of another region have the name: the session makes way once the entry has failed.
DROP STATISTICS of_temporary;
BEGIN;
CREATE STATISTICS IF NOT EXISTS of_temporary ON id, n FROM subject;
SELECT unit.write_set() AS made \gset
ROLLBACK;
CREATE STATISTICS of_temporary ON a, b FROM measured;
BEGIN;
CREATE STATISTICS IF NOT EXISTS of_temporary ON id, n FROM subject;
ROLLBACK;
SELECT unit.apply(:'made'::bytea);
DROP TABLE measured;
SELECT unit.apply(:'made'::bytea);
SELECT stxrelid::regclass FROM pg_statistic_ext WHERE stxname = 'of_temporary';

-- So do those that have a name which PostgreSQL would make up.
CREATE TABLE with_statistics (a int, b int);
CREATE STATISTICS with_statistics_both ON a, b FROM with_statistics;
BEGIN;
CREATE TABLE made_like (LIKE with_statistics INCLUDING ALL);
SELECT unit.write_set() AS made \gset
ROLLBACK;
CREATE TEMP TABLE measured (a int, b int);
CREATE STATISTICS made_like_a_b_stat ON a, b FROM measured;
BEGIN;
CREATE TABLE made_like (LIKE with_statistics INCLUDING STATISTICS);
ROLLBACK;
BEGIN;
CREATE TABLE made_like (LIKE with_statistics INCLUDING INDEXES);
CREATE TABLE made_otherwise (LIKE with_statistics INCLUDING STATISTICS);
ROLLBACK;
SELECT unit.apply(:'made'::bytea);
DROP TABLE measured;
SELECT unit.apply(:'made'::bytea);
SELECT stxname, stxrelid::regclass FROM pg_statistic_ext WHERE stxname ^@ 'made_like';

-- IF EXISTS passes over what is not there, in one statement with what is temporary; nobody makes it meanwhile.
CREATE TABLE stays (id int PRIMARY KEY);
CREATE SEQUENCE stays_seq;
CREATE COLLATION stays_collation FROM "C";
DO $$ DECLARE
    made record;
BEGIN
    FOR made IN SELECT * FROM (VALUES
        ('TABLE', 'TEMP TABLE mine (id int)', 'mine', 'missing', 'stays'),
        ('VIEW', 'TEMP VIEW mine AS SELECT 1 AS one', 'mine', 'missing', 'subject_view'),
        ('SEQUENCE', 'TEMP SEQUENCE mine', 'mine', 'missing', 'stays_seq'),
        ('INDEX', 'INDEX mine ON tab (id)', 'mine', 'missing', 'subject_pkey'),
        ('TYPE', 'TYPE pg_temp.mine AS (a int)', 'pg_temp.mine', 'missing', 'subject_type'),
        ('DOMAIN', 'DOMAIN pg_temp.mine AS int', 'mine', 'missing', 'subject_domain'),
        ('FUNCTION', 'FUNCTION pg_temp.mine() RETURNS int LANGUAGE sql AS ''SELECT 1''', 'pg_temp.mine()', 'missing(int)', 'subject_function(oid)'),
        ('COLLATION', 'COLLATION pg_temp.mine FROM "C"', 'pg_temp.mine', 'missing', 'stays_collation'),
        ('STATISTICS', 'STATISTICS mine ON id, v FROM tab', 'mine', 'missing', 'with_statistics_both')
    ) AS v (kind, made, name, missing, permanent)
    LOOP
        EXECUTE 'CREATE ' || made.made;
        -- of temporary and permanent ones neither is dropped
        BEGIN
            EXECUTE format('DROP %s IF EXISTS %s, %s', made.kind, made.name, made.permanent);
            RAISE 'both';
        EXCEPTION WHEN feature_not_supported THEN NULL;
        END;
        BEGIN
            EXECUTE format('DROP %s %s, %s', made.kind, made.name, made.missing);
            RAISE 'missing';
        EXCEPTION WHEN undefined_table OR undefined_object OR undefined_function THEN NULL;
        END;
        EXECUTE format('DROP %s IF EXISTS %s, %s', made.kind, made.missing, made.name);
        BEGIN
            EXECUTE format('DROP %s %s', made.kind, made.name);
            RAISE 'not dropped';
        EXCEPTION WHEN undefined_table OR undefined_object OR undefined_function THEN NULL;
        END;
    END LOOP;
END $$;
CREATE TEMP TABLE mine (id int);
BEGIN;
DROP TABLE IF EXISTS missing, mine;
SELECT mode FROM pg_locks JOIN pg_am ON objid = pg_am.oid WHERE pid = pg_backend_pid() AND amname = 'onetrip' AND objsubid = 0;
:operations;
COMMIT;
-- What is named as temporary may be missing too.
DROP TABLE IF EXISTS pg_temp.mine, missing;
DROP TABLE IF EXISTS pg_temp.mine, stays;
\echo :LAST_ERROR_SQLSTATE

-- A materialized view is temporary if search_path puts it there; before 17, PostgreSQL refuses that.
BEGIN;
SET LOCAL search_path = pg_temp, ddl_temporary;
DO $$ BEGIN
    CREATE MATERIALIZED VIEW shown AS SELECT 1 AS one;
    CREATE UNIQUE INDEX ON shown (one);
    REFRESH MATERIALIZED VIEW shown;
    REFRESH MATERIALIZED VIEW CONCURRENTLY shown;
    ASSERT (SELECT relpersistence = 't' FROM pg_class WHERE relname = 'shown');
    DROP MATERIALIZED VIEW shown;
EXCEPTION WHEN insufficient_privilege THEN
    ASSERT current_setting('server_version_num')::int < 170000;
END $$;
SELECT onetrip.pending_bytes();
ROLLBACK;

-- What is not there would be of something temporary, and the same statement finds what that hides elsewhere.
CREATE TABLE hidden (id int);
CREATE TRIGGER x BEFORE INSERT ON hidden FOR EACH ROW EXECUTE FUNCTION subject_trigger();
CREATE RULE x AS ON DELETE TO hidden DO INSTEAD NOTHING;
CREATE POLICY x ON hidden USING (true);
CREATE FUNCTION about(hidden) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION about(int, hidden) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE AGGREGATE about_all(hidden) (SFUNC = about, STYPE = int);
CREATE OPERATOR ### (RIGHTARG = hidden, FUNCTION = about);
CREATE TEMP TABLE hidden (id int);
SELECT s, comes_to(s) FROM unnest(ARRAY[
    'DROP TRIGGER IF EXISTS x ON hidden', 'DROP RULE IF EXISTS x ON hidden', 'DROP POLICY IF EXISTS x ON hidden',
    'DROP FUNCTION IF EXISTS about(hidden)', 'DROP ROUTINE IF EXISTS about(hidden[])',
    'DROP AGGREGATE IF EXISTS about_all(hidden)', 'DROP OPERATOR IF EXISTS ### (NONE, hidden)',
    'DROP OPERATOR IF EXISTS ### (NONE, int)', 'DROP FUNCTION IF EXISTS about(int)', 'DROP TRIGGER IF EXISTS x ON subject']) s;
DROP TABLE hidden;

-- Hidden objects are visible again.
SELECT 'tab'::regclass::text = 'tab' AS shows;
DROP TABLE child, own CASCADE;
DROP VIEW seen;
DROP TABLE tab;
DROP SEQUENCE seq;
DROP TYPE pg_temp.label, pg_temp.pair;
DROP DOMAIN pg_temp.number;
ALTER TABLE subject ADD COLUMN c label, ALTER n SET DEFAULT nextval('seq');
DROP SCHEMA ddl_temporary CASCADE;
DROP ROLE of_temporary;
