-- Goal: a COMMIT that the node does not answer tells the truth: not committed if the proposal was not completely sent, 08007 if it was.
-- Method: stop the node's process (not its PostgreSQL) for a moment, and let it go on; the session goes on, too.
CREATE SCHEMA stopped_node;
SET search_path = stopped_node;
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE FUNCTION soon(condition text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE answer boolean;
BEGIN
    FOR i IN 1..600 LOOP
        EXECUTE condition INTO answer;
        IF answer THEN RETURN true; END IF;
        PERFORM pg_sleep(0.05);
    END LOOP;
    RETURN false;
END $$;
INSERT INTO t VALUES (0, 'before');
\set VERBOSITY sqlstate

-- Another session cancels this one once it waits in COMMIT (statement_timeout does not count there).
CREATE PROCEDURE cancel_commit(id int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..600 LOOP
        IF EXISTS (SELECT FROM pg_stat_activity WHERE pid = id AND query = 'COMMIT;' AND wait_event_type = 'Extension') THEN
            PERFORM pg_cancel_backend(id);
            RETURN;
        END IF;
        PERFORM pg_stat_clear_snapshot(), pg_sleep(0.05);
    END LOOP;
END $$;
SELECT pg_backend_pid() AS pid \gset
\setenv PID :pid
\setenv PGHOST :HOST
\setenv PGPORT :PORT
\setenv PGUSER :USER
\setenv PGDATABASE :DBNAME

-- Larger than the socket's buffer: cancelled while it is being sent, so it did not commit, and never will.
BEGIN;
INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(2, 8000) g;
\! $ONETRIP_STOP_NODE
\! psql -X -q -c "CALL stopped_node.cancel_commit($PID)" >/dev/null 2>&1 &
COMMIT;
\! kill -CONT $ONETRIP_NODE_PID
INSERT INTO t VALUES (10000, 'the session goes on');
SELECT id, left(v, 20) AS v FROM t WHERE id NOT BETWEEN 2 AND 8000 ORDER BY id;
SELECT count(*) FROM t;

-- The same with onetrip.commit_timeout.
BEGIN;
INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(2, 8000) g;
SET onetrip.commit_timeout = '300ms';
\! $ONETRIP_STOP_NODE
COMMIT;
\! kill -CONT $ONETRIP_NODE_PID
RESET onetrip.commit_timeout;
INSERT INTO t VALUES (10001, 'the session goes on');
SELECT id, left(v, 20) AS v FROM t WHERE id NOT BETWEEN 2 AND 8000 ORDER BY id;
SELECT count(*) FROM t;

-- Completely sent: the outcome is not known at first, then it is; the apply worker writes the row.
SET onetrip.commit_timeout = '300ms';
\! $ONETRIP_STOP_NODE
INSERT INTO t VALUES (20000, 'sent whole');
\! kill -CONT $ONETRIP_NODE_PID
RESET onetrip.commit_timeout;
SELECT soon('SELECT count(*) = 1 FROM stopped_node.t WHERE id = 20000') AS committed;

-- Cancelled after it was sent: the same.
BEGIN;
INSERT INTO t VALUES (20001, 'cancelled');
\! $ONETRIP_STOP_NODE
\! psql -X -q -c "CALL stopped_node.cancel_commit($PID)" >/dev/null 2>&1 &
COMMIT;
\! kill -CONT $ONETRIP_NODE_PID
SELECT soon('SELECT count(*) = 1 FROM stopped_node.t WHERE id = 20001') AS committed;

-- Rows that the apply worker writes: functions of an index expression run there as the role that wrote the row, and resolve names as they did here.
CREATE ROLE onetrip_owner;
GRANT ALL ON SCHEMA stopped_node TO onetrip_owner;
SET ROLE onetrip_owner;
CREATE FUNCTION plain(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE FUNCTION owners_only(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF current_user <> 'onetrip_owner' THEN RAISE 'run by %', current_user; END IF;
    RETURN plain($1);
END $$;
CREATE FUNCTION inlined(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT plain($1)';
CREATE TABLE owned (id int PRIMARY KEY);
CREATE INDEX ON owned (owners_only(id), inlined(id));
SET onetrip.commit_timeout = '300ms';
\! $ONETRIP_STOP_NODE
INSERT INTO owned VALUES (1);
\! kill -CONT $ONETRIP_NODE_PID
SELECT soon('SELECT count(*) = 1 FROM stopped_node.owned') AS committed;
\! $ONETRIP_STOP_NODE
DELETE FROM owned;
\! kill -CONT $ONETRIP_NODE_PID
SELECT soon('SELECT count(*) = 0 FROM stopped_node.owned') AS committed;
RESET onetrip.commit_timeout;
RESET ROLE;

-- A row lock is not waited for.
BEGIN;
SET LOCAL onetrip.concurrency = locking;
SET LOCAL statement_timeout = '20s';
\! $ONETRIP_STOP_NODE
UPDATE t SET v = 'before' WHERE id = 0;
\! kill -CONT $ONETRIP_NODE_PID
COMMIT;

-- Readers never noticed, and everything goes on.
\! $ONETRIP_STOP_NODE
SELECT count(*) FROM t;
\! kill -CONT $ONETRIP_NODE_PID
INSERT INTO t VALUES (30000, 'after');
SELECT id, left(v, 20) AS v FROM t WHERE id NOT BETWEEN 2 AND 8000 ORDER BY id;
SELECT count(*) FROM t;
SELECT onetrip.pending_bytes(), (SELECT count(*) FROM onetrip.pending_keys());

\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA stopped_node CASCADE;
DROP ROLE onetrip_owner;
