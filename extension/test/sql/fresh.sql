-- Goal: a transaction with onetrip.read = fresh asks its node once, before its first query, and sees what was committed by then.
-- Method: a stand-in answers READ. It commits a row before it answers, so a query that counts it has a snapshot from after that.
CREATE SCHEMA fresh;
SET search_path = fresh;
\setenv PGHOST :HOST
\setenv PGPORT :PORT
\setenv PGUSER :USER
\setenv PGDATABASE :DBNAME
CREATE TABLE t (id serial PRIMARY KEY);
CREATE FUNCTION one_count() RETURNS bigint STABLE LANGUAGE sql AS 'SELECT count(*) FROM fresh.t';
CREATE FUNCTION two_counts() RETURNS text STABLE LANGUAGE plpgsql AS $$
DECLARE a bigint; b bigint;
BEGIN
    a := fresh.one_count();
    BEGIN
        SELECT count(*) INTO b FROM fresh.t;
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN
        b := b * fresh.one_count();
    END;
    RETURN a || ', ' || sqrt(b);
END $$;
-- Its first query is in a subtransaction, and uses the snapshot of its caller, which is not.
CREATE FUNCTION in_block() RETURNS text STABLE LANGUAGE plpgsql AS $$
DECLARE n bigint;
BEGIN
    BEGIN
        SELECT count(*) INTO n FROM fresh.t;
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN NULL;
    END;
    RETURN n || ', ' || fresh.one_count();
END $$;
-- A query that uses it names no function and no table.
CREATE DOMAIN checked AS int CHECK (VALUE < fresh.one_count() * 1000);
SELECT current_setting('onetrip.agent_socket') AS socket \gset
\setenv SOCKET :socket
\set dir `mktemp -d /tmp/onetrip-fresh.XXXXXX`
\setenv DIR :dir
\! chmod 777 $DIR; umask 0; touch $DIR/asked $DIR/answer
\! perl "$(dirname "$ONETRIP_GOLDEN")/../extension/test/stand_in.pl" $DIR $SOCKET >$DIR/log 2>&1 & for i in $(seq 200); do [ -S $DIR/node.sock ] && break; sleep 0.05; done
\! echo 'psql -XAtqc "INSERT INTO fresh.t DEFAULT VALUES" -c "SELECT onetrip.position()"' >$DIR/answer
SELECT unit.use_socket(:'dir' || '/node.sock');
-- How often the node was asked since this was last looked at.
\set questions '\\! wc -l <$DIR/asked; : >$DIR/asked'

-- onetrip.read = local: nobody is asked.
SELECT count(*) FROM t;
:questions

-- Each transaction asks once, however it goes on.
SET onetrip.read = fresh;
SELECT count(*) FROM t;
:questions
BEGIN;
SELECT count(*) FROM t;
SAVEPOINT s;
SELECT count(*) FROM t;
ROLLBACK TO s;
SELECT count(*) FROM t;
COMMIT;
:questions
BEGIN;
SAVEPOINT s;
SELECT count(*) FROM t;
ROLLBACK TO s;
SELECT count(*), one_count(), two_counts() FROM t;
ROLLBACK;
:questions
SELECT count(*) FROM t \; SELECT count(*) FROM t;
:questions

-- onetrip.max_staleness: nobody asks while the last question of anybody is not too old.
RESET onetrip.read;
SET onetrip.max_staleness = '1h';
SELECT count(*) FROM t;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM t;
COMMIT;
SET onetrip.max_trips = 0;
SELECT count(*), one_count() FROM t;
RESET onetrip.max_trips;
:questions
SET onetrip.max_staleness = '100ms';
SELECT pg_sleep(0.15);
SELECT count(*) FROM t;
:questions
SET onetrip.max_staleness = 0;
SELECT count(*) FROM t;
BEGIN;
SELECT count(*) FROM t;
SELECT count(*) FROM t;
COMMIT;
:questions
SET onetrip.max_trips = 0;
SELECT count(*) FROM t;
RESET onetrip.max_trips;
:questions
-- A transaction that wants it fresher than it has it asks once more, if it can.
BEGIN;
SET LOCAL onetrip.max_staleness = '1h';
SELECT count(*) FROM t;
SET LOCAL onetrip.read = fresh;
SELECT count(*) FROM t;
SET LOCAL onetrip.read = local;
SET LOCAL onetrip.max_staleness = '1s';
SELECT count(*) FROM t;
COMMIT;
:questions
BEGIN;
SET LOCAL onetrip.max_staleness = '1h';
SELECT count(*) FROM t;
SET LOCAL onetrip.max_staleness = 0;
SELECT count(*) FROM t;
COMMIT;
:questions
RESET onetrip.max_staleness;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL onetrip.max_staleness = '1h';
SELECT count(*) FROM t;
SET LOCAL onetrip.max_staleness = 0;
SELECT count(*) FROM t;
ROLLBACK;
-- A fresh read asks, however lately somebody has.
SET onetrip.max_staleness = '1h';
SET onetrip.read = fresh;
SELECT count(*) FROM t;
:questions
RESET onetrip.max_staleness;

