# Goal: with PostgreSQL's own prepared transactions switched on, an identifier names one transaction.
# Method: one is prepared in the cluster and one by PostgreSQL, in either order, under the same identifier.
echo "max_prepared_transactions = 5" >>"$work/nodes/here/postgres/postgresql.conf"
stop_node
start_node
query "CREATE TABLE prepared_ours (id int PRIMARY KEY); CREATE TABLE prepared_own (id int) USING heap"
said=$("$bin_dir/psql" -h 127.0.0.1 -p "$port" -U postgres -d onetrip -X -q -A -t 2>&1 <<'SQL'
\set VERBOSITY terse
BEGIN; INSERT INTO prepared_ours VALUES (1); PREPARE TRANSACTION 'x';
BEGIN; INSERT INTO prepared_own VALUES (1); PREPARE TRANSACTION 'x';
BEGIN; INSERT INTO prepared_own VALUES (2); PREPARE TRANSACTION 'y';
BEGIN; INSERT INTO prepared_ours VALUES (2); PREPARE TRANSACTION 'y';
BEGIN; PREPARE TRANSACTION 'z';
SELECT gid FROM pg_prepared_xacts ORDER BY gid;
SELECT gid FROM onetrip.prepared_xacts;
COMMIT PREPARED 'x';
COMMIT PREPARED 'y';
ROLLBACK PREPARED 'z';
SELECT (SELECT string_agg(id::text, ' ') FROM prepared_ours), (SELECT string_agg(id::text, ' ') FROM prepared_own);
SQL
) || true
[ "$said" = 'ERROR:  transaction identifier "x" is already in use
ERROR:  transaction identifier "y" is already in use
x
y
z
x
1|2' ] || wrong="${wrong}it said: $said
"
# The values that one has drawn which PostgreSQL prepares are given to nobody else, even if this server is lost.  Those of a
# sequence with too few values for all regions need an entry.  Who only looks at one afterwards needs none.
query "CREATE SEQUENCE prepared_drawn; CREATE SEQUENCE prepared_few MAXVALUE 5; INSERT INTO prepared_ours VALUES (10)"
said=$("$bin_dir/psql" -h 127.0.0.1 -p "$port" -U postgres -d onetrip -X -q -A -t 2>&1 <<'SQL'
\set VERBOSITY terse
SELECT count(*) FROM unit.used_sequences();
SELECT nextval('prepared_few');
SELECT proposals FROM onetrip.status \gset before_
BEGIN; INSERT INTO prepared_own SELECT nextval('prepared_drawn'); PREPARE TRANSACTION 'drew';
SELECT currval('prepared_few');
SELECT proposals - :before_proposals FROM onetrip.status;
SELECT u FROM unit.used_sequences() u;
COMMIT PREPARED 'drew';
BEGIN; SELECT nextval('prepared_few'); PREPARE TRANSACTION 'few';
SELECT gid FROM onetrip.prepared_xacts;
ROLLBACK PREPARED 'few';
BEGIN; INSERT INTO prepared_own SELECT nextval('prepared_few'); PREPARE TRANSACTION 'few';
SQL
) || true
[ "$said" = '0
1
1
0
prepared_drawn
2
few
ERROR:  cannot PREPARE a transaction that has used onetrip tables and written table "public.prepared_own", which is not replicated' ] || wrong="${wrong}after a draw it said: $said
"
query "SET lock_timeout = '5s'; DROP TABLE prepared_ours, prepared_own; DROP SEQUENCE prepared_drawn, prepared_few"
sed -i '$d' "$work/nodes/here/postgres/postgresql.conf"
stop_node
start_node
