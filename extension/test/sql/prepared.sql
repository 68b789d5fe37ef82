-- Goal: a prepared transaction holds what it has changed until it is committed or rolled back, and is nowhere else than in the log.
-- Method: each way to prepare, to end and to lose; what PostgreSQL refuses, and what only Onetrip does. Other regions are in the cluster tests.
\set VERBOSITY terse
CREATE TABLE p (id int PRIMARY KEY, v text);
CREATE TABLE p_child (id int PRIMARY KEY, p int REFERENCES p);
CREATE TABLE p_local (id int) USING heap;
CREATE UNLOGGED TABLE p_unlogged (id int);
CREATE SEQUENCE p_numbers;
CREATE ROLE p_owner;
CREATE ROLE p_other;
GRANT ALL ON p, p_child TO p_owner, p_other;
INSERT INTO p VALUES (1, 'one'), (2, 'two'), (3, 'three');

-- Prepared and committed. Until then it cannot be seen, and what it touched cannot be changed.
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
INSERT INTO p VALUES (4, 'prepared');
SAVEPOINT a;
INSERT INTO p VALUES (5, 'rolled back');
ROLLBACK TO a;
SAVEPOINT b;
DELETE FROM p WHERE id = 3;
PREPARE TRANSACTION 'first';
SELECT * FROM p ORDER BY id;
SELECT gid, owner = current_user AS mine, region, database, prepared <= clock_timestamp() AS dated, log_index > 0 AS logged, bytes > 0 AS kept
    FROM onetrip.prepared_xacts;
SELECT gid, owner = current_user AS mine, database, transaction FROM pg_prepared_xacts;
UPDATE p SET v = 'conflict' WHERE id = 1;
\echo :LAST_ERROR_SQLSTATE
INSERT INTO p VALUES (4, 'conflict');
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE p ADD COLUMN w int;
\echo :LAST_ERROR_SQLSTATE
UPDATE p SET v = 'free' WHERE id = 2;
CREATE TABLE p_free (id int PRIMARY KEY);
DROP TABLE p_free;
COMMIT PREPARED 'first';
SELECT * FROM p ORDER BY id;
SELECT count(*) FROM onetrip.prepared_xacts;
UPDATE p SET v = 'again' WHERE id = 1;
COMMIT PREPARED 'first';
\echo :LAST_ERROR_SQLSTATE

-- Rolled back: nothing has happened, and the name can be used again.
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
PREPARE TRANSACTION 'first';
ROLLBACK PREPARED 'first';
SELECT v FROM p WHERE id = 1;
UPDATE p SET v = 'one' WHERE id = 1;
ROLLBACK PREPARED 'first';
\echo :LAST_ERROR_SQLSTATE

-- A name is in use once. PREPARE TRANSACTION that fails rolls back.
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
PREPARE TRANSACTION 'twice';
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 2;
PREPARE TRANSACTION 'twice';
\echo :LAST_ERROR_SQLSTATE
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
PREPARE TRANSACTION 'conflict';
\echo :LAST_ERROR_SQLSTATE
ROLLBACK PREPARED 'twice';
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
SELECT repeat('x', 200) AS long, repeat('x', 199) AS short \gset
PREPARE TRANSACTION :'long';
\echo :LAST_ERROR_SQLSTATE
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
PREPARE TRANSACTION :'short';
ROLLBACK PREPARED :'short';

-- Only its owner and superusers end it.
SET ROLE p_owner;
BEGIN;
UPDATE p SET v = 'by owner' WHERE id = 1;
PREPARE TRANSACTION 'owned';
SET ROLE p_other;
SELECT gid, owner FROM onetrip.prepared_xacts;
SELECT gid, owner FROM pg_prepared_xacts;
SELECT write_set FROM onetrip.prepared;
\echo :LAST_ERROR_SQLSTATE
COMMIT PREPARED 'owned';
\echo :LAST_ERROR_SQLSTATE
ROLLBACK PREPARED 'owned';
\echo :LAST_ERROR_SQLSTATE
SET ROLE p_owner;
COMMIT PREPARED 'owned';
BEGIN;
UPDATE p SET v = 'by superuser' WHERE id = 1;
PREPARE TRANSACTION 'owned';
RESET ROLE;
COMMIT PREPARED 'owned';
SELECT v FROM p WHERE id = 1;