-- A prepared statement whose plan is kept.
SET plan_cache_mode = force_generic_plan;
PREPARE counts AS SELECT count(*), one_count() FROM t;
EXECUTE counts;
EXECUTE counts;
BEGIN;
SAVEPOINT s;
EXECUTE counts;
EXECUTE counts;
COMMIT;
:questions

-- Cursors.
BEGIN;
DECLARE c CURSOR FOR SELECT count(*), one_count() FROM t;
FETCH c;
CLOSE c;
COMMIT;
:questions

-- Functions that the query calls see what it sees; also in an exception block.
SELECT count(*), one_count(), two_counts() FROM t;
SELECT two_counts(), two_counts();
:questions
BEGIN;
SAVEPOINT s;
SELECT count(*), two_counts() FROM t;
COMMIT;
:questions

-- DO and procedures, each transaction of which asks.
DO $$ BEGIN RAISE NOTICE '%', fresh.two_counts(); RAISE NOTICE '%', (SELECT count(*) FROM fresh.t); END $$;
:questions
CREATE PROCEDURE counts() LANGUAGE plpgsql AS $$
DECLARE n bigint;
BEGIN
    SELECT count(*) INTO n FROM fresh.t;
    COMMIT;
    RAISE NOTICE '%, %', n, fresh.one_count();
    COMMIT;
    FOR n IN SELECT count(*) FROM fresh.t LOOP RAISE NOTICE '%', n; END LOOP;
END $$;
CALL counts();
:questions
DO $$ BEGIN
    BEGIN
        RAISE NOTICE '%', fresh.two_counts();
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN RAISE NOTICE '%', fresh.one_count();
    END;
END $$;
:questions

DO $$ BEGIN RAISE NOTICE '%', fresh.in_block(); RAISE NOTICE '%', fresh.one_count(); END $$;
:questions

-- The same while another extension instruments all queries, as EXPLAIN ANALYZE does.
CREATE FUNCTION statements() RETURNS bigint STABLE LANGUAGE sql AS 'SELECT count(*) FROM fresh.t; SELECT count(*) FROM fresh.t';
CREATE FUNCTION statements_in_block() RETURNS bigint STABLE LANGUAGE plpgsql AS $$
DECLARE n bigint;
BEGIN
    BEGIN
        n := fresh.statements();
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN NULL;
    END;
    RETURN n;
END $$;
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_analyze = on;
SET auto_explain.log_nested_statements = on;
BEGIN;
SAVEPOINT s;
WITH x AS (INSERT INTO t DEFAULT VALUES RETURNING statements_in_block()) SELECT count(*) FROM x;
ROLLBACK;
DO $$ BEGIN
    BEGIN
        RAISE NOTICE '%', (SELECT fresh.statements_in_block() = count(*) FROM fresh.t);
    EXCEPTION WHEN division_by_zero THEN NULL;
    END;
END $$;
SET auto_explain.log_min_duration = -1;
:questions

-- Other statements that read.
CREATE TEMP TABLE copied AS SELECT count(*), one_count() FROM t;
TABLE copied;
:questions
COPY (SELECT count(*) FROM t) TO STDOUT;
:questions
CREATE TABLE few (id serial PRIMARY KEY, v int DEFAULT 1);
\! echo 'psql -XAtqc "INSERT INTO fresh.few DEFAULT VALUES" -c "SELECT onetrip.position()"' >$DIR/answer
COPY few (v) TO STDOUT;
BEGIN;
SAVEPOINT s;
COPY few (v) TO STDOUT;
ROLLBACK TO s;
COPY few (v) TO STDOUT;
COMMIT;
:questions
EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) SELECT * FROM few;
EXPLAIN (COSTS off) SELECT * FROM few;
:questions
UPDATE few SET v = v + 1 RETURNING v;
INSERT INTO few (v) SELECT v + 10 FROM few ORDER BY v RETURNING v;
WITH gone AS (DELETE FROM few RETURNING id) SELECT count(*) FROM gone;
:questions
-- Parallel workers see the same.
\! echo 'psql -XAtqc "INSERT INTO fresh.t DEFAULT VALUES" -c "SELECT onetrip.position()"' >$DIR/answer
SET max_parallel_workers_per_gather = 2;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SELECT count(*) = one_count() AS same FROM t;
BEGIN;
SAVEPOINT s;
SELECT count(*) = one_count() AS same FROM t;
DO $$ BEGIN RAISE NOTICE '%', fresh.one_count() = (SELECT count(*) FROM fresh.t); END $$;
COMMIT;
DO $$ BEGIN RAISE NOTICE '%', split_part(fresh.in_block(), ', ', 1)::bigint = fresh.one_count(); END $$;
BEGIN;
COMMIT;
RESET max_parallel_workers_per_gather;
:questions

