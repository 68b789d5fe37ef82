-- Goal: an unchanged TOASTed value is not sent, a changed one is sent whole; a TOASTed unique value has its key.
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

-- To null, then to short values, with a long value in another column.
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

-- The identity changes and the TOASTed values stay where they are.
BEGIN;
UPDATE t SET id = 2 WHERE id = 1;
:operations;
COMMIT;

-- A row inserted from a TOASTed value of another row contains the value.
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

SET client_min_messages = warning;
DROP SCHEMA toast CASCADE;
