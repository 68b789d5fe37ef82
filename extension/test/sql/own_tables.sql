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
SET ROLE monitors;
SELECT c.oid::regclass AS readable FROM pg_class AS c
 WHERE c.relnamespace = 'onetrip'::regnamespace AND c.relkind = 'r' AND pg_temp.refused(format('SELECT * FROM %s', c.oid::regclass)) <> 'refused' ORDER BY 1;
RESET ROLE;
-- other tables are as they were
CREATE TABLE others (id int PRIMARY KEY);
SET ROLE all_data;
INSERT INTO others VALUES (1);
SELECT * FROM others;
RESET ROLE;
DROP TABLE others;
DROP VIEW writes;
DROP ROLE all_data, monitors;