-- A transaction's own changes, up to the statement.
BEGIN;
SELECT count(*) AS before FROM t \gset
INSERT INTO t DEFAULT VALUES RETURNING one_count() - :before AS of_the_statement;
SELECT count(*) - :before AS after FROM t;
ROLLBACK;
:questions

-- What reads no table of anybody's asks nobody.
SELECT 1;
SELECT count(*) > 0 AS some FROM pg_class;
SELECT count(*) > 0 AS some FROM information_schema.columns;
SELECT region FROM onetrip.status;
SELECT onetrip.position() > 0 AS position;
SHOW onetrip.read;
:questions
-- Large objects are replicated, although PostgreSQL's own functions and catalogs read them.
SELECT count(*) AS pages FROM pg_largeobject WHERE loid = 1;
SELECT lo_get(1);
SELECT * FROM lo_get(1, 0, 1);
SELECT x FROM (VALUES (1), (2)) AS v (x) WHERE lo_get(x::oid) IS NOT NULL UNION ALL SELECT 3;
SELECT (SELECT lo_open(1, 262144));
:questions
EXPLAIN (COSTS off) SELECT lo_get(1);
:questions
-- What does not show in its plan asks all the same, once it runs.
SELECT (xpath('//count/text()', query_to_xml('SELECT count(*) FROM fresh.t', false, false, '')))[1] AS count;
:questions
SELECT 1::checked;
:questions

-- REPEATABLE READ asks when the block begins, or when this is set in it.
BEGIN ISOLATION LEVEL REPEATABLE READ;
:questions
SELECT count(*) = one_count() AS same FROM t;
COMMIT;
:questions
-- The end of a block does not ask: neither for itself nor for the next one.
BEGIN ISOLATION LEVEL REPEATABLE READ;
COMMIT AND CHAIN;
COMMIT AND CHAIN;
ROLLBACK;
:questions
SET onetrip.read = local;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL onetrip.read = fresh;
SET LOCAL work_mem = '1MB';
:questions
SELECT count(*) FROM few;
COMMIT;
:questions
SET onetrip.read = fresh;
BEGIN;
:questions
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
:questions
SELECT count(*) FROM few;
COMMIT;
:questions
SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ;
BEGIN;
:questions
SELECT count(*) FROM few;
COMMIT;
-- Too late: without a block, and after the first query.
SELECT count(*) FROM few;
COPY few (v) TO STDOUT;
SELECT count(*) > 0 AS some FROM pg_class;
SET onetrip.read = local;
BEGIN;
SELECT count(*) FROM few;
SET LOCAL onetrip.read = fresh;
\set VERBOSITY sqlstate
SELECT count(*) FROM few;
ROLLBACK;
\set VERBOSITY default
CREATE PROCEDURE repeatable() LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
    RAISE NOTICE '%', (SELECT count(*) FROM fresh.few);
    COMMIT;
END $$;
:questions
SET onetrip.read = fresh;
SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED;
CALL repeatable();
:questions

-- The server must show the entry first: here it is committed a moment later.
CREATE TABLE later (v text);
\! echo 'psql -XAtqc "SELECT onetrip.position() + 1"; (sleep 0.3; psql -Xqc "INSERT INTO fresh.later VALUES (1)") >/dev/null 2>&1 &' >$DIR/answer
SELECT count(*) FROM later;
:questions

-- It is not there in time; no answer comes in time; there is no node.
SET onetrip.commit_timeout = '200ms';
\set VERBOSITY terse
\! echo 'echo 1000000000000' >$DIR/answer
SELECT count(*) FROM later;
-- Nor is it there for a transaction that can do with that answer.
SET onetrip.read = local;
SET onetrip.max_staleness = '1h';
SELECT count(*) FROM later;
RESET onetrip.max_staleness;
SET onetrip.read = fresh;
\! echo 'echo silence' >$DIR/answer
SELECT count(*) FROM later;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT 1;
ROLLBACK;
\set VERBOSITY default
SELECT count(*) FROM later;
:questions
SET onetrip.read = local;
SELECT unit.use_socket(:'dir' || '/nobody');
SET onetrip.read = fresh;
SELECT count(*) FROM later;
-- A node that hangs while its queue of connections is full.
\! umask 0; perl -MSocket=:all -e 'socket(my $l, AF_UNIX, SOCK_STREAM, 0); bind($l, my $at = pack_sockaddr_un("$ENV{DIR}/full")); listen($l, 0); my @c; do { socket(my $c, AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0); push @c, $c } while connect($c[-1], $at); open my $f, ">", "$ENV{DIR}/is_full"; sleep 5' >$DIR/log 2>&1 & for i in $(seq 200); do [ -e $DIR/is_full ] && break; sleep 0.05; done
SET onetrip.read = local;
SELECT unit.use_socket(:'dir' || '/full');
SET onetrip.read = fresh;
SELECT count(*) FROM later;
RESET onetrip.commit_timeout;
SET onetrip.read = local;
SELECT unit.use_socket(:'dir' || '/node.sock');
SET onetrip.read = fresh;

