-- Goal: the check of passwords sees each of them once, where it was given, and never the verifier that was made of it.
-- Method: a check that refuses verifiers, where roles get passwords and where that is applied.
SELECT unit.refuse_verifiers();
BEGIN;
CREATE ROLE password_role PASSWORD 'clear';
ALTER ROLE password_role PASSWORD 'also clear';
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
BEGIN;
SELECT unit.apply(:'write_set');
SELECT rolpassword LIKE 'SCRAM-SHA-256$%' AS has_verifier FROM pg_authid WHERE rolname = 'password_role';
ROLLBACK;
-- One that the client has made itself is checked.
CREATE ROLE password_role PASSWORD 'md5d41d8cd98f00b204e9800998ecf8427e';
