-- Goal: a write set that is rehearsed leaves nothing behind and fails where it would fail when applied; only the node may have one rehearsed.
-- Method: write sets of this session, rehearsed after a rollback; a session that rehearses takes on the settings of the apply worker, so each rehearsal has its own.
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
-- Nothing of it is there, or captured, or comes later; what follows is captured as always.
SELECT *, to_regclass('rehearse.made') FROM rehearse.t;
SELECT last_value FROM rehearse.s;
SELECT onetrip.pending_bytes();
INSERT INTO rehearse.t VALUES (3, 'three');
SELECT onetrip.pending_bytes() > 0 AS captured;
COMMIT;
SELECT * FROM rehearse.t ORDER BY id;

-- A rehearsal that fails says why.
\c -
CREATE INDEX by_v ON rehearse.t (v);
SELECT onetrip.rehearse(0, :'index');
SELECT onetrip.rehearse(0, '\x0253');
-- After it the session captures as before.
BEGIN;
INSERT INTO rehearse.t VALUES (4, 'four');
SELECT onetrip.pending_bytes() > 0 AS captured;
ROLLBACK;

-- A rehearsal does not wait for a position that this server does not show soon.
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
