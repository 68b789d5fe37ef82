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
