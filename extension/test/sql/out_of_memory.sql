-- A session that runs out of memory in a savepoint goes on, and commits what came before and after it.
-- At many levels, so that each array and hash table of a write set fails to grow at one of them: what writes where
-- there is no memory crashes the server.  (Sanitizers have an allocator of their own, which cannot be limited so.)
\getenv sanitizers SANITIZERS
SELECT set_config('test.limited', (NOT :{?sanitizers})::text, false) AS limited \gset
CREATE TABLE short_of_memory (id int PRIMARY KEY, v text);
CREATE FUNCTION pg_temp.runs_out(more bigint, what text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM unit.limit_memory(more);
    EXECUTE what;
    RAISE no_data_found;
EXCEPTION
    WHEN out_of_memory THEN
        PERFORM unit.limit_memory(NULL);
        RETURN true;
    WHEN no_data_found THEN
        PERFORM unit.limit_memory(NULL);
        RETURN false;
END $$;
DO $$
DECLARE
    limited boolean := current_setting('test.limited');
    whats text[] := ARRAY[
        'INSERT INTO short_of_memory SELECT i, ''too many'' FROM generate_series(1, 200000) AS i',
        'SELECT pg_notify(''c'' || i % 100, i::text) FROM generate_series(1, 100000) AS i'];
    what text;
    more bigint;
    level int := 0;
    failed int;
BEGIN
    FOREACH what IN ARRAY whats LOOP
        failed := 0;
        more := 500000;
        WHILE more < 40000000 LOOP
            level := level + 1;
            INSERT INTO short_of_memory VALUES (-1000 * level, 'before');
            failed := failed + pg_temp.runs_out(CASE WHEN limited THEN more END, what)::int;
            INSERT INTO short_of_memory SELECT -1000 * level - i, 'after' FROM generate_series(1, 300) AS i;
            COMMIT;
            more := CASE WHEN limited THEN more * 4 / 3 ELSE 40000000 END;
        END LOOP;
        RAISE NOTICE '%: ran out of memory: %', left(what, 20), failed > 0 OR NOT limited;
    END LOOP;
    RAISE NOTICE 'whole: %', (SELECT count(*) = level * 301 AND bool_and(v <> 'too many') FROM short_of_memory);
END $$;
DROP TABLE short_of_memory;

-- Memory runs out while a COMMIT waits for its verdict, and once more while that is logged: the transaction may be in the log,
-- so the client is not told that it has failed.
CREATE TABLE in_the_log (id int PRIMARY KEY);
SELECT current_setting('onetrip.agent_socket') AS socket \gset
\setenv SOCKET :socket
\set dir `mktemp -d /tmp/onetrip-damaged.XXXXXX`
\setenv DIR :dir
\! chmod 777 $DIR
\! perl "$(dirname "$ONETRIP_GOLDEN")/../extension/test/stand_in.pl" $DIR $SOCKET >$DIR/log 2>&1 & for i in $(seq 200); do [ -S $DIR/node.sock ] && break; sleep 0.05; done
SELECT unit.use_socket(:'dir' || '/node.sock');
SELECT unit.lack_memory_to_log(true);
BEGIN;
INSERT INTO in_the_log VALUES (1);
SELECT onetrip.current_transaction_id() AS txn \gset
-- VERDICT cannot be read, which is logged
\! umask 0; echo 82 >$DIR/damaged
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
SELECT unit.lack_memory_to_log(false);
SELECT unit.use_socket(NULL);
\! cat $DIR/log; rm -r $DIR
DO $$
BEGIN
    FOR i IN 1..1000 LOOP
        EXIT WHEN EXISTS (SELECT FROM in_the_log);
        COMMIT;
        PERFORM pg_sleep(0.02);
    END LOOP;
END $$;
SELECT onetrip.outcome(:'txn') LIKE 'committed at %' AS committed, (SELECT count(*) FROM in_the_log);
DROP TABLE in_the_log;
