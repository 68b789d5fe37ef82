-- Goal: changes of a partitioned table are those of its partitions; a row that moves is a delete and an insert.
-- Method: inserts through the root, row movement, ON CONFLICT, foreign keys to and from, attach and detach.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA partitions;
SET search_path = partitions;
CREATE TABLE p (id int, place text, amount int, PRIMARY KEY (id, place)) PARTITION BY LIST (place);
CREATE TABLE p_east PARTITION OF p FOR VALUES IN ('east');
CREATE TABLE p_west PARTITION OF p FOR VALUES IN ('west') PARTITION BY RANGE (id);
CREATE TABLE p_west_low PARTITION OF p_west FOR VALUES FROM (0) TO (100);
CREATE TABLE p_rest PARTITION OF p DEFAULT;

BEGIN;
INSERT INTO p VALUES (1, 'east', 1), (2, 'west', 2), (3, 'north', 3);
:keys;
:operations;
COMMIT;
BEGIN;
UPDATE p SET amount = 10 WHERE id = 1;
:operations;
COMMIT;
BEGIN;
UPDATE p SET place = 'west' WHERE id = 1;
:keys;
:operations;
COMMIT;
SELECT tableoid::regclass, * FROM p ORDER BY id;
BEGIN;
INSERT INTO p VALUES (1, 'west', 0) ON CONFLICT (id, place) DO UPDATE SET amount = 11;
COPY p FROM stdin;
4	east	4
5	west	5
\.
:operations;
COMMIT;

BEGIN;
TRUNCATE p_east;
:operations;
COMMIT;

-- A foreign key to a partitioned table locks the row in its partition.
CREATE TABLE child (id int PRIMARY KEY, p int, place text, FOREIGN KEY (p, place) REFERENCES p);
BEGIN;
INSERT INTO child VALUES (1, 1, 'west');
:keys;
COMMIT;

-- Partitions come and go.
CREATE TABLE p_south (id int, place text, amount int, PRIMARY KEY (id, place));
INSERT INTO p_south VALUES (6, 'south', 6);
ALTER TABLE p ATTACH PARTITION p_south FOR VALUES IN ('south');
BEGIN;
UPDATE p SET amount = 66 WHERE id = 6;
:operations;
COMMIT;
ALTER TABLE p DETACH PARTITION p_south;
SELECT * FROM p_south;

-- A partition whose columns are in another order.
CREATE TABLE p_odd (amount int, gone int, place text NOT NULL, id int NOT NULL);
ALTER TABLE p_odd DROP COLUMN gone;
ALTER TABLE p ATTACH PARTITION p_odd FOR VALUES IN ('odd');
BEGIN;
INSERT INTO p VALUES (7, 'odd', 7);
UPDATE p SET amount = 77 WHERE id = 7;
DELETE FROM p WHERE id = 7;
:operations;
COMMIT;

-- Plain inheritance.
CREATE TABLE base (id int PRIMARY KEY, a int);
CREATE TABLE derived (b int, PRIMARY KEY (id)) INHERITS (base);
INSERT INTO derived VALUES (1, 2, 3);
BEGIN;
UPDATE base SET a = 20;
:operations;
COMMIT;

