-- Goal: an answer of the node that cannot be read ends the connection, not the statement: it is asked again on another one.
-- Method: a stand-in cuts one frame of each type off.
CREATE SCHEMA unreadable_answers;
SET search_path = unreadable_answers;
CREATE TABLE t (id int PRIMARY KEY, v int);
SELECT current_setting('onetrip.agent_socket') AS socket \gset
\setenv SOCKET :socket
\set dir `mktemp -d /tmp/onetrip-damaged.XXXXXX`
\setenv DIR :dir
\! chmod 777 $DIR; umask 0; touch $DIR/asked; echo 'echo 1' >$DIR/answer
\! perl "$(dirname "$ONETRIP_GOLDEN")/../extension/test/stand_in.pl" $DIR $SOCKET >$DIR/log 2>&1 & for i in $(seq 200); do [ -S $DIR/node.sock ] && break; sleep 0.05; done
SELECT unit.use_socket(:'dir' || '/node.sock');
SET onetrip.commit_timeout = '10s';
\set damage '\\! umask 0; echo $TYPE >$DIR/damaged'
\set damaged '\\! [ -e $DIR/damaged ] && echo "nothing was damaged"; rm -f $DIR/damaged'

-- VERDICT
\setenv TYPE 82
:damage
INSERT INTO t VALUES (1, 0);
:damaged
SELECT transaction_id AS txn FROM onetrip.last_commit() \gset
-- OUTCOME_IS
\setenv TYPE 83
:damage
SELECT onetrip.outcome(:'txn') LIKE 'committed at %' AS told;
:damaged
-- REHEARSED
\setenv TYPE 85
:damage
ALTER TABLE t ADD w int;
:damaged
-- READ_AT
\setenv TYPE 86
SET onetrip.read = fresh;
:damage
SELECT * FROM t;
:damaged
RESET onetrip.read;
-- SHOWN
\setenv TYPE 87
SET onetrip.ack = applied_everywhere;
:damage
INSERT INTO t VALUES (2, 0);
:damaged
RESET onetrip.ack;
-- SEEN
\setenv TYPE 88
:damage
SELECT onetrip.cluster() IS NOT NULL AS seen;
:damaged
-- LOCKED
\setenv TYPE 89
SET onetrip.concurrency = locking;
:damage
UPDATE t SET v = 1 WHERE id = 1;
:damaged
RESET onetrip.concurrency;

SELECT * FROM t ORDER BY id;
SELECT unit.use_socket(NULL);
\! rm -r $DIR
SET client_min_messages = warning;
DROP SCHEMA unreadable_answers CASCADE;