-- What a role may not use it does not hold, though analyzing a statement has locked it, or a value names it. A row behind a view, or one
-- that a foreign key refers to, keeps its table.
CREATE TABLE p_secret (id int PRIMARY KEY, c int);
CREATE TABLE p_parent (id int PRIMARY KEY);
INSERT INTO p_parent VALUES (1);
CREATE TABLE p_mine (id int PRIMARY KEY, named regclass, called regproc, of regtype, parent int REFERENCES p_parent);
ALTER TABLE p_mine OWNER TO p_other;
CREATE FUNCTION p_function() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE VIEW p_view AS SELECT id, v FROM p;
CREATE TABLE p_log (t text);
CREATE FUNCTION p_logs() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$INSERT INTO p_log VALUES ('x')$$;
GRANT SELECT, UPDATE ON p_view TO p_other;
SET ROLE p_other;
BEGIN;
INSERT INTO p_mine VALUES (1);
PREPARE analyzed AS UPDATE p_secret SET c = c;
PREPARE TRANSACTION 'analyzed';
DEALLOCATE analyzed;
BEGIN;
INSERT INTO p_mine VALUES (2, 'p_secret');
PREPARE TRANSACTION 'no';
\echo :LAST_ERROR_SQLSTATE
BEGIN;
INSERT INTO p_mine (id, called) VALUES (2, 'p_function');
PREPARE TRANSACTION 'no';
BEGIN;
INSERT INTO p_mine (id, of) VALUES (2, 'p_secret');
PREPARE TRANSACTION 'no';
BEGIN;
INSERT INTO p_mine VALUES (2, 'p_mine', 'now', 'int', 1);
PREPARE TRANSACTION 'own';
BEGIN;
UPDATE p_view SET v = 'seen' WHERE id = 1;
PREPARE TRANSACTION 'behind';
BEGIN;
SELECT p_logs();
PREPARE TRANSACTION 'logged';
RESET ROLE;
ALTER TABLE p_log ADD d int;
ALTER TABLE p_secret ADD d int;
ALTER TABLE p_mine ADD d int;
ALTER TABLE p_parent ADD d int;
ALTER TABLE p ADD d int;
\echo :LAST_ERROR_SQLSTATE
COMMIT PREPARED 'analyzed';
COMMIT PREPARED 'own';
ROLLBACK PREPARED 'behind';
COMMIT PREPARED 'logged';
SELECT id, named, called, of, parent FROM p_mine ORDER BY id;
DROP VIEW p_view;
DROP TABLE p_secret, p_mine, p_parent;
DROP FUNCTION p_function(), p_logs();
DROP TABLE p_log;

-- Not in a block, not in a function, and nothing in a block that has failed.
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
PREPARE TRANSACTION 'blocks';
BEGIN;
COMMIT PREPARED 'blocks';
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
DO $$ BEGIN EXECUTE 'ROLLBACK PREPARED ''blocks'''; END $$;
\echo :LAST_ERROR_SQLSTATE
ROLLBACK PREPARED 'blocks';
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
SELECT 1/0;
PREPARE TRANSACTION 'failed';
PREPARE TRANSACTION 'no block';
SELECT count(*) FROM onetrip.prepared_xacts;

-- Deferred triggers and constraints run at PREPARE TRANSACTION.
CREATE FUNCTION p_follow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO p VALUES (new.id + 100, 'by trigger'); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER p_follows AFTER INSERT ON p_child DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION p_follow();
ALTER TABLE p_child ALTER CONSTRAINT p_child_p_fkey DEFERRABLE INITIALLY DEFERRED;
BEGIN;
INSERT INTO p_child VALUES (1, 2);
PREPARE TRANSACTION 'deferred';
DELETE FROM p WHERE id = 2;
\echo :LAST_ERROR_SQLSTATE
COMMIT PREPARED 'deferred';
SELECT * FROM p WHERE id > 100;
BEGIN;
INSERT INTO p_child VALUES (2, 999);
PREPARE TRANSACTION 'violates';
\echo :LAST_ERROR_SQLSTATE

