-- Goal: whoever gives an object another name takes the key of every stored value that names it.
-- Method: the keys of such a value beside those of statements that rename, each rolled back.
CREATE SCHEMA renamed;
SET search_path = renamed;
SET client_min_messages = error;
CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL, w int);
CREATE UNIQUE INDEX i ON t (v);
CREATE SEQUENCE s OWNED BY t.w;
CREATE TYPE pair AS (a int);
CREATE TABLE parted (id int, CONSTRAINT parted_unique UNIQUE (id)) PARTITION BY LIST (id);
CREATE SCHEMA renamed_too;
CREATE TABLE relations (r regclass);
CREATE TABLE types (t regtype);
-- Where the value is, the value, and whether the statement takes its key.
CREATE FUNCTION meets(place text, value text, change text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    named bigint[];
    taken bigint[];
BEGIN
    BEGIN
        EXECUTE format('INSERT INTO %s VALUES (%L)', place, value);
        named := ARRAY(SELECT hash FROM onetrip.pending_keys() WHERE mode = 'KEY SHARE');
        RAISE 'rolled back' USING ERRCODE = 'ROLL1';
    EXCEPTION WHEN SQLSTATE 'ROLL1' THEN NULL; END;
    BEGIN
        EXECUTE change;
        taken := ARRAY(SELECT hash FROM onetrip.pending_keys() WHERE mode = 'UPDATE');
        RAISE 'rolled back' USING ERRCODE = 'ROLL1';
    EXCEPTION WHEN SQLSTATE 'ROLL1' THEN NULL; END;
    RETURN named && taken;
END $$;
SELECT value, change, meets(place, value, change) FROM (VALUES
    ('relations', 'i', 'ALTER INDEX i RENAME TO other'),
    ('relations', 'i', 'ALTER TABLE t ADD CONSTRAINT c UNIQUE USING INDEX i'),
    ('relations', 'i', 'ALTER TABLE t DROP CONSTRAINT t_pkey, ADD CONSTRAINT c PRIMARY KEY USING INDEX i'),
    ('relations', 't_pkey', 'ALTER TABLE t RENAME CONSTRAINT t_pkey TO other'),
    ('relations', 'parted_unique', 'ALTER TABLE parted RENAME CONSTRAINT parted_unique TO other'),
    ('relations', 'i', 'ALTER TABLE t SET SCHEMA renamed_too'),
    ('relations', 's', 'ALTER TABLE t SET SCHEMA renamed_too'),
    ('types', 't', 'ALTER TABLE t RENAME TO other'),
    ('types', 't[]', 'ALTER TABLE t RENAME TO other'),
    ('types', 't[]', 'CREATE TYPE _t AS ENUM ()'),
    ('relations', 'pair', 'ALTER TYPE pair RENAME TO other'),
    ('types', 'pair[]', 'ALTER TYPE pair SET SCHEMA renamed_too'),
    -- And one that does not.
    ('relations', 'i', 'ALTER TABLE t ADD x int')) AS c (place, value, change);
DROP SCHEMA renamed, renamed_too CASCADE;
