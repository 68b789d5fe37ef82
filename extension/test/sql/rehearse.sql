-- Goal: a write set that is rehearsed leaves nothing behind, fails where it would fail, and is nobody's but the node's to rehearse.
-- Method: write sets of this session, tried once it is rolled back; the settings of a session that rehearses become the worker's, so each has its own.
CREATE SCHEMA rehearse;
SET search_path = rehearse;
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE SEQUENCE s;
INSERT INTO t VALUES (1, 'one');
BEGIN;
INSERT INTO t VALUES (2, 'two');
SELECT setval('s', 100);
ALTER TABLE t ADD COLUMN n int DEFAULT 7;
CREATE TABLE made (id serial PRIMARY KEY);
UPDATE t SET v = 'changed' WHERE id = 1;
SELECT unit.write_set() AS good \gset
ROLLBACK;
BEGIN;
CREATE INDEX by_v ON t (v);
SELECT unit.write_set() AS index \gset
ROLLBACK;

\c -
BEGIN;
SELECT last_value FROM rehearse.s;
SELECT onetrip.rehearse(0, :'good');
SELECT onetrip.rehearse(0, :'good');
-- Nothing of it is there, nor will be, nor is captured; what follows is captured as ever.
SELECT *, to_regclass('rehearse.made') FROM rehearse.t;
SELECT last_value FROM rehearse.s;
SELECT onetrip.pending_bytes();
INSERT INTO rehearse.t VALUES (3, 'three');
SELECT onetrip.pending_bytes() > 0 AS captured;
COMMIT;
SELECT * FROM rehearse.t ORDER BY id;

-- What fails says so.
\c -
CREATE INDEX by_v ON rehearse.t (v);
SELECT onetrip.rehearse(0, :'index');
SELECT onetrip.rehearse(0, '\x0253');
-- After it the session captures as before.
BEGIN;
INSERT INTO rehearse.t VALUES (4, 'four');
SELECT onetrip.pending_bytes() > 0 AS captured;
ROLLBACK;

-- A place in the log that this server does not show soon is not waited for; a lock that is held neither.
SELECT onetrip.rehearse(4000000000000000, :'good');

CREATE ROLE rehearsing;
SET ROLE rehearsing;
SELECT onetrip.rehearse(0, '\x02');
SET onetrip.rehearse = off;
RESET ROLE;
GRANT EXECUTE ON FUNCTION onetrip.rehearse(bigint, bytea) TO rehearsing;
SET ROLE rehearsing;
SELECT onetrip.rehearse(0, '\x02');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION onetrip.rehearse(bigint, bytea) FROM rehearsing;
DROP ROLE rehearsing;
SET client_min_messages = warning;
DROP SCHEMA rehearse CASCADE;