-- Row locks and reads are held as well; values drawn from a sequence are not drawn again.
BEGIN;
SELECT v FROM p WHERE id = 2 FOR UPDATE;
INSERT INTO p VALUES (nextval('p_numbers') + 1000, 'drawn');
PREPARE TRANSACTION 'locks';
UPDATE p SET v = 'conflict' WHERE id = 2;
\echo :LAST_ERROR_SQLSTATE
SELECT nextval('p_numbers') > 1 AS another;
COMMIT PREPARED 'locks';
-- They are told when it is prepared, and not once more when it is committed: that would undo a setval().
BEGIN;
INSERT INTO p SELECT max(nextval('p_numbers')) + 2000, 'drawn' FROM generate_series(1, 50);
PREPARE TRANSACTION 'raises';
SELECT setval('p_numbers', 1, false);
COMMIT PREPARED 'raises';
SELECT nextval('p_numbers') < 50 AS set_back;
DELETE FROM p WHERE id > 2000;
BEGIN;
SELECT count(*) > 0 AS read FROM p;
PREPARE TRANSACTION 'read';
DROP TABLE p_child;
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE p ALTER v SET STATISTICS 1;
\echo :LAST_ERROR_SQLSTATE
ROLLBACK PREPARED 'read';

-- SET takes effect, SET LOCAL does not.
BEGIN;
SET application_name = 'kept';
SET LOCAL work_mem = '1234kB';
UPDATE p SET v = 'prepared' WHERE id = 1;
PREPARE TRANSACTION 'set';
SHOW application_name;
SELECT current_setting('work_mem') = '1234kB' AS local;
COMMIT PREPARED 'set';
BEGIN;
SET ROLE p_owner;
UPDATE p SET v = 'prepared' WHERE id = 1;
PREPARE TRANSACTION 'role';
SELECT current_user, current_setting('role') AS role, owner FROM onetrip.prepared_xacts;
RESET ROLE;
ROLLBACK PREPARED 'role';
-- A role for the transaction alone does not outlast it, also where the next transaction begins and ends.
BEGIN;
SET LOCAL ROLE p_owner;
UPDATE p SET v = 'prepared' WHERE id = 1;
PREPARE TRANSACTION 'local role';
SELECT current_user, session_user = current_user AS own, current_setting('role') AS role, owner FROM onetrip.prepared_xacts;
BEGIN;
ROLLBACK;
SELECT session_user = current_user AS own;
ROLLBACK PREPARED 'local role';
BEGIN ISOLATION LEVEL REPEATABLE READ;
UPDATE p SET v = 'repeatable' WHERE id = 1;
PREPARE TRANSACTION 'repeatable';
SET default_transaction_isolation = 'repeatable read';
COMMIT PREPARED 'repeatable';
COMMIT PREPARED 'repeatable';
RESET default_transaction_isolation;
SELECT v FROM p WHERE id = 1;
-- In one message.
BEGIN\; UPDATE p SET v = 'one message' WHERE id = 1\; PREPARE TRANSACTION 'message'\; SELECT gid FROM onetrip.prepared_xacts;
COMMIT PREPARED 'message';
UPDATE p SET v = 'no block' WHERE id = 1\; PREPARE TRANSACTION 'message';
ROLLBACK PREPARED 'message';
SELECT v FROM p WHERE id = 1;

-- A value out of line, and nothing of it is shown before.
BEGIN;
INSERT INTO p SELECT 2000, string_agg(md5(i::text), '') FROM generate_series(1, 5000) i;
PREPARE TRANSACTION 'large';
COMMIT PREPARED 'large';
SELECT length(v) FROM p WHERE id = 2000;

-- Refused as in PostgreSQL.
BEGIN;
CREATE TEMP TABLE p_temporary (id int);
UPDATE p SET v = 'prepared' WHERE id = 1;
PREPARE TRANSACTION 'no';
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
NOTIFY p_channel;
PREPARE TRANSACTION 'no';
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
LISTEN p_channel;
PREPARE TRANSACTION 'no';
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
DECLARE held CURSOR WITH HOLD FOR SELECT 1;
PREPARE TRANSACTION 'no';
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
SELECT pg_export_snapshot() IS NOT NULL AS exported;
PREPARE TRANSACTION 'no';

