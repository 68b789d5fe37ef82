-- Goal: with onetrip.ack = applied_everywhere COMMIT says which regions may not show the change; and it succeeds, as it has, also
--       where its client cannot be told that, or what it has cost.
-- Method: a stand-in for the node answers AWAIT; sending a message fails, as for a word that the client's encoding lacks.
CREATE TABLE everywhere (id int PRIMARY KEY);
SELECT current_setting('onetrip.agent_socket') AS socket \gset
\setenv SOCKET :socket
\set dir `mktemp -d /tmp/onetrip-everywhere.XXXXXX`
\setenv DIR :dir
\! chmod 777 $DIR; umask 0; echo 'there (it is far away)' >$DIR/missing
\! perl "$(dirname "$ONETRIP_GOLDEN")/../extension/test/stand_in.pl" $DIR $SOCKET >$DIR/log 2>&1 & for i in $(seq 200); do [ -S $DIR/node.sock ] && break; sleep 0.05; done
SELECT unit.use_socket(:'dir' || '/node.sock');
SELECT pg_backend_pid() AS pid \gset
SET onetrip.ack = applied_everywhere;
INSERT INTO everywhere VALUES (1);
SET log_min_messages = notice;
SELECT unit.refuse_messages(true);
INSERT INTO everywhere VALUES (2);
\! rm $DIR/missing
SET onetrip.commit_notices = on;
INSERT INTO everywhere VALUES (3);
RESET onetrip.commit_notices;
-- What is not committed yet fails by it.
DO $$ BEGIN RAISE NOTICE 'refused'; END $$;
SELECT unit.refuse_messages(false);
SELECT id FROM everywhere ORDER BY id;
SELECT pg_backend_pid() = :pid AS same_session;
SELECT unit.use_socket(NULL);
\! rm -r $DIR
DROP TABLE everywhere;
