-- Goal: whatever SQL can send a notification with, other regions get it: each once, and none that was rolled back.
-- Method: look at the write set after each way; listeners in other regions are in the cluster tests.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA notify;
SET search_path = notify;
CREATE TABLE t (id int PRIMARY KEY, v text);
SELECT proposals FROM onetrip.status \gset before_

-- The statement and the function; the same one twice counts once, another payload or channel does not.
BEGIN;
NOTIFY news;
NOTIFY news, 'one';
SELECT pg_notify('news', 'one'), pg_catalog.pg_notify('news', 'two'), onetrip.pg_notify('News', 'one'), pg_notify('news', NULL);
SELECT count(pg_notify('newso', 'ne')::text) FROM generate_series(1, 1000);
:operations;
SELECT onetrip.pending_bytes();
COMMIT;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;

-- Savepoints: what was rolled back is gone, and may be sent again; what was sent before it stays.
BEGIN;
NOTIFY c, 'before';
SAVEPOINT s;
NOTIFY c, 'before';
NOTIFY c, 'rolled back';
NOTIFY c, 'again';
ROLLBACK TO s;
NOTIFY c, 'again';
SAVEPOINT kept;
NOTIFY c, 'kept';
RELEASE kept;
NOTIFY c, 'kept';
:operations;
ROLLBACK TO s;
:operations;
DO $$ BEGIN
    NOTIFY c, 'caught';
    RAISE EXCEPTION 'no';
EXCEPTION WHEN raise_exception THEN
    NOTIFY c, 'handler';
END $$;
:operations;
ROLLBACK;
BEGIN;
SAVEPOINT s;
NOTIFY c, 'all of it';
ROLLBACK TO s;
:operations;
COMMIT;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;