-- A bound is computed once: its value is in the statement that travels, and what the computation wrote comes before the statement.
CREATE TABLE dealt (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE FUNCTION next_bound(bound int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN INSERT INTO base VALUES (bound, 0); CREATE TABLE by_the_way (id int); RETURN bound; END $$;
SET partitions.first = '10';
BEGIN;
CREATE TABLE dealt_1 PARTITION OF dealt FOR VALUES FROM (MINVALUE) TO (current_setting('partitions.first')::int - 15) WITH (fillfactor = 50);
CREATE TABLE dealt_2 PARTITION OF dealt FOR VALUES /* from (1) */ FROM (-5) TO (next_bound(20)) PARTITION BY LIST (id);
CREATE TABLE IF NOT EXISTS dealt_2 PARTITION OF dealt FOR VALUES FROM (-5) TO (next_bound(20));
CREATE TABLE dealt_3 (id int NOT NULL);
ALTER TABLE dealt ATTACH PARTITION dealt_3 FOR VALUES FROM (20) TO (2 * current_setting('partitions.first')::int + length('a)('));
:operations;
COMMIT;
SELECT relname, pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname LIKE 'dealt__' ORDER BY 1;
CREATE TABLE of_time (t timestamptz, f float8) PARTITION BY RANGE (t, f);
SET extra_float_digits = -10;
SET DateStyle = 'German, DMY';
CREATE TABLE of_time_1 PARTITION OF of_time FOR VALUES FROM ('01.02.2003', 1.0 / 3) TO ('now', MAXVALUE);
RESET extra_float_digits;
RESET DateStyle;
SELECT pg_get_expr(relpartbound, oid) ~ '0.333333333333333' FROM pg_class WHERE relname = 'of_time_1';
CREATE TABLE dealt_4 PARTITION OF dealt FOR VALUES FROM (15 + 1) TO (18);
CREATE TABLE dealt_4 PARTITION OF dealt FOR VALUES IN (random());
CREATE SCHEMA partitions_2 CREATE TABLE dealt_4 PARTITION OF partitions.dealt FOR VALUES FROM (50) TO (50 + 1);
\echo :LAST_ERROR_SQLSTATE
CREATE SCHEMA partitions_2 CREATE TABLE dealt_4 PARTITION OF partitions.dealt FOR VALUES FROM (50) TO (51);

-- So many values that the row of pg_class has just room for them is what other regions store, byte for byte: where values stand
-- in a text is not kept.
CREATE TABLE many (id int) PARTITION BY LIST (id);
SELECT string_agg((1000 + 7 * g)::text, ', ') AS values FROM generate_series(1, 1200) g \gset
\set stored 'SELECT string_agg(md5(relpartbound::text) || pg_column_size(relpartbound), '' '' ORDER BY relname) FROM pg_class WHERE relname ~ ''^many_'''
BEGIN;
CREATE TABLE many_1 PARTITION OF many FOR VALUES IN (:values);
CREATE TABLE many_2 (id int);
ALTER TABLE many ATTACH PARTITION many_2 FOR VALUES IN (-1, 1 - 3);
CREATE SCHEMA partitions_4 CREATE TABLE many_3 PARTITION OF partitions.many FOR VALUES IN (-4, -3);
SELECT (:stored) AS made \gset
SELECT unit.write_set() AS bounds \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'bounds'::bytea);
SELECT (:stored) = :'made' AS same;
ROLLBACK;

-- Foreign keys that refer to a new partition have names in the order of those that refer to its parent, wherever these are stored.
CREATE TABLE referred (id int PRIMARY KEY) PARTITION BY LIST (id);
CREATE TABLE referred_3 (id int PRIMARY KEY);
CREATE TABLE referring (id int PRIMARY KEY, r int);
ALTER TABLE referring ADD FOREIGN KEY (r) REFERENCES referred;
ALTER TABLE referring ADD FOREIGN KEY (r) REFERENCES referred ON DELETE CASCADE;
\set names 'SELECT c.conname, p.conname AS of, c.confrelid::regclass FROM pg_constraint c JOIN pg_constraint p ON p.oid = c.conparentid WHERE c.conrelid = ''referring''::regclass ORDER BY 3, 1'
BEGIN;
CREATE TABLE referred_1 PARTITION OF referred FOR VALUES IN (1) PARTITION BY LIST (id);
ALTER TABLE referred ATTACH PARTITION referred_3 FOR VALUES IN (3);
CREATE TABLE referred_11 PARTITION OF referred_1 FOR VALUES IN (1);
:names;
SELECT unit.write_set() AS parted \gset
ROLLBACK;
ALTER TABLE referring RENAME CONSTRAINT referring_r_fkey TO moved;
ALTER TABLE referring RENAME CONSTRAINT moved TO referring_r_fkey;
BEGIN;
CREATE TABLE referred_1 PARTITION OF referred FOR VALUES IN (1) PARTITION BY LIST (id);
ALTER TABLE referred ATTACH PARTITION referred_3 FOR VALUES IN (3);
CREATE TABLE referred_11 PARTITION OF referred_1 FOR VALUES IN (1);
:names;
ROLLBACK;
BEGIN;
SELECT unit.apply(:'parted'::bytea);
:names;
ROLLBACK;
BEGIN;
CREATE SCHEMA partitions_3 CREATE TABLE referred_4 PARTITION OF partitions.referred FOR VALUES IN (4);
:names;
ROLLBACK;
DROP TABLE referring;

SET client_min_messages = warning;
DROP SCHEMA partitions, partitions_2 CASCADE;
