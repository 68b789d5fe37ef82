\set g 1 + :client_id + 20 * :place
\set a (:g - 1) * 100 + random(1, 100)
BEGIN;
SELECT sum(n) FROM acct WHERE grp = :g;
UPDATE acct SET n = n + 1 WHERE id = :a;
COMMIT;
