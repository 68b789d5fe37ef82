-- Goal: with the node of an earlier release, which does not say how long the parts of a verdict took, COMMIT works and they are not known.
-- Method: a stand-in takes what the session says of itself in HELLO out of it, so that the node answers as the earlier one does.
CREATE SCHEMA old_node;
SET search_path = old_node;
CREATE TABLE t (id int PRIMARY KEY);
SELECT current_setting('onetrip.agent_socket') AS socket \gset
\setenv SOCKET :socket
\set dir `mktemp -d /tmp/onetrip-old.XXXXXX`
\setenv DIR :dir
\! chmod 777 $DIR; umask 0; touch $DIR/asked $DIR/old; echo true >$DIR/answer
\! perl "$(dirname "$ONETRIP_GOLDEN")/../extension/test/stand_in.pl" $DIR $SOCKET >$DIR/log 2>&1 & for i in $(seq 200); do [ -S $DIR/node.sock ] && break; sleep 0.05; done
\set parts 'SELECT entry = onetrip.position() AS own, verdict_ms > 0 AS verdict, propose_ms > 0 AS propose, replicate_ms > 0 AS replicate, certify_ms >= 0 AS certify FROM onetrip.last_commit()'
\set counted 'SELECT sum(count) FILTER (WHERE part = ''verdict'') - sum(count) FILTER (WHERE part = ''certify'') AS n FROM onetrip.commits'
:counted \gset before_
SELECT unit.use_socket(:'dir' || '/node.sock');
INSERT INTO t VALUES (1);
:parts;
INSERT INTO t VALUES (2);
:parts;
SELECT now.n - :before_n AS without_parts FROM (:counted) now;
-- The same session, once its node is a newer one.
SELECT unit.use_socket(NULL);
\! rm -r $DIR
INSERT INTO t VALUES (3);
:parts;
SELECT now.n - :before_n AS without_parts FROM (:counted) now;
SET client_min_messages = warning;
DROP SCHEMA old_node CASCADE;
