-- Goal: with onetrip.read = fresh, what psql's commands and drivers ask catalogs for asks no other region.
-- Method: a stand-in counts questions. psql makes the queries; those of drivers are as they send them.
CREATE SCHEMA described;
SET search_path = described, public;
\setenv PGHOST :HOST
\setenv PGPORT :PORT
\setenv PGUSER :USER
\setenv PGDATABASE :DBNAME
CREATE TYPE mood AS ENUM ('fine');
CREATE DOMAIN short AS text CHECK (length(VALUE) < 9);
CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v short UNIQUE, m mood, g int GENERATED ALWAYS AS (1) STORED, CHECK (id > 0));
CREATE TABLE child (id int REFERENCES t, at date NOT NULL DEFAULT 'today') PARTITION BY RANGE (at);
CREATE TABLE part PARTITION OF child FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE TABLE heir (more text) INHERITS (t);
CREATE VIEW seen AS SELECT id, v FROM t;
CREATE MATERIALIZED VIEW stored AS SELECT id FROM t;
CREATE STATISTICS both_columns ON id, v FROM t;
CREATE SEQUENCE ids;
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER noted BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION noted();
CREATE RULE never AS ON DELETE TO heir DO INSTEAD NOTHING;
CREATE POLICY mine ON t USING (id = 1);
CREATE PUBLICATION described FOR TABLE t WHERE (id > 1);
CREATE AGGREGATE total (int) (SFUNC = int4pl, STYPE = int, INITCOND = '0');
CREATE PROCEDURE does() LANGUAGE sql AS 'SELECT 1';
COMMENT ON TABLE t IS 'described';
GRANT SELECT (v) ON t TO PUBLIC;
SELECT current_setting('onetrip.agent_socket') AS socket \gset
\setenv SOCKET :socket
\set dir `mktemp -d /tmp/onetrip-catalogs.XXXXXX`
\setenv DIR :dir
\! chmod 777 $DIR; umask 0; touch $DIR/asked; echo 'psql -XAtqc "SELECT onetrip.position()"' >$DIR/answer
\! perl "$(dirname "$ONETRIP_GOLDEN")/../extension/test/stand_in.pl" $DIR $SOCKET >$DIR/log 2>&1 & for i in $(seq 200); do [ -S $DIR/node.sock ] && break; sleep 0.05; done
SELECT unit.use_socket(:'dir' || '/node.sock');
SET onetrip.read = fresh;
-- How often the node was asked since this was last looked at; nothing if it was not.
\set asked '\\! n=$(wc -l <$DIR/asked); [ $n = 0 ] || echo "asked: $n"; : >$DIR/asked'

-- The test notices one that asks.
\o /dev/null
SELECT * FROM t;
:asked

\d
:asked
\d+
:asked
\d t
:asked
\d+ t
:asked
\d+ t_pkey
:asked
\d+ child
:asked
\d+ part
:asked
\d+ heir
:asked
\d+ seen
:asked
\d+ stored
:asked
\d+ ids
:asked
\d+ short
:asked
\dS+
:asked
\da+
:asked
\dA+
:asked
\dAc+
:asked
\dAf+
:asked
\dAo+
:asked
\dAp+
:asked
\db+
:asked
\dc+
:asked
\dC+
:asked
\dconfig+ *
:asked
\dd
:asked
\dD+
:asked
\ddp
:asked
\dE+
:asked
\det+
:asked
\deu+
:asked
\des+
:asked
\dew+
:asked
\df+
:asked
\df+ noted
:asked
\dF+
:asked
\dFd+
:asked
\dFp+
:asked
\dFt+
:asked
\dg+
:asked
\di+
:asked
\dL+
:asked
\dm+
:asked
\dn+
:asked
\do+
:asked
\dO+
:asked
\dp
:asked
\dPtin+
:asked
\drds
:asked
\dRp+
:asked
\dRs+
:asked
\ds+
:asked
\dt+
:asked
\dT+
:asked
\du+
:asked
\dv+
:asked
\dx+
:asked
\dX+
:asked
\dy+
:asked
\l+
:asked
\z
:asked
\sf noted
:asked
\sv seen
:asked
-- pgJDBC: getColumns, getPrimaryKeys, getImportedKeys.
SELECT * FROM (SELECT n.nspname, c.relname, a.attname, a.atttypid, a.attnotnull OR (t.typtype = 'd' AND t.typnotnull) AS attnotnull,
    a.atttypmod, a.attlen, t.typtypmod, row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum) AS attnum,
    nullif(a.attidentity, '') AS attidentity, nullif(a.attgenerated, '') AS attgenerated,
    pg_catalog.pg_get_expr(def.adbin, def.adrelid) AS adsrc, dsc.description, t.typbasetype, t.typtype
  FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_class c ON (c.relnamespace = n.oid) JOIN pg_catalog.pg_attribute a ON (a.attrelid = c.oid)
  JOIN pg_catalog.pg_type t ON (a.atttypid = t.oid) LEFT JOIN pg_catalog.pg_attrdef def ON (a.attrelid = def.adrelid AND a.attnum = def.adnum)
  LEFT JOIN pg_catalog.pg_description dsc ON (c.oid = dsc.objoid AND a.attnum = dsc.objsubid)
  LEFT JOIN pg_catalog.pg_class dc ON (dc.oid = dsc.classoid AND dc.relname = 'pg_class')
  WHERE c.relkind IN ('r', 'p', 'v', 'f', 'm') AND a.attnum > 0 AND NOT a.attisdropped AND c.relname LIKE 't') c
  ORDER BY nspname, c.relname, attnum;