-- A cancel ends it at once. The answer that comes later is passed over: by the next question, and by a COMMIT.
SET statement_timeout = '200ms';
SELECT count(*) FROM later;
RESET statement_timeout;
\! echo 'psql -XAtqc "INSERT INTO fresh.later VALUES (1)" -c "SELECT onetrip.position()"' >$DIR/answer
SELECT count(*) FROM later;
:questions
\! echo 'sleep 1; echo 0' >$DIR/answer
BEGIN;
SET LOCAL statement_timeout = '200ms';
SAVEPOINT s;
SELECT count(*) FROM later;
ROLLBACK TO s;
SET LOCAL onetrip.read = local;
INSERT INTO later VALUES ('after a cancel');
COMMIT;
\! echo 'echo stale 0' >$DIR/answer
SELECT count(*) FROM later;
-- The connection is lost: it asks again on another one.
\! : >$DIR/asked; echo 'if [ $(wc -l <'$DIR'/asked) = 1 ]; then echo lost; else echo 0; fi' >$DIR/answer
SELECT count(*) FROM later;
:questions

-- Another database is not replicated.
\! psql -d postgres -XAtqc "SET onetrip.commit_timeout = '100ms'" -c "SET onetrip.read = fresh" -c "CREATE TEMP TABLE x AS SELECT 1" -c "SELECT count(*) FROM x"

-- A change of the table that comes before what the read waits for needs the lock that the read has: the read gives way.
\! $ONETRIP_STOP_NODE
\! psql -Xqc "SET onetrip.commit_timeout = '300ms'" -c "ALTER TABLE fresh.later ADD COLUMN w int" 2>&1 | grep -c 'is not known yet'
\! echo "psql -XAtqc 'SELECT onetrip.position() + 1'; kill -CONT $ONETRIP_NODE_PID" >$DIR/answer
\set VERBOSITY terse
SELECT v FROM later LIMIT 1;
\set VERBOSITY default
SELECT onetrip.wait_for(onetrip.position()) > 0 AS waited;
\! echo 'echo 0' >$DIR/answer
SELECT count(w) FROM later;

-- onetrip.wait_for(): of what is shown already, of what comes a moment later, and of what does not come.
SELECT onetrip.wait_for(onetrip.position()) = onetrip.position() AS shown, onetrip.wait_for(0) > 0 AS zero, onetrip.wait_for(NULL) IS NULL AS null;
SELECT count(*) AS before, onetrip.position() + 1 AS next FROM later \gset
\! (sleep 0.3; psql -Xqc "INSERT INTO fresh.later VALUES (1)") >/dev/null 2>&1 &
SELECT onetrip.wait_for(:next) >= :next AS shown;
SET onetrip.read = local;
SELECT count(*) - :before AS more FROM later;
SELECT onetrip.wait_for(-1);
SELECT onetrip.wait_for(1, '-1 s');
\set VERBOSITY terse
SELECT onetrip.wait_for(9000000000000000000, '100 ms');
SET statement_timeout = '100ms';
SELECT onetrip.wait_for(9000000000000000000, '1000 years');
SELECT onetrip.wait_for(9000000000000000000);
RESET statement_timeout;
\set VERBOSITY default

SELECT unit.use_socket(NULL);
\! rm -r $DIR

-- The node itself: it answers, also after it was asked in vain, and takes a COMMIT after such a question.
SET onetrip.read = fresh;
SELECT count(*) = one_count() AS same FROM t;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) = one_count() AS same FROM t;
COMMIT;
BEGIN;
\! $ONETRIP_STOP_NODE
SET LOCAL statement_timeout = '200ms';
SAVEPOINT s;
SELECT count(*) FROM later;
ROLLBACK TO s;
SELECT count(*) FROM later;
ROLLBACK TO s;
\! kill -CONT $ONETRIP_NODE_PID
RESET statement_timeout;
SET LOCAL onetrip.read = local;
INSERT INTO later VALUES ('after two questions');
COMMIT;
SELECT count(*) FROM later WHERE v = 'after two questions';
SET client_min_messages = warning;
DROP SCHEMA fresh CASCADE;
