-- Goal: a transaction whose id was asked for gets a final outcome, whichever way it ends; settling decides one whose outcome is not known.
-- Method: note the id, end the transaction in each way, ask.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA outcomes;
SET search_path = outcomes;
CREATE TABLE t (id int PRIMARY KEY);
-- The answer, once it is final: a transaction that was given up is decided a moment later.
CREATE FUNCTION final(id text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    answer text;
BEGIN
    FOR i IN 1..2000 LOOP
        answer := onetrip.outcome(id);
        EXIT WHEN answer <> 'unknown';
        PERFORM pg_sleep(0.005);
    END LOOP;
    RETURN regexp_replace(answer, '\d+$', 'N');
END $$;

-- The id is the transaction's, and looks like one.
BEGIN;
SELECT onetrip.current_transaction_id() AS id \gset
SELECT :'id' ~ '^\d+-[0-9a-f]+-[0-9a-f]+$' AS looks_right, onetrip.current_transaction_id() = :'id' AS same, onetrip.outcome(:'id');
INSERT INTO t VALUES (1);
COMMIT;
SELECT onetrip.outcome(:'id') = 'committed at ' || onetrip.position() AS committed;
SELECT onetrip.current_transaction_id() <> :'id' AS another;

-- Committed without a change, and after everything was rolled back to a savepoint.
BEGIN;
SELECT onetrip.current_transaction_id() AS id \gset
COMMIT;
SELECT final(:'id');
BEGIN;
SAVEPOINT a;
SELECT onetrip.current_transaction_id() AS id \gset
INSERT INTO t VALUES (2);
ROLLBACK TO a;
COMMIT;
SELECT final(:'id'), onetrip.outcome(:'id') = 'committed at ' || onetrip.position() AS newest;
BEGIN;
SAVEPOINT a;
SELECT onetrip.current_transaction_id() AS id \gset
ROLLBACK TO a;
PREPARE TRANSACTION 'told';
SELECT final(:'id');

-- Rolled back, failed, the session ended.
BEGIN;
SELECT onetrip.current_transaction_id() AS id \gset
INSERT INTO t VALUES (3);
ROLLBACK;
SELECT final(:'id');
BEGIN;
SELECT onetrip.current_transaction_id() AS id \gset
INSERT INTO t VALUES (1);
COMMIT;
SELECT final(:'id');
BEGIN;
INSERT INTO t VALUES (4);
SELECT onetrip.current_transaction_id() AS id \gset
\c
SET search_path = outcomes;
SELECT final(:'id');

-- Settled while it is running, a transaction cannot commit any more.
BEGIN;
INSERT INTO t VALUES (5);
SELECT onetrip.current_transaction_id() AS id \gset
SELECT onetrip.outcome(:'id', settle => false), onetrip.outcome(:'id', settle => true), onetrip.outcome(:'id');
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
-- Settling a transaction that is decided changes nothing.
BEGIN;
INSERT INTO t VALUES (6);
SELECT onetrip.current_transaction_id() AS id \gset
COMMIT;
SELECT onetrip.outcome(:'id', settle => true) = onetrip.outcome(:'id') AS same;
-- An id of an earlier incarnation of a server, or of one that never existed: once it is settled, its outcome is final.
SELECT onetrip.outcome('8-1-1'), onetrip.outcome('8-1-1', settle => true), onetrip.outcome('8-1-1');
-- An id that this server has not given out yet cannot be settled.
SELECT split_part(:'id', '-', 1) || '-' || split_part(:'id', '-', 2) || '-ffffffffff' AS later \gset
SELECT onetrip.outcome(:'later');
\set VERBOSITY sqlstate
SELECT onetrip.outcome(:'later', settle => true);
\set VERBOSITY default
SELECT onetrip.outcome('garbage', settle => true);
SELECT id FROM t ORDER BY id;

-- In a procedure each transaction has its own id.
CREATE PROCEDURE twice(OUT first text, OUT second text) LANGUAGE plpgsql AS $$
BEGIN
    first := onetrip.current_transaction_id();
    COMMIT;
    second := onetrip.current_transaction_id();
    COMMIT;
END $$;
CALL twice(NULL, NULL) \gset
SELECT :'first' <> :'second' AS differ, final(:'first'), final(:'second');

-- Transactions and users that may not.
BEGIN READ ONLY;
SELECT onetrip.current_transaction_id();
ROLLBACK;
CREATE ROLE onetrip_test_user;
SET ROLE onetrip_test_user;
SELECT onetrip.current_transaction_id() <> '' AS id;
SELECT onetrip.outcome('8-1-1', settle => true);
RESET ROLE;
DROP ROLE onetrip_test_user;

SET client_min_messages = warning;
DROP SCHEMA outcomes CASCADE;
