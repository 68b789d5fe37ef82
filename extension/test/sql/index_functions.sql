-- Goal: what a function of an index may not do in the apply worker, it may not do in its own region either, whatever kind of index it is.
-- Method: indexes whose functions write, lock, run DDL, draw values, change the role; every way a row gets into a table.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA index_functions;
SET search_path = index_functions;
SET client_min_messages = warning;
CREATE TABLE noted (id serial PRIMARY KEY, what text);
CREATE TABLE noted_here (what text) USING heap;
INSERT INTO noted VALUES (0, 'first');
CREATE ROLE index_other;
CREATE FUNCTION does(what text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    CASE what
        WHEN 'insert' THEN INSERT INTO noted (id, what) VALUES (-1, 'x');
        WHEN 'insert here' THEN INSERT INTO noted_here VALUES ('x');
        WHEN 'lock' THEN PERFORM FROM noted FOR UPDATE;
        WHEN 'lock table' THEN LOCK TABLE noted IN ACCESS SHARE MODE;
        WHEN 'reindex' THEN REINDEX TABLE noted;
        WHEN 'cluster' THEN CLUSTER noted USING noted_pkey;
        WHEN 'nextval' THEN PERFORM nextval('noted_id_seq');
        WHEN 'setval' THEN PERFORM setval('noted_id_seq', 100);
        WHEN 'create' THEN CREATE TABLE made (id int);
        WHEN 'create temp' THEN CREATE TEMP TABLE made (id int);
        WHEN 'truncate' THEN TRUNCATE noted;
        WHEN 'role' THEN SET ROLE index_other;
        WHEN 'caught' THEN
            BEGIN INSERT INTO noted (id, what) VALUES (-1, 'x'); EXCEPTION WHEN read_only_sql_transaction THEN NULL; END;
        ELSE NULL;
    END CASE;
    RETURN what;
END $$;
CREATE FUNCTION computes(what text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN index_functions.does(what); END';
CREATE DOMAIN checked AS text CHECK (computes(value) IS NOT NULL);
CREATE TYPE pair AS (a checked, b int);

CREATE FUNCTION says(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE detail text;
BEGIN
    EXECUTE statement;
    RETURN 'done';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    RETURN concat_ws(' ', SQLSTATE, SQLERRM, detail);
END $$;

-- Each thing that a function might do, in each kind of index.
CREATE TABLE plain_index (id int PRIMARY KEY, what text); CREATE INDEX plain_i ON plain_index (computes(what));
CREATE TABLE predicate (id int PRIMARY KEY, what text); CREATE INDEX predicate_i ON predicate (id) WHERE computes(what) <> '';
CREATE TABLE unique_index (id int PRIMARY KEY, what text); CREATE UNIQUE INDEX unique_i ON unique_index (computes(what));
CREATE TABLE gin_index (id int PRIMARY KEY, what text); CREATE INDEX gin_i ON gin_index USING gin (string_to_array(computes(what), ' '));
CREATE TABLE domain_index (id int PRIMARY KEY, what text); CREATE INDEX domain_i ON domain_index ((what::checked));
CREATE FUNCTION paired(text) RETURNS pair LANGUAGE sql IMMUTABLE AS $$ SELECT format('("%s",1)', $1)::index_functions.pair $$;
CREATE TABLE composite_index (id int PRIMARY KEY, what text); CREATE INDEX composite_i ON composite_index (((paired(what)).b));
CREATE TABLE parted (id int, what text) PARTITION BY LIST (id); CREATE TABLE part PARTITION OF parted FOR VALUES IN (1);
CREATE INDEX part_i ON parted (computes(what));
SELECT rpad(t, 16) AS "table", what, says(format('INSERT INTO %I VALUES (1, %L)', t, what))
FROM unnest('{plain_index,predicate,unique_index,gin_index,domain_index,composite_index,parted}'::text[]) t, unnest('{insert,create}'::text[]) what;
SELECT what, says(format('INSERT INTO plain_index VALUES (1, %L)', what))
FROM unnest('{insert here,lock,lock table,reindex,cluster,nextval,setval,create temp,truncate,role,caught}'::text[]) what;
SELECT * FROM plain_index;
TRUNCATE plain_index;
DELETE FROM noted WHERE id = -1;

-- Each way into the table; a row that is not in the index, or whose index does not change, runs nothing.
INSERT INTO plain_index VALUES (1, 'nothing');
SELECT says($$ UPDATE plain_index SET what = 'insert' $$);
SELECT says($$ INSERT INTO plain_index VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET what = 'insert' $$);
SELECT says($$ INSERT INTO plain_index VALUES (2, 'insert') ON CONFLICT DO NOTHING $$);
SELECT says($$ MERGE INTO plain_index p USING (VALUES (3, 'insert')) v ON p.id = column1 WHEN NOT MATCHED THEN INSERT VALUES (column1, column2) $$);
COPY plain_index FROM stdin;
4	insert
\.
SELECT says($$ CREATE INDEX ON parted (computes(what)); INSERT INTO parted VALUES (1, 'insert') $$);
CREATE MATERIALIZED VIEW seen AS SELECT id, what FROM noted WHERE id >= 0;
CREATE INDEX ON seen (computes(what));
SELECT says($$ UPDATE noted SET what = 'create' $$);
SELECT says($$ REFRESH MATERIALIZED VIEW seen $$);
SELECT says($$ UPDATE noted SET what = 'nextval' $$);
SELECT says($$ REFRESH MATERIALIZED VIEW seen $$);
CREATE TABLE local_rows (id int PRIMARY KEY, what text) USING heap; CREATE INDEX ON local_rows (computes(what));
SELECT says($$ INSERT INTO local_rows VALUES (1, 'insert') $$);
CREATE TEMP TABLE own (id int PRIMARY KEY, what text); CREATE INDEX ON own (computes(what));
SELECT says($$ INSERT INTO own VALUES (1, 'nextval') $$);
SELECT * FROM plain_index;
SELECT count(*) FROM noted;

-- Rows that a statement sends are read again: what functions of the owner set is not left to whoever has run the statement.
CREATE FUNCTION sets(a int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM set_config('search_path', 'public, pg_catalog, index_functions', false), set_config('lock_timeout', '12345', false);
    RETURN a;
END $$;
GRANT USAGE, CREATE ON SCHEMA index_functions TO index_other;
SET ROLE index_other;
CREATE MATERIALIZED VIEW setting AS SELECT i AS a FROM generate_series(1, 2) i;
CREATE UNIQUE INDEX ON setting (a);
CREATE INDEX ON setting (sets(a));
CREATE INDEX ON setting ((a + sets(1)));
CREATE TABLE set_anew (a int); CREATE INDEX ON set_anew (sets(a));
RESET ROLE;
INSERT INTO set_anew VALUES (1);
-- An INSERT runs them as in PostgreSQL.
SELECT current_setting('search_path') AS path, current_setting('lock_timeout') AS timeout;
SET search_path = index_functions; RESET lock_timeout;
REFRESH MATERIALIZED VIEW setting;
SELECT current_setting('search_path') AS path, current_setting('lock_timeout') AS timeout;
SET search_path = index_functions; RESET lock_timeout;
REFRESH MATERIALIZED VIEW CONCURRENTLY setting;
SELECT current_setting('search_path') AS path, current_setting('lock_timeout') AS timeout;
SET search_path = index_functions; RESET lock_timeout;
ALTER TABLE set_anew ADD COLUMN r float8 DEFAULT random();
SELECT current_setting('search_path') AS path, current_setting('lock_timeout') AS timeout;
SET search_path = index_functions; RESET lock_timeout;
-- Indexes that are built by a job over rows that are there, or built anew.
CREATE TABLE of_job (id int PRIMARY KEY, what text);
DELETE FROM noted WHERE id = -1;
\set VERBOSITY terse
INSERT INTO of_job VALUES (1, 'insert'); CREATE INDEX CONCURRENTLY job_i ON of_job (computes(what));
DROP INDEX job_i; UPDATE of_job SET what = 'nextval'; CREATE INDEX CONCURRENTLY job_i ON of_job (id) WHERE computes(what) <> '';
DROP INDEX job_i; UPDATE of_job SET what = 'setval'; CREATE UNIQUE INDEX CONCURRENTLY job_i ON of_job (computes(what));
DROP INDEX job_i; UPDATE of_job SET what = 'create'; CREATE INDEX CONCURRENTLY job_i ON of_job (computes(what));
DROP INDEX job_i; UPDATE of_job SET what = 'lock'; CREATE INDEX CONCURRENTLY job_i ON of_job (computes(what));
DROP INDEX job_i; UPDATE of_job SET what = 'lock table'; CREATE INDEX CONCURRENTLY job_i ON of_job (computes(what));
DROP INDEX job_i; UPDATE of_job SET what = 'reindex'; CREATE INDEX CONCURRENTLY job_i ON of_job (computes(what));
-- Statements that build an index which a job has not built.
ALTER TABLE of_job CLUSTER ON job_i;
SHOW transaction_read_only;
DROP INDEX job_i;
UPDATE of_job SET what = 'nothing';
CREATE FUNCTION turns(what text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN what; END';
CREATE INDEX CONCURRENTLY job_i ON of_job (turns(what));
CREATE OR REPLACE FUNCTION turns(what text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN index_functions.does(''insert''); END';
REINDEX INDEX CONCURRENTLY job_i;
\set VERBOSITY default
SELECT count(*) FROM noted WHERE id = -1;
SELECT to_regclass('made') AS made, last_value < 50 AS not_set FROM noted_id_seq;

-- An index whose rows are looked for, by onetrip check.
CREATE TABLE looked (what text);
CREATE FUNCTION looks(what text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN what; END';
CREATE INDEX looked_i ON looked (looks(what));
INSERT INTO looked VALUES ('insert');
SELECT onetrip.rows_not_in_index('looked_i');
CREATE OR REPLACE FUNCTION looks(what text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN index_functions.does(what); END';
SELECT says($$ SELECT onetrip.rows_not_in_index('looked_i') $$);
SELECT count(*) FROM noted WHERE id = -1;

-- PostgreSQL runs them to simplify expressions, also while a change is recorded; what they change is recorded whole, before it.
CREATE TABLE folded (id int PRIMARY KEY, v int);
CREATE TABLE beside (v int);
CREATE FUNCTION changes(index_of_other text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO index_functions.beside VALUES (1);
    -- so that PostgreSQL does it once more
    UPDATE pg_attribute SET attstattarget = attstattarget
        WHERE attrelid IN ('index_functions.folded'::regclass, index_of_other::regclass);
END $$;
CREATE FUNCTION folds(index_of_other text) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('index_functions.change', true) = 'yes' THEN
        PERFORM index_functions.changes(index_of_other);
    END IF;
    RETURN 1;
END $$;
CREATE INDEX folded_a ON folded ((v + folds('index_functions.folded_b')));
CREATE INDEX folded_b ON folded ((v + folds('index_functions.folded_a')));
INSERT INTO folded VALUES (1, 2);
UPDATE pg_attribute SET attstattarget = attstattarget WHERE attrelid IN ('folded'::regclass, 'folded_a'::regclass, 'folded_b'::regclass);
BEGIN;
SET LOCAL index_functions.change = 'yes';
DELETE FROM folded;
SET LOCAL index_functions.change = 'no';
SELECT DISTINCT operations FROM unit.operations() operations WHERE operations !~ '^[GT]' ORDER BY 1;
ROLLBACK;

-- Functions of unique indexes run for rows that come, and not for those that go: they may fail for these by now, or be denied.
CREATE FUNCTION norm(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN lower(v); END';
CREATE TABLE goes (id int PRIMARY KEY, v text, n int, note text);
CREATE INDEX ON goes (note);
CREATE UNIQUE INDEX ON goes (norm(v));
CREATE UNIQUE INDEX ON goes (n) WHERE norm(v) <> '';
ALTER TABLE goes ADD EXCLUDE USING btree (n WITH =) WHERE (norm(v) <> '');
CREATE UNIQUE INDEX ON goes (upper(note));
INSERT INTO goes VALUES (1, 'A', 1), (2, 'B', 2), (3, '-', 3), (4, '+', 4);
CREATE OR REPLACE FUNCTION norm(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF v IN ('-', '+') THEN RAISE 'no %', v; END IF;
    RETURN lower(v);
END $$;
GRANT SELECT, UPDATE, DELETE ON goes TO index_other;
REVOKE EXECUTE ON FUNCTION norm(text) FROM public;
BEGIN;
DELETE FROM goes WHERE id = 3;
:keys;
COMMIT;
BEGIN;
UPDATE goes SET v = 'C' WHERE id = 4;
:keys;
COMMIT;
BEGIN;
UPDATE goes SET note = 'noted' WHERE id = 4;
:keys;
COMMIT;
SET ROLE index_other;
SELECT says($$ UPDATE goes SET v = 'D' WHERE id = 2 $$);
DELETE FROM goes WHERE id = 2;
RESET ROLE;
SELECT * FROM goes ORDER BY id;

-- The session is as it was.
SHOW transaction_read_only;
INSERT INTO plain_index VALUES (5, 'nothing');
UPDATE plain_index SET what = 'nothing more' WHERE id = 5;
DELETE FROM plain_index;
CREATE TABLE afterwards (id int PRIMARY KEY);

DROP TABLE own;
DROP SCHEMA index_functions CASCADE;
DROP ROLE index_other;
