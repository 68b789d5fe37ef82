-- Goal: whatever can depend on a temporary object is temporary as well, or refused; nothing permanent is made or changed in
-- this region alone.
-- Method: a statement for each kind of object that PostgreSQL notes dependencies of, in a permanent schema and in pg_temp.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA dependents;
SET search_path = dependents;
SET client_min_messages = warning;
CREATE TABLE subject (id int PRIMARY KEY, n int);
CREATE VIEW seen AS SELECT id FROM subject;
CREATE SEQUENCE numbers;
CREATE TYPE pair AS (a int, b int);
CREATE DOMAIN small AS int;
CREATE FUNCTION minus(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT -$1';
CREATE FUNCTION same(int, int) RETURNS bool LANGUAGE internal IMMUTABLE STRICT AS 'int4eq';
CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE OPERATOR === (leftarg = int, rightarg = int, function = same);
CREATE OPERATOR FAMILY family USING btree;
CREATE TEXT SEARCH CONFIGURATION config (parser = "default");
CREATE FOREIGN DATA WRAPPER wrapper;
CREATE AGGREGATE total(int) (sfunc = int4pl, stype = int);

CREATE TEMP TABLE tab (id int PRIMARY KEY, v text);
CREATE TYPE pg_temp.label AS ENUM ('a', 'b');
CREATE TYPE pg_temp.other_label AS ENUM ('a', 'b');
CREATE DOMAIN pg_temp.number AS int CHECK (value < 5);
CREATE TEMP SEQUENCE counter;
CREATE COLLATION pg_temp.order_here FROM "C";
CREATE FUNCTION pg_temp.negative(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT -$1';
CREATE FUNCTION pg_temp.equal(pg_temp.label, pg_temp.label) RETURNS bool LANGUAGE internal IMMUTABLE STRICT AS 'enum_eq';
CREATE FUNCTION pg_temp.compare(pg_temp.label, pg_temp.label) RETURNS int LANGUAGE internal IMMUTABLE STRICT AS 'enum_cmp';
CREATE FUNCTION pg_temp.int_compare(int, int) RETURNS int LANGUAGE internal IMMUTABLE STRICT AS 'btint4cmp';
CREATE FUNCTION pg_temp.trigger_here() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE FUNCTION pg_temp.event() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';
CREATE FUNCTION pg_temp.call() RETURNS language_handler LANGUAGE c AS '$libdir/plpgsql', 'plpgsql_call_handler';
CREATE FUNCTION pg_temp.supports(internal) RETURNS internal LANGUAGE internal STRICT AS 'textlike_support';
CREATE FUNCTION pg_temp.am(internal) RETURNS index_am_handler LANGUAGE internal STRICT AS 'bthandler';
CREATE FUNCTION pg_temp.checks(text[], oid) RETURNS void LANGUAGE internal STRICT AS 'postgresql_fdw_validator';
CREATE FUNCTION pg_temp.converts(int, int, cstring, internal, int, bool) RETURNS int LANGUAGE internal STRICT AS 'iso8859_1_to_utf8';
CREATE FUNCTION pg_temp.lexize(internal, internal, internal, internal) RETURNS internal LANGUAGE internal STRICT AS 'dsimple_lexize';
CREATE FUNCTION pg_temp.start(internal, int) RETURNS internal LANGUAGE internal STRICT AS 'prsd_start';
CREATE OPERATOR pg_temp.#=# (leftarg = pg_temp.label, rightarg = pg_temp.label, function = pg_temp.equal);
CREATE OPERATOR pg_temp.=#= (leftarg = int, rightarg = int, function = same);
CREATE TEXT SEARCH DICTIONARY pg_temp.dictionary (template = simple);
CREATE TEXT SEARCH PARSER pg_temp.parser (start = prsd_start, gettoken = prsd_nexttoken, end = prsd_end, lextypes = prsd_lextype);
CREATE TEXT SEARCH TEMPLATE pg_temp.template (lexize = dsimple_lexize);
CREATE TEXT SEARCH CONFIGURATION pg_temp.config_here (parser = "default");
CREATE OPERATOR FAMILY pg_temp.family_here USING btree;
CREATE CAST (pg_temp.label AS text) WITH INOUT;
CREATE FUNCTION counted(int) RETURNS text LANGUAGE sql RETURN (SELECT count(*)::text FROM tab);
CREATE FUNCTION labelled(pair) RETURNS pg_temp.label LANGUAGE sql RETURN 'a'::pg_temp.label;

-- What a statement comes to, whether it leaves something in the write set, and what permanent rows it leaves in the
-- catalogs of such objects.
CREATE FUNCTION permanent() RETURNS bigint LANGUAGE sql AS $$
    SELECT hashtext(string_agg(r, ' ' ORDER BY r))::bigint FROM (
        SELECT to_jsonb(o)::text FROM pg_operator o WHERE o.oid >= 16384 AND oprnamespace <> pg_my_temp_schema()
        UNION ALL SELECT to_jsonb(o)::text FROM pg_opclass o WHERE o.oid >= 16384 AND opcnamespace <> pg_my_temp_schema()
        UNION ALL SELECT to_jsonb(o)::text FROM pg_opfamily o WHERE o.oid >= 16384 AND opfnamespace <> pg_my_temp_schema()
        UNION ALL SELECT to_jsonb(o)::text FROM pg_amop o JOIN pg_opfamily f ON f.oid = amopfamily WHERE o.oid >= 16384 AND opfnamespace <> pg_my_temp_schema()
        UNION ALL SELECT to_jsonb(o)::text FROM pg_amproc o JOIN pg_opfamily f ON f.oid = amprocfamily WHERE o.oid >= 16384 AND opfnamespace <> pg_my_temp_schema()
        UNION ALL SELECT to_jsonb(o)::text FROM pg_statistic_ext o JOIN pg_class c ON c.oid = stxrelid WHERE relpersistence <> 't'
        UNION ALL SELECT relname FROM pg_class WHERE oid >= 16384 AND relpersistence <> 't'
        UNION ALL SELECT to_jsonb(o)::text FROM pg_type o WHERE o.oid >= 16384 AND typnamespace <> pg_my_temp_schema()
    ) s(r)
$$;
CREATE FUNCTION comes_to(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
    catalogs bigint := permanent();
    before bigint := onetrip.pending_bytes();
BEGIN
    BEGIN
        EXECUTE statement;
        SELECT CASE WHEN onetrip.pending_bytes() > before THEN 'recorded' WHEN permanent() <> catalogs THEN 'WRONG' ELSE 'local' END INTO answer;
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
    -- tables, views, sequences, indexes, composite types
    'CREATE TABLE made (l pg_temp.label)',
    'CREATE TABLE made (n small, l tab[])',
    'CREATE TABLE made (id int DEFAULT nextval(''counter''))',
    'CREATE TABLE made (v text COLLATE pg_temp.order_here)',
    'CREATE TABLE made () INHERITS (tab)',
    'CREATE TABLE made OF pg_temp.label',
    'CREATE TABLE made (id int REFERENCES tab)',
    'CREATE TABLE made (id int CHECK (pg_temp.negative(id) < 0))',
    'CREATE TABLE made (id int, m int GENERATED ALWAYS AS (pg_temp.negative(id)) STORED)',
    'CREATE TABLE made (id int, EXCLUDE USING btree (id WITH OPERATOR(pg_temp.=#=)))',
    'ALTER TABLE subject ADD l pg_temp.label',
    'ALTER TABLE subject ALTER n TYPE pg_temp.number',
    'ALTER TABLE subject ALTER n SET DEFAULT pg_temp.negative(1)',
    'ALTER TABLE subject INHERIT tab',
    'CREATE UNLOGGED TABLE made (l pg_temp.label)',
    'CREATE FOREIGN TABLE made (l pg_temp.label) SERVER none',
    'CREATE TABLE made AS SELECT ''a''::pg_temp.label AS l',
    'CREATE VIEW made AS SELECT * FROM tab',
    'CREATE VIEW made AS SELECT ''a''::pg_temp.label AS l',
    'CREATE VIEW made AS SELECT pg_temp.negative(1) AS l',
    'CREATE VIEW made AS SELECT id OPERATOR(pg_temp.=#=) 1 AS l FROM subject',
    'CREATE OR REPLACE VIEW seen AS SELECT id, pg_temp.negative(id) AS n FROM subject',
    'CREATE MATERIALIZED VIEW made AS SELECT ''a''::pg_temp.label AS l',
    'CREATE SEQUENCE made OWNED BY tab.id',
    'ALTER SEQUENCE numbers OWNED BY tab.id',
    'CREATE INDEX ON subject (pg_temp.negative(n))',
    'CREATE TYPE made AS (l pg_temp.label)',
    'ALTER TYPE pair ADD ATTRIBUTE l pg_temp.label',
    -- types
    'CREATE DOMAIN made AS pg_temp.label',
    'CREATE DOMAIN made AS int CHECK (pg_temp.negative(value) < 0)',
    'CREATE DOMAIN made AS int DEFAULT pg_temp.negative(1)',
    'ALTER DOMAIN small ADD CHECK (pg_temp.negative(value) < 0)',
    'ALTER DOMAIN small SET DEFAULT pg_temp.negative(1)',
    'CREATE TYPE made AS RANGE (subtype = pg_temp.label)',
    'CREATE TYPE made AS RANGE (subtype = text, collation = pg_temp.order_here)',
    'CREATE TYPE made (input = pg_temp.made_in, output = pg_temp.made_out)',
    'ALTER TYPE pair ALTER ATTRIBUTE a TYPE pg_temp.label',
    -- functions
    'CREATE FUNCTION made(pg_temp.label) RETURNS int LANGUAGE sql AS ''SELECT 1''',
    'CREATE FUNCTION made() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM tab; END',
    'CREATE FUNCTION made(int DEFAULT pg_temp.negative(1)) RETURNS int LANGUAGE sql AS ''SELECT 1''',
    'CREATE FUNCTION made(text) RETURNS bool LANGUAGE internal SUPPORT pg_temp.supports AS ''textlike''',
    'ALTER FUNCTION minus(int) SUPPORT pg_temp.supports',
    'CREATE AGGREGATE made(pg_temp.label) (sfunc = array_append, stype = pg_temp.label[])',
    'CREATE AGGREGATE made(int) (sfunc = pg_temp.int_compare, stype = int)',
    'CREATE OR REPLACE AGGREGATE total(int) (sfunc = pg_temp.int_compare, stype = int)',
    -- casts, operators, and what is made of them
    'CREATE CAST (pg_temp.label AS pg_temp.other_label) WITH INOUT',
    'CREATE CAST (int AS pg_temp.label) WITH INOUT',
    'CREATE CAST (pg_temp.label AS int) WITH INOUT AS IMPLICIT',
    'CREATE CAST (int AS pair) WITH FUNCTION pg_temp.negative(int)',
    'CREATE CAST (int AS text) WITH FUNCTION counted(int)',
    'CREATE CAST (pair AS pg_temp.label) WITH FUNCTION labelled(pair)',
    'DROP CAST (pg_temp.label AS text)',
    'DROP CAST IF EXISTS (pg_temp.label AS date)',
    'DROP CAST IF EXISTS (pair AS date)',
    'COMMENT ON CAST (pg_temp.label AS text) IS ''x''',
    'ALTER EXTENSION plpgsql ADD CAST (pg_temp.label AS text)',
    'DROP TYPE pg_temp.label CASCADE',
    'CREATE TABLE made AS SELECT ''a''::pg_temp.label::text AS l',
    'CREATE VIEW made AS SELECT ''a''::pg_temp.label::text AS l',
    'CREATE OPERATOR ### (leftarg = pg_temp.label, rightarg = pg_temp.label, function = pg_temp.equal)',
    'CREATE OPERATOR ### (rightarg = int, function = pg_temp.negative)',
    'CREATE OPERATOR ### (leftarg = int, rightarg = int, function = same, restrict = pg_temp.sel)',
    'CREATE OPERATOR pg_temp.### (leftarg = pg_temp.label, rightarg = pg_temp.label, function = pg_temp.equal)',
    'CREATE OPERATOR pg_temp.### (rightarg = int, function = minus)',
    'CREATE OPERATOR pg_temp.### (leftarg = int, rightarg = int, function = same, commutator = ###)',
    'CREATE OPERATOR pg_temp.### (leftarg = int, rightarg = int, function = same, commutator = @@@)',
    'CREATE OPERATOR pg_temp.### (leftarg = int, rightarg = int, function = same, commutator = ===)',
    'CREATE OPERATOR pg_temp.### (leftarg = int, rightarg = int, function = same, negator = ===)',
    'CREATE OPERATOR pg_temp.### (leftarg = pg_temp.label, rightarg = pg_temp.label, function = pg_temp.equal, negator = @@@)',
    'CREATE OPERATOR pg_temp.### (leftarg = int, rightarg = int, function = same, commutator = OPERATOR(pg_temp.###), negator = OPERATOR(pg_temp.@@@))',
    'ALTER OPERATOR pg_temp.=#=(int, int) SET (restrict = eqsel)',
    'CREATE OPERATOR FAMILY pg_temp.made USING btree',
    'ALTER OPERATOR FAMILY pg_temp.family_here USING btree ADD FUNCTION 1 (int, int) btint4cmp(int, int)',
    'ALTER OPERATOR FAMILY family USING btree ADD FUNCTION 1 (int, int) pg_temp.int_compare(int, int)',
    'ALTER OPERATOR FAMILY family USING btree ADD OPERATOR 3 pg_temp.=#=(int, int)',
    'CREATE OPERATOR CLASS made FOR TYPE pg_temp.label USING btree AS FUNCTION 1 pg_temp.compare',
    'CREATE OPERATOR CLASS made FOR TYPE int USING btree AS FUNCTION 1 pg_temp.int_compare(int, int)',
    'CREATE OPERATOR CLASS pg_temp.made FOR TYPE int USING btree AS FUNCTION 1 btint4cmp',
    'CREATE OPERATOR CLASS pg_temp.made DEFAULT FOR TYPE pg_temp.label USING hash AS FUNCTION 1 hashenum(anyenum)',
    'CREATE OPERATOR CLASS pg_temp.made DEFAULT FOR TYPE pair USING hash AS FUNCTION 1 hash_record(record)',
    'CREATE OPERATOR CLASS pg_temp.made FOR TYPE int USING btree FAMILY family AS FUNCTION 1 btint4cmp',
    'CREATE OPERATOR CLASS pg_temp.made FOR TYPE int USING btree FAMILY pg_temp.family_here AS FUNCTION 1 btint4cmp',
    -- what has no schema
    'CREATE ACCESS METHOD made TYPE INDEX HANDLER pg_temp.am',
    'CREATE LANGUAGE made HANDLER pg_temp.call',
    'CREATE TRANSFORM FOR pg_temp.label LANGUAGE plpgsql (FROM SQL WITH FUNCTION prsd_lextype(internal))',
    'CREATE TRANSFORM FOR int LANGUAGE plpgsql (FROM SQL WITH FUNCTION pg_temp.supports(internal))',
    'CREATE EVENT TRIGGER made ON ddl_command_start EXECUTE FUNCTION pg_temp.event()',
    'CREATE FOREIGN DATA WRAPPER made VALIDATOR pg_temp.checks',
    'ALTER FOREIGN DATA WRAPPER wrapper VALIDATOR pg_temp.checks',
    'CREATE PUBLICATION made FOR TABLE tab',
    'CREATE PUBLICATION made FOR TABLE subject WHERE (n OPERATOR(pg_temp.=#=) 1)',
    -- conversions, text search, collations
    'CREATE CONVERSION made FOR ''LATIN1'' TO ''UTF8'' FROM pg_temp.converts',
    'CREATE CONVERSION pg_temp.made FOR ''LATIN1'' TO ''UTF8'' FROM iso8859_1_to_utf8',
    'CREATE DEFAULT CONVERSION pg_temp.made FOR ''LATIN1'' TO ''UTF8'' FROM iso8859_1_to_utf8',
    'CREATE TEXT SEARCH CONFIGURATION made (parser = pg_temp.parser)',
    'CREATE TEXT SEARCH CONFIGURATION made (copy = pg_temp.config_here)',
    'CREATE TEXT SEARCH DICTIONARY made (template = pg_temp.template)',
    'CREATE TEXT SEARCH PARSER made (start = pg_temp.start, gettoken = prsd_nexttoken, end = prsd_end, lextypes = prsd_lextype)',
    'CREATE TEXT SEARCH TEMPLATE made (lexize = pg_temp.lexize)',
    'ALTER TEXT SEARCH CONFIGURATION config ADD MAPPING FOR word WITH pg_temp.dictionary',
    'ALTER TEXT SEARCH CONFIGURATION pg_temp.config_here ADD MAPPING FOR word WITH pg_temp.dictionary',
    'ALTER TEXT SEARCH DICTIONARY pg_temp.dictionary (accept = false)',
    'CREATE TEXT SEARCH CONFIGURATION pg_temp.made (copy = english)',
    'CREATE COLLATION pg_temp.made FROM "C"',
    'CREATE COLLATION made FROM pg_temp.order_here',
    -- parts of tables
    'CREATE TRIGGER made BEFORE INSERT ON subject FOR EACH ROW EXECUTE FUNCTION pg_temp.trigger_here()',
    'CREATE TRIGGER made BEFORE INSERT ON subject FOR EACH ROW WHEN (pg_temp.negative(new.n) < 0) EXECUTE FUNCTION fires()',
    'CREATE TRIGGER made BEFORE INSERT ON tab FOR EACH ROW EXECUTE FUNCTION fires()',
    'CREATE RULE made AS ON INSERT TO subject DO ALSO INSERT INTO tab VALUES (new.id)',
    'CREATE RULE made AS ON INSERT TO tab DO ALSO INSERT INTO subject VALUES (new.id)',
    'CREATE POLICY made ON subject USING (EXISTS (SELECT FROM tab))',
    'CREATE POLICY made ON tab USING (EXISTS (SELECT FROM subject))',
    'CREATE STATISTICS made ON pg_temp.negative(id), n FROM subject',
    'CREATE STATISTICS pg_temp.made ON id, n FROM subject',
    'CREATE STATISTICS made ON id, v FROM tab',
    'CREATE STATISTICS pg_temp.made ON id, v FROM tab',
    -- all of it in pg_temp
    'CREATE TABLE pg_temp.made (a serial PRIMARY KEY, l pg_temp.label DEFAULT ''a'' CHECK (l IS NOT NULL), t text)',
    'CREATE TYPE pg_temp.made AS (l pg_temp.label)',
    'CREATE TYPE pg_temp.made AS RANGE (subtype = pg_temp.label)',
    'CREATE TYPE pg_temp.made',
    'CREATE DOMAIN pg_temp.made AS pg_temp.label CHECK (value IS NOT NULL)',
    'ALTER DOMAIN pg_temp.number ADD CHECK (pg_temp.negative(value) < 0)',
    'ALTER TABLE tab ALTER id TYPE bigint, ADD l pg_temp.label',
    'CREATE MATERIALIZED VIEW pg_temp.made AS SELECT 1',
    'CREATE AGGREGATE pg_temp.made(pg_temp.label) (sfunc = array_append, stype = pg_temp.label[])'
]) s;
\pset format aligned
\pset tuples_only off

DISCARD TEMP;
DROP SCHEMA dependents CASCADE;
DROP FOREIGN DATA WRAPPER wrapper;
