-- Goal: a row of a table whose key is WITHOUT OVERLAPS (PostgreSQL 18) is found by its contents: its key finds rows that overlap, and none whose range is empty.
SELECT current_setting('server_version_num')::int >= 180000 AS has_temporal_keys \gset
\if :has_temporal_keys
CREATE TABLE temporal (id int4range, valid daterange, v text, PRIMARY KEY (id, valid WITHOUT OVERLAPS));
INSERT INTO temporal VALUES ('[1,5)', '[2020-01-01,2021-01-01)', 'one'), ('[3,8)', '[2020-01-01,2021-01-01)', 'two'), ('empty', '[2020-01-01,2021-01-01)', 'three');
BEGIN;
DELETE FROM temporal WHERE v = 'two';
UPDATE temporal SET v = 'four' WHERE v = 'three';
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'write_set'::bytea);
SELECT * FROM temporal ORDER BY v;
ROLLBACK;
DROP TABLE temporal;
\endif
