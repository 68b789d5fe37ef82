# Goal: a statement that is committed inside its portal ends for other extensions as ever, in any order of
# shared_preload_libraries, and a client that does not finish its Sync cannot keep its session from being ended.
# Method: pg_stat_statements is loaded first and has to count each statement, also those that were run again.  The first byte of a
# Sync arrives with its Execute, and no more.
conf=$work/nodes/here/postgres/postgresql.conf
echo "shared_preload_libraries = 'pg_stat_statements, auto_explain, onetrip'" >>"$conf"
stop_node
start_node
query "CREATE EXTENSION pg_stat_statements SCHEMA public"
query "CREATE TABLE ended (id int PRIMARY KEY, v int); INSERT INTO ended VALUES (1, 0)"
said=$("$bin_dir/psql" -h 127.0.0.1 -p "$port" -U postgres -d onetrip -X -q -A -t -v ON_ERROR_STOP=1 2>&1 <<'SQL'
CREATE TEMPORARY SEQUENCE run;
CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('run') % 2 = 1 THEN
        RAISE EXCEPTION 'lost' USING ERRCODE = '40001';
    END IF;
    RETURN NEW;
END $$;
UPDATE ended SET v = v + 1;
UPDATE ended SET v = v + 1;
UPDATE ended SET v = v + 1 RETURNING v;
CREATE TRIGGER lose BEFORE UPDATE ON ended FOR EACH ROW EXECUTE FUNCTION lose();
UPDATE ended SET v = v + 1;
-- turned on by the statement itself
CREATE FUNCTION explain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('auto_explain.log_min_duration', '0', false);
    RETURN NULL;
END $$;
CREATE TRIGGER explain AFTER INSERT ON ended FOR EACH ROW EXECUTE FUNCTION explain();
INSERT INTO ended VALUES (2, 0);
INSERT INTO ended VALUES (3, 0);
SET auto_explain.log_min_duration = -1;
SELECT calls, rows, query FROM pg_stat_statements WHERE query LIKE 'UPDATE ended SET v = v%' ORDER BY query;
SQL
) || true
[ "$said" = '3
3|3|UPDATE ended SET v = v + $1
1|1|UPDATE ended SET v = v + $1 RETURNING v' ] || wrong="counted, with pg_stat_statements first: $said
"
grep -aq "Query Text: INSERT INTO ended VALUES (3, 0)" "$work/nodes/here/postgres.log" ||
    wrong="${wrong}auto_explain, loaded before onetrip, did not see a statement
"

half_sync='
use IO::Socket::INET;
my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $ARGV[0]) or die $!;
sub message { my ($type, $body) = @_; return $type . pack("N", length($body) + 4) . $body }
my $start = pack("N", 196608) . "user\0postgres\0database\0onetrip\0application_name\0half_sync\0\0";
syswrite($s, pack("N", length($start) + 4) . $start);
my $got = "";
while ($got !~ /Z\x00\x00\x00\x05I$/) { sysread($s, $got, 8192, length $got) or die "refused" }
syswrite($s, message("P", "\0UPDATE ended SET v = 7 WHERE id = 2\0\0\0") . message("B", "\0\0\0\0\0\0\0\0") .
    message("E", "\0\0\0\0\0") . "S");
1 while sysread($s, $got, 8192);
print "ended\n"'
query "DROP TRIGGER lose ON ended"
timeout 60 perl -e "$half_sync" "$port" >"$work/half_sync.log" 2>&1 &
half=$!
for _ in $(seq 200); do
    [ "$(query "SELECT v FROM ended WHERE id = 2")" = 7 ] && break
    sleep 0.05
done
[ "$(query "SELECT v FROM ended WHERE id = 2")" = 7 ] || wrong="${wrong}with half a Sync, nothing was committed
"
query "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'half_sync'" >/dev/null
wait "$half" || true
grep -q ended "$work/half_sync.log" || wrong="${wrong}with half a Sync, the session could not be ended: $(cat "$work/half_sync.log")
"
query "DROP TABLE ended; DROP FUNCTION lose(), explain(); DROP EXTENSION pg_stat_statements"
sed -i '$d' "$conf"
stop_node
start_node
