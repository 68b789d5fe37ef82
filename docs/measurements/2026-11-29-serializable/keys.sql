\set a random(1, 10000)
\set b random(1, 10000)
BEGIN;
SELECT n FROM acct WHERE id = :a;
SELECT n FROM acct WHERE id = :b;
UPDATE acct SET n = n + 1 WHERE id = :a;
COMMIT;
