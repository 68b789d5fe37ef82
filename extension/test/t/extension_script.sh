# Goal: the script of an extension means the same in every region: its triggers fire, whatever table they are of, SESSION_USER
# is who had logged in, and what would differ is refused.
# Method: an extension of our own; what CREATE EXTENSION has captured is applied by a session as the apply worker does it.
extensions=$("$PG_CONFIG" --sharedir)/extension
if [ -w "$extensions" ]; then
    cat >"$extensions/onetrip_scripted.control" <<'END_OF_FILE'
default_version = '1'
END_OF_FILE
    cat >"$extensions/onetrip_scripted--1.sql" <<'END_OF_FILE'
CREATE TABLE travels (id int PRIMARY KEY, filled text NOT NULL);
CREATE TABLE stays (id int PRIMARY KEY, filled text NOT NULL) USING heap;
CREATE TABLE noted (what text) USING heap;
CREATE FUNCTION fills() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.filled := 'by the trigger'; RETURN NEW; END $$;
CREATE FUNCTION notes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO noted VALUES (NEW.id); RETURN NEW; END $$;
CREATE TRIGGER fills BEFORE INSERT ON travels FOR EACH ROW EXECUTE FUNCTION fills();
CREATE TRIGGER fills BEFORE INSERT ON stays FOR EACH ROW EXECUTE FUNCTION fills();
CREATE CONSTRAINT TRIGGER notes AFTER INSERT ON travels DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION notes();
CREATE RULE also AS ON INSERT TO stays DO ALSO INSERT INTO noted VALUES ('by the rule');
INSERT INTO travels (id) VALUES (1);
INSERT INTO stays (id) VALUES (2);
CREATE TABLE kinds (id int PRIMARY KEY);
CREATE TABLE things (id int PRIMARY KEY, kind int REFERENCES kinds ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED);
INSERT INTO things VALUES (1, 1), (2, 2);
INSERT INTO kinds VALUES (1), (2);
DELETE FROM kinds WHERE id = 2;
GRANT SELECT ON travels TO SESSION_USER;
END_OF_FILE
    cat >"$extensions/onetrip_scripted--1--2.sql" <<'END_OF_FILE'
CREATE TABLE local_config (r regclass) USING heap;
CREATE INDEX ON local_config ((r::oid));
CREATE TEMP TABLE temporary_config (r regclass) PARTITION BY LIST ((r::oid));
DROP TABLE temporary_config;
END_OF_FILE
    cat >"$extensions/onetrip_scripted--2--3.sql" <<'END_OF_FILE'
CREATE TABLE config (r regclass);
CREATE INDEX ON config ((r::oid));
END_OF_FILE
    cat >"$extensions/onetrip_scripted--2--4.sql" <<'END_OF_FILE'
CREATE TABLE parted_config (r regclass) PARTITION BY LIST ((r::oid));
END_OF_FILE
    cat >"$extensions/onetrip_scripted--2--5.sql" <<'END_OF_FILE'
CREATE ROLE scripted_service PASSWORD 'md5d41d8cd98f00b204e9800998ecf8427e';
ALTER ROLE scripted_service PASSWORD NULL;
DO $$ BEGIN ALTER ROLE scripted_service PASSWORD 'clear'; END $$;
END_OF_FILE
    cat >"$extensions/onetrip_scripted--2--6.sql" <<'END_OF_FILE'
CREATE TABLE dealt (t timestamptz) PARTITION BY RANGE (t);
CREATE TABLE dealt_1 PARTITION OF dealt FOR VALUES FROM (MINVALUE) TO (now() - '1 day'::interval);
CREATE TEMP TABLE temporary_dealt (t timestamptz) PARTITION BY RANGE (t);
CREATE TEMP TABLE temporary_dealt_1 PARTITION OF temporary_dealt FOR VALUES FROM (MINVALUE) TO (clock_timestamp());
CREATE TABLE dealt_2 (t timestamptz);
ALTER TABLE dealt ATTACH PARTITION dealt_2 FOR VALUES FROM (now()) TO (clock_timestamp());
END_OF_FILE
    cat >"$extensions/onetrip_scripted--2--7.sql" <<'END_OF_FILE'
CREATE ACCESS METHOD scripted_method TYPE TABLE HANDLER heap_tableam_handler;
CREATE ACCESS METHOD scripted_too TYPE TABLE HANDLER onetrip.access_method_handler;
END_OF_FILE
    scripted=$("$bin_dir/psql" -h 127.0.0.1 -p "$port" -U postgres -d onetrip -X -q -A -t -v VERBOSITY=terse 2>&1 <<'END_OF_SESSION'
CREATE ROLE scripted_login SUPERUSER;
CREATE ROLE scripted_role SUPERUSER;
SET SESSION AUTHORIZATION scripted_login;
SET ROLE scripted_role;
BEGIN;
CREATE EXTENSION onetrip_scripted;
SELECT unit.write_set() AS write_set \gset
ROLLBACK;
RESET SESSION AUTHORIZATION;
BEGIN;
SELECT unit.apply(:'write_set');
SET CONSTRAINTS ALL IMMEDIATE;
SELECT * FROM travels UNION ALL SELECT * FROM stays;
SELECT * FROM things;
SELECT what FROM noted ORDER BY what;
SELECT grantee::regrole, privilege_type FROM pg_class, aclexplode(relacl) WHERE oid = 'travels'::regclass AND grantee <> relowner;
SELECT current_user = session_user;
ROLLBACK;
BEGIN;
CREATE EXTENSION onetrip_scripted;
ALTER EXTENSION onetrip_scripted UPDATE TO '2';
SAVEPOINT two;
ALTER EXTENSION onetrip_scripted UPDATE TO '3';
ROLLBACK TO two;
ALTER EXTENSION onetrip_scripted UPDATE TO '4';
ROLLBACK TO two;
ALTER EXTENSION onetrip_scripted UPDATE TO '5';
ROLLBACK TO two;
ALTER EXTENSION onetrip_scripted UPDATE TO '6';
ROLLBACK TO two;
ALTER EXTENSION onetrip_scripted UPDATE TO '7';
ROLLBACK;
DROP ROLE scripted_login, scripted_role;
END_OF_SESSION
) || true
    rm "$extensions"/onetrip_scripted*
    expected="
1|by the trigger
2|by the trigger
1|1
1
by the rule
scripted_login|SELECT
t
ERROR:  cannot replicate an index of values that may differ between regions
ERROR:  cannot replicate a partition key that may differ between regions
ERROR:  cannot replicate a password in the script of an extension
ERROR:  cannot replicate a partition's bound that may differ between regions
ERROR:  cannot replicate another access method with the handler of onetrip"
    [ "$scripted" = "$expected" ] || wrong="${wrong}the session said: $scripted"
else
    # shellcheck disable=SC2034
    unchecked="nobody but root may put an extension into $extensions"
fi
