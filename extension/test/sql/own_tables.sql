-- The server does what the tables of this extension say, so nobody but a superuser writes them, and who reads all tables
-- does not read these.  All of them, and the views, from the server's own list.
CREATE ROLE all_data IN ROLE pg_read_all_data, pg_write_all_data, pg_read_server_files;
CREATE ROLE monitors IN ROLE pg_monitor;
CREATE FUNCTION pg_temp.refused(what text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE what;
    RAISE no_data_found USING MESSAGE = 'not refused';
EXCEPTION
    WHEN insufficient_privilege THEN RETURN 'refused';
    WHEN OTHERS THEN RETURN SQLERRM;
END $$;
CREATE TEMP VIEW writes AS
    SELECT c.oid::regclass AS relation, w.what, format(w.statement, c.oid::regclass, a.attname) AS statement
      FROM pg_class AS c
      JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = 1
      CROSS JOIN (VALUES ('INSERT', 'INSERT INTO %1$s SELECT * FROM %1$s'), ('UPDATE', 'UPDATE %1$s SET %2$I = %2$I'),
                         ('DELETE', 'DELETE FROM %1$s'), ('COPY', 'COPY %1$s FROM ''/dev/null''')) AS w (what, statement)
     WHERE c.relnamespace = 'onetrip'::regnamespace AND c.relkind IN ('r', 'v')
       AND (c.relkind = 'r' OR w.what <> 'COPY' AND pg_relation_is_updatable(c.oid, false) <> 0);
GRANT SELECT ON writes TO all_data;
SELECT count(*) > 20 AS many, count(*) FILTER (WHERE relation::text ~ 'prepared_xacts') > 0 AS views FROM writes;
SET ROLE all_data;
SELECT relation, what, pg_temp.refused(statement) FROM writes WHERE pg_temp.refused(statement) <> 'refused' ORDER BY 1, 2;
SELECT c.oid::regclass AS readable FROM pg_class AS c
 WHERE c.relnamespace = 'onetrip'::regnamespace AND c.relkind = 'r' AND pg_temp.refused(format('SELECT * FROM %s', c.oid::regclass)) <> 'refused' ORDER BY 1;
INSERT INTO onetrip.subscription_definition VALUES ('x', 'postgres', '', '{}', true, '{}', '{}');
COPY onetrip.prepared TO STDOUT;
COPY onetrip.prepared FROM '/dev/null';
SELECT count(*) FILTER (WHERE pg_temp.refused(format('SELECT * FROM %s', c.reltoastrelid::regclass)) <> 'refused') AS toast, count(*) > 3 AS many
  FROM pg_class AS c WHERE c.relnamespace = 'onetrip'::regnamespace AND c.reltoastrelid <> 0;
SELECT count(*) >= 0 AS views_are_read FROM onetrip.prepared_xacts, onetrip.jobs;
RESET ROLE;
-- Nor does it lock them, by whatever view.
CREATE SCHEMA views AUTHORIZATION all_data;
SET ROLE all_data;
CREATE VIEW views.direct AS SELECT gid FROM onetrip.prepared;
CREATE VIEW views.hidden AS WITH p AS (SELECT 1 AS one WHERE EXISTS (SELECT FROM views.direct)) SELECT one FROM p;
SELECT m AS locked, count(*) > 10 AS many, count(*) FILTER (WHERE pg_temp.refused(format('LOCK TABLE %s IN %s MODE', c.oid::regclass, m)) <> 'refused') AS not_refused
  FROM unnest('{ROW SHARE,ROW EXCLUSIVE,SHARE UPDATE EXCLUSIVE,SHARE,SHARE ROW EXCLUSIVE,EXCLUSIVE,ACCESS EXCLUSIVE}'::text[]) AS m, pg_class AS c
 WHERE c.relnamespace IN ('onetrip'::regnamespace, 'views'::regnamespace) AND c.relkind IN ('r', 'v') GROUP BY m ORDER BY m;
BEGIN;
LOCK TABLE onetrip.prepared;
ROLLBACK;
BEGIN;
LOCK TABLE ONLY views.hidden IN ROW SHARE MODE;
ROLLBACK;
-- For these it needs to own the table, or MAINTAIN (PostgreSQL 17).
SELECT what FROM unnest('{TRUNCATE %s,REINDEX TABLE %s,CLUSTER %s USING prepared_pkey,COMMENT ON TABLE %s IS NULL,CREATE TRIGGER t BEFORE INSERT ON %s FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger(),CREATE RULE r AS ON INSERT TO %s DO NOTHING,CREATE STATISTICS views.s ON gid\, owner FROM %s,CREATE TABLE views.t (gid text REFERENCES %s),CREATE INDEX ON %s (gid),ALTER TABLE %s SET (fillfactor = 50),LOCK TABLE %s IN ACCESS SHARE MODE}'::text[]) AS what
 WHERE pg_temp.refused(format(what, 'onetrip.prepared')) <> 'refused';
RESET ROLE;
DROP SCHEMA views CASCADE;
SET ROLE monitors;
SELECT c.oid::regclass AS readable FROM pg_class AS c
 WHERE c.relnamespace = 'onetrip'::regnamespace AND c.relkind = 'r' AND pg_temp.refused(format('SELECT * FROM %s', c.oid::regclass)) <> 'refused' ORDER BY 1;
RESET ROLE;
-- What is in them is not in pg_stats either.  Here are all columns whose values are: names of what everybody can see, times, states.
BEGIN;
INSERT INTO onetrip.prepared SELECT g, 10, 'a', now(), g, '\x00' FROM generate_series(1, 2) AS g;
INSERT INTO onetrip.job_here SELECT g, 'CREATE INDEX', 'x', 1, 'a value', '23505' FROM generate_series(1, 2) AS g;
INSERT INTO onetrip.job_report SELECT 9, g, 'a', 't', 'CREATE INDEX', 'failed', 1, 'a value', now() FROM generate_series(1, 2) AS g;
INSERT INTO onetrip.subscription_definition SELECT g, 'o', 'password=x', '{p}', true, '{"password": "x"}', '{t}' FROM generate_series(1, 2) AS g;
INSERT INTO onetrip.subscription_position SELECT g, 0, 9, 'a', 0, '0/0' FROM generate_series(1, 2) AS g;
DO $$
DECLARE
    t regclass;
BEGIN
    FOR t IN SELECT oid::regclass FROM pg_class WHERE relnamespace = 'onetrip'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('ANALYZE %s', t);
    END LOOP;
END $$;
SET LOCAL ROLE all_data;
SELECT c.relname, string_agg(s.attname, ', ' ORDER BY a.attnum) AS shown
  FROM pg_class AS c
  JOIN pg_attribute AS a ON a.attrelid = c.oid
  LEFT JOIN pg_stats AS s ON s.schemaname = 'onetrip' AND s.tablename = c.relname AND s.attname = a.attname
 WHERE c.relnamespace = 'onetrip'::regnamespace AND c.relkind = 'r' AND NOT has_table_privilege('public', c.oid, 'SELECT')
 GROUP BY 1 ORDER BY 1;
ROLLBACK;
-- other tables are as they were
CREATE TABLE others (id int PRIMARY KEY);
SET ROLE all_data;
INSERT INTO others VALUES (1);
SELECT * FROM others;
BEGIN;
LOCK TABLE others;
ROLLBACK;
RESET ROLE;
DROP TABLE others;
DROP VIEW writes;
DROP ROLE all_data, monitors;
