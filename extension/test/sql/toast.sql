-- Goal: an unchanged TOASTed value is not sent; a changed one is sent as a whole; a TOASTed key is found.
-- Method: values of 20,000 and 400,000 bytes that do not compress, and the size of what is captured.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/helpers.psql
CREATE SCHEMA toast;
SET search_path = toast;
CREATE FUNCTION noise(n int, seed text) RETURNS text LANGUAGE sql IMMUTABLE AS
    'SELECT string_agg(md5(seed || g), '''') FROM generate_series(1, n / 32) g';
CREATE TABLE t (id int PRIMARY KEY, big text, small text);

BEGIN;
INSERT INTO t VALUES (1, noise(20000, 'a'), 'x');
SELECT onetrip.pending_bytes() > 20000 AS sent_whole;
:operations;
COMMIT;

BEGIN;
UPDATE t SET small = 'y' WHERE id = 1;
SELECT onetrip.pending_bytes() < 100 AS not_sent;
:operations;
COMMIT;
SELECT big = noise(20000, 'a') AS kept, small FROM t;

BEGIN;
UPDATE t SET big = noise(20000, 'b') WHERE id = 1;
SELECT onetrip.pending_bytes() > 20000 AS sent_whole;
COMMIT;
SELECT big = noise(20000, 'b') AS changed FROM t;

-- Changed to null, back, and to a short value.
BEGIN;
UPDATE t SET big = NULL WHERE id = 1;
UPDATE t SET big = 'short' WHERE id = 1;
UPDATE t SET small = noise(400000, 'c') WHERE id = 1;
UPDATE t SET big = 'shorter' WHERE id = 1;
:operations;
COMMIT;

-- Both columns out of line, each changed alone.
UPDATE t SET big = noise(20000, 'd') WHERE id = 1;
BEGIN;
UPDATE t SET big = noise(20000, 'e') WHERE id = 1;
:operations;
COMMIT;
SELECT big = noise(20000, 'e') AS big, small = noise(400000, 'c') AS small FROM t;

-- The identity changes, and the TOASTed values stay where they are.
BEGIN;
UPDATE t SET id = 2 WHERE id = 1;
:operations;
COMMIT;

-- A row that is inserted with a TOASTed value of another row contains the value.
BEGIN;
INSERT INTO t SELECT 3, big, 'copy' FROM t WHERE id = 2;
:operations;
COMMIT;

-- Stored compressed inline, external uncompressed, and a TOASTed unique value through an expression.
ALTER TABLE t ALTER COLUMN small SET STORAGE EXTERNAL;
INSERT INTO t VALUES (4, repeat('z', 100000), repeat('z', 100000));
BEGIN;
UPDATE t SET small = 'now short' WHERE id = 4;
:operations;
COMMIT;
CREATE UNIQUE INDEX ON t (md5(small));
BEGIN;
UPDATE t SET small = repeat('q', 100000) WHERE id = 4;
:keys;
UPDATE t SET big = NULL WHERE id = 4;
:keys;
:operations;
COMMIT;
DELETE FROM t WHERE id = 4;
SELECT id, length(big), length(small) FROM t ORDER BY id;

-- A value that an UPDATE leaves alone, but that the toaster moves out of line to make room, has to move elsewhere too: the row would not fit into a page there.
CREATE FUNCTION bytes(n int) RETURNS bytea LANGUAGE sql STRICT AS
    'SELECT string_agg(decode(md5(random()::text), ''hex''), '''') FROM generate_series(1, n / 16) g';
CREATE TABLE moves (id int PRIMARY KEY, a bytea, b bytea, c bytea);
ALTER TABLE moves ALTER a SET STORAGE MAIN, ALTER b SET STORAGE MAIN;
CREATE TABLE moves_without_key (LIKE moves INCLUDING STORAGE);
INSERT INTO moves VALUES (1, bytes(5000));
INSERT INTO moves_without_key TABLE moves;
BEGIN;
UPDATE moves SET b = bytes(4500), c = bytes(10000);
UPDATE moves_without_key SET b = bytes(4500), c = bytes(10000);
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'write_set'::bytea);
SELECT id, length(a), length(b), length(c) FROM moves;
SELECT id, length(a), length(b), length(c) FROM moves_without_key;
ROLLBACK;

-- The same where it is compressed to make room.
CREATE TABLE shrinks (id int PRIMARY KEY, a text, b bytea, c bytea) WITH (toast_tuple_target = 8160);
ALTER TABLE shrinks ALTER b SET STORAGE MAIN;
ALTER TABLE shrinks ALTER a SET STORAGE PLAIN;
INSERT INTO shrinks VALUES (1, repeat('compresses well ', 400));
ALTER TABLE shrinks ALTER a SET STORAGE EXTENDED;
SELECT pg_column_size(a) > 6000 AS not_compressed FROM shrinks;
BEGIN;
UPDATE shrinks SET b = bytes(4500), c = bytes(10000);
SELECT pg_column_size(a) < 1000 AS compressed FROM shrinks;
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'write_set'::bytea);
SELECT id, length(a), pg_column_size(a) < 1000 AS compressed, length(b), length(c) FROM shrinks;
ROLLBACK;

-- A value that an UPDATE leaves alone is out of line there, and in line where VACUUM FULL has stored it as its column now says.
CREATE TABLE rewritten (id int PRIMARY KEY, a bytea, d bytea, e bytea);
CREATE TABLE rewritten_plain (LIKE rewritten INCLUDING INDEXES);
ALTER TABLE rewritten ALTER e SET STORAGE MAIN;
ALTER TABLE rewritten_plain ALTER e SET STORAGE PLAIN;
INSERT INTO rewritten VALUES (1, bytes(5000));
INSERT INTO rewritten_plain TABLE rewritten;
ALTER TABLE rewritten ALTER a SET STORAGE MAIN;
ALTER TABLE rewritten_plain ALTER a SET STORAGE PLAIN;
BEGIN;
UPDATE rewritten SET e = bytes(4500), d = bytes(10000);
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
BEGIN;
UPDATE rewritten_plain SET e = bytes(4500);
SELECT unit.write_set() AS plain_write_set \gset
ROLLBACK;
VACUUM FULL rewritten;
VACUUM FULL rewritten_plain;
SELECT relname, pg_relation_size(reltoastrelid) AS out_of_line FROM pg_class
    WHERE relname LIKE 'rewritten%' AND relkind = 'r' ORDER BY relname;
BEGIN;
SELECT unit.apply(:'write_set'::bytea);
SELECT id, length(a), length(d), length(e) FROM rewritten;
ROLLBACK;
BEGIN;
SELECT unit.apply(:'plain_write_set'::bytea);
SELECT id, length(a), length(d), length(e) FROM rewritten_plain;
ROLLBACK;

-- A dropped column's value that is still there, out of line, in a table without an identity.
CREATE TABLE dropped (a int, big text, b text);
INSERT INTO dropped SELECT g, noise(20000, g::text), noise(20000, 'b' || g) FROM generate_series(1, 3) g;
ALTER TABLE dropped DROP COLUMN big;
BEGIN;
UPDATE dropped SET a = 4 WHERE a = 2;
DELETE FROM dropped WHERE a = 3;
:operations;
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'write_set'::bytea);
SELECT a, length(b) FROM dropped ORDER BY a;
ROLLBACK;

SET client_min_messages = warning;
DROP SCHEMA toast CASCADE;