SELECT result.table_schem, result.column_name, result.key_seq
  FROM (SELECT n.nspname AS table_schem, a.attname AS column_name, (information_schema._pg_expandarray(i.indkey)).n AS key_seq,
          information_schema._pg_expandarray(i.indkey) AS keys, a.attnum AS a_attnum
          FROM pg_catalog.pg_class ct JOIN pg_catalog.pg_attribute a ON (ct.oid = a.attrelid) JOIN pg_catalog.pg_namespace n ON (ct.relnamespace = n.oid)
          JOIN pg_catalog.pg_index i ON (a.attrelid = i.indrelid) WHERE ct.relname = 't' AND i.indisprimary) result
 WHERE result.a_attnum = (result.keys).x;
:asked
-- psycopg and pgx: types by name.
SELECT typname AS name, oid, typarray AS array_oid, oid::regtype::text AS regtype, typdelim AS delimiter
  FROM pg_type t WHERE t.oid = to_regtype('mood') ORDER BY t.oid;
SELECT t.oid, t.typname FROM pg_type t WHERE t.oid = 'mood'::regtype;
:asked
-- ActiveRecord and node-postgres' users: a table by 't'::regclass.
SELECT a.attname, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid), col_description(a.attrelid, a.attnum)
  FROM pg_attribute a LEFT JOIN pg_attrdef d ON a.attrelid = d.adrelid AND a.attnum = d.adnum
 WHERE a.attrelid = '"t"'::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum;
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'child'::regclass;
SELECT pg_get_serial_sequence('t', 'id'), has_table_privilege('t'::regclass, 'SELECT'), pg_get_viewdef('seen'::regclass);
:asked
-- Npgsql: all types. SQLAlchemy, Django, Liquibase: information_schema.
SELECT ns.nspname, t.oid, t.typname, t.typtype, t.typnotnull, t.elemtypoid FROM (
    SELECT typ.oid, typ.typnamespace, typ.typname, typ.typtype, typ.typrelid, typ.typnotnull, elemtyp.oid AS elemtypoid
      FROM pg_type AS typ LEFT JOIN pg_class AS cls ON (cls.oid = typ.typrelid) LEFT JOIN pg_type AS elemtyp ON elemtyp.oid = typ.typelem) AS t
  JOIN pg_namespace AS ns ON (ns.oid = t.typnamespace) WHERE t.typtype IN ('b', 'r', 'm', 'e', 'd');
:asked
SELECT * FROM information_schema.tables;
:asked
SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns WHERE table_schema = 'described';
:asked
SELECT * FROM information_schema.columns;
SELECT * FROM information_schema.table_constraints JOIN information_schema.key_column_usage USING (constraint_name);
SELECT * FROM information_schema.referential_constraints;
SELECT * FROM information_schema.sequences;
SELECT * FROM information_schema.routines;
SELECT * FROM information_schema.domain_constraints;
SELECT * FROM information_schema.triggers;
SELECT * FROM information_schema.role_table_grants;
:asked
SELECT 'x'::information_schema.sql_identifier, 'YES'::information_schema.yes_or_no, 1::information_schema.cardinal_number;
:asked
SELECT * FROM pg_catalog.pg_sequences;
SELECT * FROM pg_catalog.pg_stats;
SELECT * FROM pg_catalog.pg_publication_tables;
SELECT * FROM pg_catalog.pg_prepared_xacts;
SELECT * FROM pg_catalog.pg_locks;
SELECT nextval('ids'), currval('ids'::regclass);
:asked

-- What reads rows asks, however it comes to them.
SELECT id FROM seen;
:asked
SELECT id FROM stored;
:asked
SELECT table_to_xml('t'::regclass, true, false, '');
:asked
SELECT query_to_xml('SELECT id FROM t', true, false, '');
:asked
SELECT c.relname FROM pg_class c WHERE c.oid = 't'::regclass AND EXISTS (SELECT FROM t) IS NOT NULL;
:asked
\o
RESET onetrip.read;
SELECT unit.use_socket(NULL);
\! rm -r $DIR
SET client_min_messages = warning;
DROP PUBLICATION described;
DROP SCHEMA described CASCADE;
