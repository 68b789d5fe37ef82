-- PostgreSQL 15 leaves ErrorContext as the current context after xml_is_well_formed() of a text that is not.  What the
-- statement allocates after the default of a new column was computed must not be in it: the next error that is caught
-- would free it.
CREATE FUNCTION where_is_it() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE NOTICE '% in ErrorContext: %', tg_event, EXISTS (SELECT FROM pg_backend_memory_contexts WHERE parent = 'ErrorContext' AND level = 2);
    PERFORM 1 / 0;
EXCEPTION WHEN division_by_zero THEN NULL; END $$;
CREATE EVENT TRIGGER context_end ON ddl_command_end EXECUTE FUNCTION where_is_it();
CREATE SCHEMA error_context;
SET search_path = error_context;
CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t VALUES (1);
ALTER TABLE t ADD COLUMN w boolean DEFAULT xml_is_well_formed_content('<a>' || current_date);
CREATE TABLE parent (id int) PARTITION BY LIST (id);
CREATE TABLE child_1 PARTITION OF parent FOR VALUES IN (1);
CREATE TABLE child_2 PARTITION OF parent FOR VALUES IN (2);
CREATE TABLE child_3 PARTITION OF parent FOR VALUES IN (3);
ALTER TABLE parent ADD COLUMN w boolean DEFAULT xml_is_well_formed_content('<a>' || current_date),
    ADD COLUMN x boolean DEFAULT xml_is_well_formed_content('<b>' || current_date);
CREATE VIEW v AS SELECT * FROM t;
SELECT * FROM t;
SELECT count(*) FROM pg_backend_memory_contexts WHERE parent = 'ErrorContext' AND level = 2;
DROP EVENT TRIGGER context_end;
DROP SCHEMA error_context CASCADE;
DROP FUNCTION public.where_is_it();
