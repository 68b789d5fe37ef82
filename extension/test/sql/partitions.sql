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

-- A partition whose columns stand in another order.
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

SET client_min_messages = warning;
DROP SCHEMA partitions CASCADE;
