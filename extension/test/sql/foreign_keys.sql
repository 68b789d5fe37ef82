-- Goal: a foreign key's check and its actions are safe across regions: the parent's row is a KEY SHARE key, cascades are captured.
-- Method: child insert, parent delete and update under each action, deferred checks.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA foreign_keys;
SET search_path = foreign_keys;
CREATE TABLE parent (id int PRIMARY KEY, code text UNIQUE);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE by_code (id int PRIMARY KEY, code text REFERENCES parent (code) ON DELETE SET NULL ON UPDATE CASCADE);
CREATE TABLE strict (id int PRIMARY KEY, parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
INSERT INTO parent VALUES (1, 'a'), (2, 'b');

BEGIN;
INSERT INTO child VALUES (10, 1);
:keys;
:operations;
COMMIT;
INSERT INTO by_code VALUES (20, 'a');

-- The child's KEY SHARE key and the key of the parent's delete have one hash.
BEGIN;
INSERT INTO child VALUES (11, 1);
CREATE TEMP TABLE by_child AS SELECT hash FROM onetrip.pending_keys() WHERE "table" = 'parent'::regclass;
COMMIT;
BEGIN;
DELETE FROM parent WHERE id = 1;
SELECT count(*) AS shared FROM onetrip.pending_keys() JOIN by_child USING (hash);
:keys;
:operations;
ROLLBACK;
-- An update that does not change the key has the same hash, but a mode that does not conflict.
BEGIN;
UPDATE parent SET id = 1 WHERE id = 1;
:keys;
ROLLBACK;

BEGIN;
UPDATE parent SET id = 3, code = 'c' WHERE id = 1;
:keys;
:operations;
COMMIT;
SELECT * FROM child ORDER BY id;
SELECT * FROM by_code;

-- A violation leaves nothing behind.
BEGIN;
SAVEPOINT s;
INSERT INTO child VALUES (12, 99);
ROLLBACK TO s;
SELECT count(*) FROM onetrip.pending_keys();
COMMIT;
-- A deferred check fails at COMMIT before anything is proposed.
SELECT proposals FROM onetrip.status \gset before_
BEGIN;
INSERT INTO strict VALUES (1, 99);
COMMIT;
SELECT proposals - :before_proposals AS proposed FROM onetrip.status;
-- One that succeeds locks the parent in the same transaction.
BEGIN;
INSERT INTO strict VALUES (1, 9);
INSERT INTO parent VALUES (9, 'i');
COMMIT;
SELECT * FROM strict;

-- A parent without an identity: a child that refers to an older version of the row has a key in common with who deletes the row as it is now, and none with who changes something else of it.
CREATE TABLE loose (code int UNIQUE, note text);
CREATE TABLE of_loose (code int REFERENCES loose (code));
INSERT INTO loose VALUES (1, 'as it was');
CREATE TEMP TABLE by_child_of_loose AS SELECT hash, mode FROM onetrip.pending_keys();
BEGIN;
INSERT INTO of_loose VALUES (1);
INSERT INTO by_child_of_loose SELECT hash, mode FROM onetrip.pending_keys() WHERE "table" = 'loose'::regclass;
:keys;
COMMIT;
DELETE FROM of_loose;
UPDATE loose SET note = 'changed since';
BEGIN;
DELETE FROM loose;
SELECT b.mode AS child, k.mode AS deletes FROM onetrip.pending_keys() k JOIN by_child_of_loose b USING (hash) ORDER BY 1, 2;
ROLLBACK;
BEGIN;
UPDATE loose SET note = 'once more';
SELECT b.mode AS child, k.mode AS changes FROM onetrip.pending_keys() k JOIN by_child_of_loose b USING (hash) ORDER BY 1, 2;
ROLLBACK;
BEGIN;
SELECT FROM loose FOR SHARE;
:keys;
ROLLBACK;

SET client_min_messages = warning;
DROP SCHEMA foreign_keys CASCADE;
