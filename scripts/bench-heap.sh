#!/bin/bash
# What replication costs where there is no distance: pgbench's tpcb-like transactions and COPY of 1,000,000 rows, on a region
# that is alone and on a plain PostgreSQL of the same build.  What either has committed is on this machine's disk.  Both run
# all the time, and are measured in turn.
#
#   scripts/bench-heap.sh [FOLDER]     writes README.md and raw.tsv there; without FOLDER the tables go to standard output
#
#   ONETRIP=FILE               this onetrip command (default: target/release/onetrip)
#   ONETRIP_POSTGRES_BIN=DIR   PostgreSQL's programs, with the extension installed
#   ONETRIP_HEAP_DIR=DIR       servers and logs (default: /var/tmp/onetrip-heap), whose disk counts
#   ROUNDS=5 SECONDS_EACH=10 ROWS=1000000 SCALE=10
set -euo pipefail
shopt -s inherit_errexit # also in $(...)
cd "$(dirname "$0")/.."
bin=${ONETRIP_POSTGRES_BIN:-/usr/lib/postgresql/15/bin}
out=${1:+$(realpath -m "$1")}
work=$(realpath -m "${ONETRIP_HEAP_DIR:-/var/tmp/onetrip-heap}")
rounds=${ROUNDS:-5} each=${SECONDS_EACH:-10} rows=${ROWS:-1000000} scale=${SCALE:-10}
database=bench
init_options=()
# Nothing in the background falls into one measurement and not into the other.
server_settings="autovacuum = off
checkpoint_timeout = '1h'
max_wal_size = '8GB'"
# shellcheck source=scripts/two-systems.sh
source scripts/two-systems.sh
# shellcheck disable=SC2034
regions=(a)

# A COMMIT whose log is slow to sync counts with the time that it takes; heap knows no limit either.
export PGOPTIONS="-c onetrip.commit_timeout=10min"

rm -rf "$work"
mkdir -p "$work"
chmod 755 "$work"
cp "${ONETRIP:-${CARGO_TARGET_DIR:-target}/release/onetrip}" "$work/onetrip"
start_plain "$work"
heap=${ports[0]}
start_cluster "$work"
onetrip=${ports[0]}
declare -A port=([heap]=$heap [onetrip]=$onetrip)

# What stands for a commit's durability must be the same.
[ "$(query "$heap" -c 'SHOW fsync') $(query "$heap" -c 'SHOW synchronous_commit')" = "on on" ] || fail "heap does not sync"
[ "$(query "$onetrip" -c 'SHOW fsync')" = on ] || fail "the region's server does not sync"

"$bin/psql" -h 127.0.0.1 -p "$heap" -U postgres -d $database -X -q -c "COPY (SELECT i, i % 1000, md5(i::text),
    timestamptz '2026-01-01 00:00Z' + i * interval '1 s' FROM generate_series(1, $rows) i) TO STDOUT" >"$work/rows"
for system in heap onetrip; do
    "$bin/pgbench" -i -q -s "$scale" -h 127.0.0.1 -p "${port[$system]}" -U postgres $database >"$work/init-$system.log" 2>&1 ||
        { tail "$work/init-$system.log" >&2; fail "pgbench -i failed"; }
    query "${port[$system]}" -c 'CREATE TABLE copied (id bigint PRIMARY KEY, n int, t text, at timestamptz)'
done

# The transactions in each second, of $2 clients.
tpcb() {
    query "${port[$1]}" -c CHECKPOINT
    "$bin/pgbench" -n -T "$each" -c "$2" -j "$2" -h 127.0.0.1 -p "${port[$1]}" -U postgres $database 2>"$work/pgbench.log" |
        sed -n 's/^tps = \([0-9.]*\).*/\1/p'
}
# The rows in each second of one COPY.
copy() {
    query "${port[$1]}" -c 'TRUNCATE copied' -c CHECKPOINT
    local began ended
    began=$(date +%s.%N)
    query "${port[$1]}" -c "\\copy copied FROM '$work/rows'"
    ended=$(date +%s.%N)
    [ "$(query "${port[$1]}" -c 'SELECT count(*) FROM copied')" = "$rows" ] || fail "COPY on $1 lost rows"
    awk "BEGIN {print $rows / ($ended - $began)}"
}

