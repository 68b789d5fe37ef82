-- Goal: a value drawn in a transaction without an entry costs no round trip, and the next transaction with an entry reports it.
-- Method: look at what is noted in shared memory; t/sequence_crash and the cluster tests check the effects.
CREATE SCHEMA sequence_used;
SET search_path = sequence_used;
CREATE TABLE t (id int PRIMARY KEY);
CREATE TABLE numbered (id serial PRIMARY KEY, n int UNIQUE);
CREATE TABLE beside (id serial) USING heap;
CREATE SEQUENCE s;
CREATE SEQUENCE s2;
CREATE UNLOGGED SEQUENCE unlogged;
CREATE TEMP SEQUENCE temporary;
INSERT INTO t VALUES (0);
SELECT * FROM unit.used_sequences();

-- Alone: it is noted, and nothing is proposed.
SELECT proposals FROM onetrip.status \gset before_
SELECT nextval('s') > 0 AS drawn;
SELECT nextval('s') > 0 AS drawn, nextval('unlogged') > 0 AS drawn, nextval('temporary') > 0 AS drawn;
DO $$ BEGIN PERFORM nextval('s2'); END $$;
INSERT INTO beside DEFAULT VALUES;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
SELECT * FROM unit.used_sequences() ORDER BY 1;
-- An identity column calls no function.  If it is short, the transaction that fills it has an entry; one that looks has none.
CREATE TABLE seat (id smallint GENERATED ALWAYS AS IDENTITY (MAXVALUE 3), who text) USING heap;
SELECT proposals FROM onetrip.status \gset before_
INSERT INTO seat (who) VALUES ('a');
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
SELECT lastval(), currval('seat_id_seq');
COPY seat (who) FROM stdin;
b
\.
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
BEGIN;
SELECT lastval();
INSERT INTO seat (who) VALUES ('c');
COMMIT;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
DROP TABLE seat;
-- A transaction that fails reports nothing, and the sequences that it drew from are noted, too.
BEGIN;
INSERT INTO t VALUES (1);
ROLLBACK;
INSERT INTO numbered (n) VALUES (1);
INSERT INTO numbered (n) VALUES (1);
SELECT count(*) > 0 AS noted FROM unit.used_sequences() u WHERE u = 'numbered_id_seq'::regclass;
BEGIN;
SELECT nextval('s') > 0 AS drawn;
ROLLBACK;
SELECT * FROM unit.used_sequences() u WHERE u::text ~ '^s' ORDER BY 1;
-- The next transaction with an entry reports all of them.
INSERT INTO t VALUES (1);
SELECT * FROM unit.used_sequences();
-- Sequences of another transaction and its own.
SELECT nextval('s') > 0 AS drawn;
BEGIN;
INSERT INTO t VALUES (2);
SELECT nextval('s2') > 0 AS drawn;
COMMIT;
SELECT * FROM unit.used_sequences();
-- A dropped sequence is forgotten.
SELECT nextval('s2') > 0 AS drawn;
DROP SEQUENCE s2;
SELECT * FROM unit.used_sequences();

-- If more are used than can be noted, one transaction becomes an entry.
DO $$ BEGIN FOR i IN 1..300 LOOP EXECUTE format('CREATE SEQUENCE many_%s', i); END LOOP; END $$;
SELECT proposals FROM onetrip.status \gset before_
DO $$
BEGIN
    FOR i IN 1..300 LOOP
        PERFORM nextval(format('many_%s', i)::regclass);
        COMMIT;
    END LOOP;
END $$;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
SELECT count(*) FROM unit.used_sequences();
INSERT INTO t VALUES (3);
SELECT count(*) FROM unit.used_sequences();
SET client_min_messages = warning;
DROP SCHEMA sequence_used CASCADE;