-- Refused by Onetrip; more of that is in prepared_leftovers.
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
INSERT INTO p_local VALUES (1);
PREPARE TRANSACTION 'no';
\echo :LAST_ERROR_SQLSTATE
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
INSERT INTO p_unlogged VALUES (1);
PREPARE TRANSACTION 'no';
BEGIN;
CREATE TABLE p_new (id int);
PREPARE TRANSACTION 'no';
\echo :LAST_ERROR_SQLSTATE
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
SELECT setval('p_numbers', 1000);
PREPARE TRANSACTION 'no';
\echo :LAST_ERROR_SQLSTATE
CREATE EXTENSION file_fdw;
CREATE SERVER p_server FOREIGN DATA WRAPPER file_fdw;
CREATE FOREIGN TABLE p_foreign (v text) SERVER p_server OPTIONS (filename '/dev/null');
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
SELECT count(*) FROM p_foreign;
PREPARE TRANSACTION 'no';
\echo :LAST_ERROR_SQLSTATE
DROP EXTENSION file_fdw CASCADE;
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
ALTER DATABASE postgres CONNECTION LIMIT -1;
PREPARE TRANSACTION 'no';
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM onetrip.prepared_xacts;

-- What has used other tables only is PostgreSQL's own, and is not allowed by its default.
BEGIN;
INSERT INTO p_local VALUES (1);
PREPARE TRANSACTION 'local';
\echo :LAST_ERROR_SQLSTATE

-- What has done nothing is prepared all the same: transaction managers do that with whatever took part.
BEGIN;
PREPARE TRANSACTION 'nothing';
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT 1 AS one;
SAVEPOINT s;
PREPARE TRANSACTION 'nothing but a constant';
BEGIN;
PREPARE TRANSACTION 'nothing';
\echo :LAST_ERROR_SQLSTATE
SELECT gid FROM onetrip.prepared_xacts ORDER BY gid;
COMMIT PREPARED 'nothing';
ROLLBACK PREPARED 'nothing but a constant';
-- What has a transaction id has done something, which only PostgreSQL could keep.
BEGIN;
SELECT pg_logical_emit_message(true, 'p', 'message') IS NOT NULL AS sent;
PREPARE TRANSACTION 'message';
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM onetrip.prepared_xacts;

-- The transaction's id has the outcome of PREPARE TRANSACTION; what COMMIT PREPARED cost is shown.
BEGIN;
UPDATE p SET v = 'prepared' WHERE id = 1;
PREPARE TRANSACTION 'outcome';
SELECT onetrip.outcome(transaction_id) = 'prepared at ' || entry AS prepared, round_trips FROM onetrip.last_commit();
SELECT p.log_index = l.entry AS same FROM onetrip.prepared_xacts p, onetrip.last_commit() l;
COMMIT PREPARED 'outcome';
SELECT onetrip.outcome(transaction_id) = 'committed at ' || entry AS committed, round_trips FROM onetrip.last_commit();
SET onetrip.ack = applied_everywhere;
BEGIN;
UPDATE p SET v = 'everywhere' WHERE id = 1;
PREPARE TRANSACTION 'everywhere';
COMMIT PREPARED 'everywhere';
SELECT round_trips, everywhere_ms IS NOT NULL AS waited FROM onetrip.last_commit();
RESET onetrip.ack;
SELECT v FROM p WHERE id = 1;

-- Who has drawn from a sequence with very few values holds it: every draw is certified.
CREATE SEQUENCE p_few MAXVALUE 3;
BEGIN;
SELECT nextval('p_few');
PREPARE TRANSACTION 'draws';
SELECT nextval('p_few');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK PREPARED 'draws';
SELECT nextval('p_few');
DROP SEQUENCE p_few;

-- How many a role may have, or none. Those of other roles do not count, and what is refused is rolled back.
ALTER ROLE p_owner SET onetrip.max_prepared_transactions = 1;
SET onetrip.max_prepared_transactions = 1;
SET ROLE p_owner;
SET onetrip.max_prepared_transactions = 2;
BEGIN;
UPDATE p SET v = 'first' WHERE id = 1;
PREPARE TRANSACTION 'room 1';
BEGIN;
UPDATE p SET v = 'second' WHERE id = 2;
PREPARE TRANSACTION 'room 2';
\echo :LAST_ERROR_SQLSTATE
SET ROLE p_other;
BEGIN;
UPDATE p SET v = 'second' WHERE id = 2;
PREPARE TRANSACTION 'room 2';
RESET ROLE;
SET onetrip.max_prepared_transactions = 0;
BEGIN;
UPDATE p SET v = 'third' WHERE id = 4;
PREPARE TRANSACTION 'room 3';
\echo :LAST_ERROR_SQLSTATE
SELECT string_agg(gid, ', ' ORDER BY gid) FROM onetrip.prepared_xacts;
ROLLBACK PREPARED 'room 1';
COMMIT PREPARED 'room 2';
RESET onetrip.max_prepared_transactions;