printf 'round\twhat\tsystem\tper_second\n' >"$work/raw.tsv"
# Round 0 fills caches, and is not counted.
for round in $(seq 0 "$rounds"); do
    for what in "tpcb 1" "tpcb 4" "tpcb 16" copy; do
        # Who comes first alternates.
        systems=(heap onetrip)
        [ $((round % 2)) = 0 ] || systems=(onetrip heap)
        for system in "${systems[@]}"; do
            read -ra call <<<"$what"
            seen=$("${call[0]}" "$system" "${call[@]:1}")
            [ -n "$seen" ] || { cat "$work/pgbench.log" >&2; fail "$what on $system gave nothing"; }
            [ "$round" = 0 ] || printf '%s\t%s\t%s\t%s\n' "$round" "$what" "$system" "$seen" >>"$work/raw.tsv"
        done
    done
    say "round $round of $rounds"
done
[ "$(query "$onetrip" -c 'SELECT count(*) FROM copied')" = "$rows" ] || fail "rows are missing"
# Syncs in each second, the floor of one client.
"$bin/pg_test_fsync" -s 2 -f "$work/fsync" 2>/dev/null | awk '/fdatasync .*ops/ {print int($2); exit}' >"$work/syncs" || true
stop_all

table() {
    printf '| | heap | onetrip | × heap | least, greatest ratio |\n|---|---|---|---|---|\n'
    for what in "tpcb 1" "tpcb 4" "tpcb 16" copy; do
        case $what in
        copy) name="COPY of $rows rows, rows/s" ;;
        *) name="tpcb-like, ${what#tpcb } client$([ "$what" = "tpcb 1" ] || echo s), transactions/s" ;;
        esac
        awk -F '\t' -v what="$what" -v name="$name" '
            function median(list, n,   i, j, t) {
                for (i = 2; i <= n; i++)
                    for (j = i; j > 1 && list[j - 1] > list[j]; j--) {t = list[j]; list[j] = list[j - 1]; list[j - 1] = t}
                return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
            }
            $2 == what {seen[$3, $1] = $4; if ($1 > n) n = $1}
            END {
                for (i = 1; i <= n; i++) {
                    h[i] = seen["heap", i]; o[i] = seen["onetrip", i]; r[i] = o[i] / h[i]
                }
                middle = median(r, n)
                printf "| %s | %.0f | %.0f | %.2f | %.2f, %.2f |\n", name, median(h, n), median(o, n), middle, r[1], r[n]
            }' "$work/raw.tsv"
    done
}
if [ -z "$out" ]; then
    table
    exit
fi
mkdir -p "$out"
cp "$work/raw.tsv" "$out/raw.tsv"
cat >"$out/README.md" <<END
# What replication costs without distance

**Question.** How many transactions of pgbench (tpcb-like), and rows of a COPY, does one region get
through in a second that has no other region to wait for, compared with plain heap tables on a
PostgreSQL of the same build?

**Set-up.** One machine, $(nproc) cores ($(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)), kernel
$(uname -r); $("$bin/postgres" --version);
commit $(git rev-parse --short HEAD). The disk syncs $(cat "$work/syncs") times a second (pg_test_fsync, fdatasync).
Load averages at the end: $(cut -d ' ' -f 1-3 /proc/loadavg).
A cluster of one member, and a plain server beside it, with the same settings (shared_buffers,
no autovacuum, no timed checkpoints, \`fsync = on\`). What is committed is on disk in both: the plain
server syncs its WAL (\`synchronous_commit = on\`), the node its log. Scale $scale, $each s for each
measurement, $rounds rounds after one that is not counted. Within a round the two are measured one
after the other, in alternating order; each figure is in [raw.tsv](raw.tsv). COPY is one transaction
of psql's \`\\copy\` into a table of bigint (primary key), int, text of 32 bytes, timestamptz.
\`scripts/bench-heap.sh\` repeats it.

Medians; each ratio is of one round, so their median is not the ratio of the medians:

$(table)
END
say "written: $out"
