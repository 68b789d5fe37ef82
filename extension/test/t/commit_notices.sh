# Goal: onetrip.commit_notices tells the client of each COMMIT what it has cost, and nobody else of anything.
# Method: psql's messages, with the numbers taken out of them.
query "CREATE TABLE noticed (id int PRIMARY KEY)"
noticed() {
    "$bin_dir/psql" -h 127.0.0.1 -p "$port" -U postgres -X -q -d onetrip -v ON_ERROR_STOP=1 -c "SET onetrip.commit_notices = on" "$@" 2>&1 |
        sed -E 's/[0-9]+\.[0-9]+ ms/- ms/g; s/entry [0-9]+/entry -/; s/on disk in .*\.$/on disk in -./'
}
line="NOTICE:  entry - is committed, with 1 round trip, in - ms"
parts="DETAIL:  Prepare - ms, verdict - ms (propose - ms, replicate - ms, certify - ms), turn - ms, local commit - ms; on disk in -."
twice=$(noticed -c "INSERT INTO noticed VALUES (1)" -c "BEGIN" -c "DELETE FROM noticed" -c "COMMIT")
[ "$twice" = "$line
$parts
$line
$parts" ] || wrong="two transactions: $twice
"
short=$(noticed -v VERBOSITY=terse -c "INSERT INTO noticed VALUES (1)")
[ "$short" = "$line" ] || wrong="${wrong}with VERBOSITY terse: $short
"
none=$(noticed -c "BEGIN" -c "INSERT INTO noticed VALUES (2)" -c "ROLLBACK" -c "DELETE FROM noticed WHERE false" \
    -c "SET onetrip.commit_notices = off" -c "INSERT INTO noticed VALUES (3)")
[ -z "$none" ] || wrong="${wrong}without a COMMIT of a change, or turned off: $none
"
ddl=$(noticed -v VERBOSITY=terse -c "DROP TABLE noticed")
[ "$ddl" = "${line/1 round trip,/2 round trips,}" ] || [ "$ddl" = "$line" ] || wrong="${wrong}DDL: $ddl
"