-- Each kind of setting, with SET and SET LOCAL: after PREPARE TRANSACTION as after COMMIT, and after one that failed as after ROLLBACK.
CREATE TABLE p_seen (how text, statement text, value text, effective name, session name) USING heap;
GRANT ALL ON p_seen TO PUBLIC;
BEGIN;
UPDATE p SET v = 'taken' WHERE id = 2;
PREPARE TRANSACTION 'taken';
\set ECHO none
SELECT 'BEGIN', format('SET %s %s = %L', scope, name, value), 'UPDATE public.p SET v = v WHERE id = 1', ends,
       format('INSERT INTO public.p_seen VALUES (%L, %L, current_setting(%L), current_user, session_user)',
              CASE WHEN ends = 'COMMIT' OR ends LIKE '%settings%' THEN 'kept' ELSE 'taken back' END,
              format('SET %s %s', scope, name), name),
       CASE WHEN ends LIKE '%settings%' THEN 'ROLLBACK PREPARED ''settings''' END, format('RESET %s', name)
  FROM unnest(ARRAY['SESSION', 'LOCAL']) scope,
       (VALUES ('role', 'p_owner'), ('session_authorization', 'p_owner'), ('work_mem', '1234kB'), ('search_path', 'pg_catalog'),
               ('timezone', 'Asia/Tokyo'), ('statement_timeout', '1h'), ('onetrip.max_trips', '5'), ('app.own', 'x')) s(name, value),
       unnest(ARRAY['COMMIT', 'PREPARE TRANSACTION ''settings''', 'ROLLBACK', 'PREPARE TRANSACTION ''taken''']) ends
\gexec
\set ECHO all
SELECT count(*), count(DISTINCT statement) AS statements FROM p_seen;
SELECT statement, how, array_agg(DISTINCT (value, effective, session)) AS differ
  FROM p_seen GROUP BY 1, 2 HAVING count(DISTINCT (value, effective, session)) > 1 OR count(*) <> 2;
SELECT current_user = session_user AS same, current_setting('role') AS role;
ROLLBACK PREPARED 'taken';

-- A function of an index that waits for a position would have the apply worker wait for itself: an error, that goes once it does not
-- wait any more. Whether it waits is not in a table, so that this ends without DDL.
CREATE FUNCTION p_waits(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711) THEN
        PERFORM onetrip.wait_for(onetrip.position() + 1000, '1 h');
    END IF;
    PERFORM onetrip.wait_for(onetrip.position());
    RETURN $1;
END $$;
CREATE TABLE p_waited (id int PRIMARY KEY);
CREATE INDEX ON p_waited (p_waits(id));
BEGIN;
INSERT INTO p_waited VALUES (1);
PREPARE TRANSACTION 'waits';
SELECT pg_advisory_lock(4711);
\setenv PGHOST :HOST
\setenv PGPORT :PORT
\setenv PGUSER :USER
\setenv PGDATABASE :DBNAME
\! psql -XAtqc "COMMIT PREPARED 'waits'" >/dev/null 2>&1 &
DO $$
BEGIN
    FOR i IN 1..300 LOOP
        EXIT WHEN (SELECT failure IS NOT NULL FROM onetrip.status);
        PERFORM pg_sleep(0.1);
    END LOOP;
END $$;
SELECT substring(failure FROM 'onetrip\.wait_for\(\) [a-z ]+') AS failure FROM onetrip.status;
SELECT pg_advisory_unlock(4711);
DO $$
BEGIN
    FOR i IN 1..300 LOOP
        EXIT WHEN (SELECT count(*) FROM p_waited) = 1;
        PERFORM pg_sleep(0.1);
    END LOOP;
END $$;
SELECT count(*) AS rows, (SELECT failing FROM onetrip.status) FROM p_waited;
DROP TABLE p_waited;
DROP FUNCTION p_waits;

-- What lost above is among the conflicts, with its age; both are of this hour, and agree.
SELECT count(*) > 0 AS some, bool_and(ago BETWEEN '0' AND '1 h') AS ages, bool_and(at BETWEEN now() - interval '1 h' AND clock_timestamp()) AS times,
       bool_and(clock_timestamp() - at - ago BETWEEN '-5 s' AND '5 s') AS agree FROM onetrip.conflicts;
DROP TABLE p_child, p, p_local, p_unlogged, p_seen;
DROP SEQUENCE p_numbers;
DROP ROLE p_owner, p_other;