-- Functions in every language, inlined or not, operators, rules, prepared statements, triggers.
CREATE FUNCTION in_sql(text) RETURNS void LANGUAGE sql AS $$ SELECT PG_Notify('in_sql', $1) $$;
CREATE FUNCTION in_sql_parsed(text) RETURNS void LANGUAGE sql BEGIN ATOMIC SELECT pg_notify('in_sql_parsed', $1); END;
CREATE FUNCTION in_sql_rows(text) RETURNS SETOF text LANGUAGE sql STABLE AS $$ SELECT pg_notify('in_sql_rows', $1)::text $$;
CREATE FUNCTION in_sql_statement() RETURNS void LANGUAGE sql AS $$ NOTIFY in_sql_statement, 'x' $$;
CREATE FUNCTION in_plpgsql(payload text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('in_plpgsql', payload);
    EXECUTE 'NOTIFY in_plpgsql, ''executed''';
    RETURN pg_notify('in_plpgsql', 'simple');
END $$;
CREATE PROCEDURE in_procedure() LANGUAGE plpgsql AS $$ BEGIN NOTIFY in_procedure; END $$;
CREATE OPERATOR !> (leftarg = text, rightarg = text, function = pg_notify);
CREATE FUNCTION in_operator(text) RETURNS void LANGUAGE sql BEGIN ATOMIC SELECT 'in_operator' !> $1; END;
CREATE FUNCTION in_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('in_trigger', TG_OP || ' ' || new.id);
    RETURN new;
END $$;
CREATE TRIGGER tell AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION in_trigger();
CREATE RULE tell AS ON UPDATE TO t DO ALSO NOTIFY in_rule;
CREATE CONSTRAINT TRIGGER tell_late AFTER UPDATE ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION in_trigger();
CREATE VIEW sends AS SELECT pg_notify('in_view', 'x')::text AS sent;
CREATE TABLE filled (id int PRIMARY KEY, v text DEFAULT in_plpgsql('default'), CHECK (in_sql_parsed('check') IS NULL OR true));
PREPARE sends(text) AS SELECT pg_notify('prepared', $1);
BEGIN;
SELECT in_sql('a'), in_sql_parsed('b'), in_plpgsql('c'), in_operator('d'), text 'operator' !> 'e';
SELECT count(*) FROM in_sql_rows('f');
SELECT in_sql_statement();
CALL in_procedure();
SELECT count(*) FROM sends;
EXECUTE sends('g');
WITH sent AS MATERIALIZED (SELECT pg_notify('in_cte', 'h')) SELECT count(*) FROM sent;
SELECT unit.operations() AS operation OFFSET 0;
ROLLBACK;
BEGIN;
INSERT INTO t VALUES (1, 'x'), (2, 'y');
UPDATE t SET v = 'z' WHERE id = 1;
SELECT unit.operations() AS operation;
SET CONSTRAINTS ALL IMMEDIATE;
SELECT operation FROM unit.operations() operation WHERE operation LIKE 'N in_trigger ''UPDATE%';
COMMIT;
BEGIN;
COPY filled (id) FROM stdin;
1
\.
SELECT operation FROM unit.operations() operation WHERE operation LIKE 'N %';
ROLLBACK;

-- Where no planner sees the call it is an error, and our function of that name works.
CREATE PROCEDURE takes(text) LANGUAGE plpgsql AS 'BEGIN END';
BEGIN;
SAVEPOINT s;
CALL takes(pg_notify('in_argument', 'x')::text);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO s;
CALL takes(onetrip.pg_notify('in_argument', 'y')::text);
:operations;
ROLLBACK;

-- What PostgreSQL refuses, in its words.
SELECT pg_notify(NULL, 'x');
SELECT pg_notify('', 'x');
SELECT pg_notify(repeat('c', 64), 'x');
SELECT pg_notify('c', repeat('x', 8000));
SELECT pg_notify(repeat('c', 63), repeat('x', 7999));
BEGIN;
NOTIFY c;
PREPARE TRANSACTION 'p';
\echo :LAST_ERROR_SQLSTATE
-- Who may not call pg_notify() may not do so by way of ours.
CREATE ROLE notify_mute;
GRANT USAGE ON SCHEMA notify TO notify_mute;
BEGIN;
REVOKE EXECUTE ON FUNCTION pg_catalog.pg_notify(text, text) FROM PUBLIC;
SET LOCAL ROLE notify_mute;
SAVEPOINT s;
SELECT pg_notify('c', 'x');
ROLLBACK TO s;
SELECT onetrip.pg_notify('c', 'x');
ROLLBACK TO s;
NOTIFY c;
RESET ROLE;
:operations;
ROLLBACK;
DROP OWNED BY notify_mute;
DROP ROLE notify_mute;

-- In a read-only transaction, in PostgreSQL too; and with LISTEN, which stays here.
SELECT proposals FROM onetrip.status \gset before_
BEGIN READ ONLY;
NOTIFY c;
COMMIT;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
LISTEN other;
UNLISTEN *;
DISCARD ALL;
SET search_path = notify;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
SET onetrip.max_write_set = '64kB';
SELECT pg_notify('c', repeat('x', 1000) || n) FROM generate_series(1, 100) n;
\echo :LAST_ERROR_SQLSTATE
RESET onetrip.max_write_set;

-- The worker sends what the entry contains, and not what functions send while it runs them.
CREATE FUNCTION loud(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('loud', $1); RETURN $1; END $$;
CREATE TABLE indexed (id int PRIMARY KEY, v text);
CREATE INDEX ON indexed (loud(v));
BEGIN;
INSERT INTO indexed VALUES (1, 'x');
:operations;
SELECT unit.write_set() AS operations \gset
ROLLBACK;
-- What it sends was not asked for by SQL of this session, so this COMMIT is refused.
BEGIN;
SELECT unit.apply(:'operations');
SELECT * FROM indexed;
COMMIT;
SELECT unit.apply(decode('024e0000000000', 'hex'));
SELECT unit.apply(('\x024e0100780000'::bytea || '\x4e'::bytea));
SELECT unit.apply('\x024e010078401f'::bytea || convert_to(repeat('x', 8000), 'utf8'));

-- A queue that is nearly full, and full: nothing is proposed here, and the worker still sends, then leaves out.
LISTEN here;
SELECT proposals FROM onetrip.status \gset before_
SELECT unit.lag_in_queue(1048576 * 15 / 16);
SELECT round(pg_notification_queue_usage()::numeric, 3) AS used;
NOTIFY nobody;
\echo :LAST_ERROR_SQLSTATE
BEGIN;
INSERT INTO t VALUES (100, 'x');
COMMIT;
SELECT count(*) FROM t WHERE id = 100;
BEGIN;
SELECT unit.apply('\x024e0100780000'::bytea);
COMMIT;
SELECT unit.lag_in_queue(1048576 - 33);
BEGIN;
SELECT unit.apply('\x024e0100780000'::bytea);
COMMIT;
SELECT unit.lag_in_queue(0);
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
NOTIFY nobody;
UNLISTEN *;

-- C code that sends by itself.
CREATE EXTENSION tcn;
CREATE TABLE watched (id int PRIMARY KEY, v text);
CREATE TRIGGER watch AFTER INSERT OR UPDATE OR DELETE ON watched FOR EACH ROW EXECUTE FUNCTION triggered_change_notification('watched');
INSERT INTO watched VALUES (1, 'x');
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM watched;

-- In another database NOTIFY is the server's own.
SELECT proposals FROM onetrip.status \gset before_
\set replicated :DBNAME
\c postgres
NOTIFY here;
SELECT pg_notify('here', 'x');
\c :replicated
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
SET client_min_messages = warning;
DROP SCHEMA notify CASCADE;
