-- Goal: each setting has its unit, bounds and context; a bad value is an error that says so.
-- Method: show the definitions, try values.
SELECT name, unit, vartype, min_val, max_val, boot_val, context FROM pg_settings WHERE name LIKE 'onetrip.%' ORDER BY name COLLATE "C";

SET onetrip.commit_timeout = '3s';
SHOW onetrip.commit_timeout;
SET onetrip.commit_timeout = 0;
SET onetrip.commit_timeout = 'soon';
SET onetrip.commit_timeout = '10kB';
SET onetrip.commit_timeout = -1;
RESET onetrip.commit_timeout;
SHOW onetrip.commit_timeout;
SET onetrip.max_write_set = '1MB';
SHOW onetrip.max_write_set;
SET onetrip.max_write_set = '1kB';
SET onetrip.max_write_set = '2GB';
RESET onetrip.max_write_set;
SET onetrip.max_apply_delay = '1s';
SET onetrip.node_id = 7;
SET onetrip.region = 'elsewhere';
SET onetrip.database = 'postgres';
SET onetrip.agent_socket = '/nowhere';
SET onetrip.sequence_slot = 1;
SET onetrip.sequence_stride = 1;
-- A setting that does not exist is not accepted as a placeholder.
SET onetrip.comit_timeout = '3s';

-- What a plain user may do.
CREATE ROLE onetrip_test_user;
SET ROLE onetrip_test_user;
SET onetrip.commit_timeout = '4s';
SHOW onetrip.commit_timeout;
SET onetrip.max_write_set = '1MB';
SHOW onetrip.agent_socket;
SHOW onetrip.database;
RESET ROLE;
RESET onetrip.commit_timeout;
DROP ROLE onetrip_test_user;

-- Goal: nobody can compute a key, so that no role can choose a value whose key is that of something else.
-- Method: the hash that keys would have without the cluster's seed; who may not watch the cluster is shown others.
SHOW onetrip.key_seed;
CREATE TABLE seeded (t text PRIMARY KEY);
CREATE ROLE onetrip_test_user;
GRANT INSERT ON seeded TO onetrip_test_user;
BEGIN;
ALTER TABLE seeded ADD n int;
SELECT count(*) AS keys, count(*) FILTER (WHERE hash IN (hashtextextended('schema', x'6f6e65747269700b'::bigint),
    hashtextextended('seeded', hashtextextended('public', x'6f6e65747269700a'::bigint)))) AS computed FROM onetrip.pending_keys();
ROLLBACK;
BEGIN;
INSERT INTO seeded VALUES ('a');
CREATE TEMP TABLE keys_shown AS SELECT * FROM onetrip.pending_keys();
GRANT SELECT ON keys_shown TO onetrip_test_user;
SET LOCAL ROLE onetrip_test_user;
SELECT count(*) AS keys, count(*) FILTER (WHERE hash IN (SELECT hash FROM keys_shown)) AS known, count(DISTINCT hash) AS hashes
  FROM onetrip.pending_keys();
SHOW onetrip.key_seed;
ROLLBACK;
DROP TABLE seeded;
DROP ROLE onetrip_test_user;
