# Goal: a transaction that changed replicated rows and what this server alone has is not torn by a crash, whatever
#       synchronous_commit says.
# Method: it commits with synchronous_commit = off, nothing else flushes WAL, and the server is killed at once; the log
#         brings its replicated rows back, so a local row, a message of logical decoding and a row of a catalog must be there.
query "CREATE TABLE mixed_ours (id serial PRIMARY KEY, by text); CREATE TABLE mixed_own (id int) USING heap"
query "ALTER SYSTEM SET wal_writer_delay = '10s'"
query "SELECT pg_reload_conf()" >/dev/null
query "SELECT pg_sleep(0.5)" >/dev/null

# crash_after STATEMENT
crash_after() {
    local rows=
    segment=$(query "CHECKPOINT; SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
    postmaster=$(head -n 1 "$work/nodes/here/postgres/postmaster.pid")
    query "SET synchronous_commit = off; BEGIN; INSERT INTO mixed_ours (by) VALUES (\$\$$1\$\$); $1; COMMIT" >/dev/null
    kill -KILL "$postmaster"
    for _ in $(seq $((READY_SECONDS * 5))); do
        rows=$(query "SELECT count(*) FROM mixed_ours WHERE by = \$\$$1\$\$" 2>/dev/null) && break
        sleep 0.2
    done
    [ "$rows" = 1 ] || wrong="${wrong}replicated rows after $1 and the crash: ${rows:-none can be read}
"
}

# expect_one WHAT COUNT
expect_one() {
    [ "$2" = 1 ] || wrong="${wrong}after the crash there is no $1
"
}

crash_after "INSERT INTO mixed_own VALUES (1)"
expect_one "row of the local table" "$(query "SELECT count(*) FROM mixed_own")"
crash_after "SELECT pg_logical_emit_message(true, 'mixed', 'x')"
expect_one "message" "$("$bin_dir/pg_waldump" -p "$work/nodes/here/postgres/pg_wal" -r LogicalMessage "$segment" 2>/dev/null |
    grep -c 'prefix "mixed"')"
crash_after "SELECT pg_replication_origin_create('mixed')"
expect_one "replication origin" "$(query "SELECT count(*) FROM pg_replication_origin WHERE roname = 'mixed'")"

query "SELECT pg_replication_origin_drop('mixed') WHERE EXISTS (SELECT FROM pg_replication_origin WHERE roname = 'mixed')" >/dev/null
query "ALTER SYSTEM RESET wal_writer_delay"
query "SELECT pg_reload_conf()" >/dev/null
query "SET client_min_messages = warning; DROP TABLE mixed_ours; DROP TABLE mixed_own"
