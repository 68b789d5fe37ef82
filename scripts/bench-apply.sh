#!/bin/bash
# CPU that it takes to apply new rows of another region, with two builds of the extension in turn: the same write sets, in a
# session that does what the apply worker does and then rolls back.
#
#   scripts/bench-apply.sh BEFORE_BIN AFTER_BIN >raw.tsv     folders of PostgreSQL's programs, each with its extension installed
#
#   ONETRIP=FILE              this onetrip command (default: target/release/onetrip)
#   UNIT=FILE                 onetrip_unit.so (default: where `make -C extension check-all` builds it)
#   ONETRIP_APPLY_DIR=DIR     servers and logs (default: /var/tmp/onetrip-apply)
#   ROUNDS=10
set -euo pipefail
shopt -s inherit_errexit # also in $(...)
[ $# = 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
work=$(realpath -m "${ONETRIP_APPLY_DIR:-/var/tmp/onetrip-apply}")
rounds=${ROUNDS:-10}
# shellcheck disable=SC2034
database=bench init_options=()
# shellcheck disable=SC2034
server_settings="autovacuum = off
checkpoint_timeout = '1h'
max_wal_size = '8GB'"
# shellcheck source=scripts/two-systems.sh
source scripts/two-systems.sh
# shellcheck disable=SC2034
regions=(a)

rm -rf "$work"
mkdir -p "$work"
chmod 755 "$work"
cp "${UNIT:-extension/test/unit/onetrip_unit.so}" "$work/unit.so"
chmod 755 "$work/unit.so"
declare -A port
# shellcheck disable=SC2034
for system in before after; do
    bin=$1
    shift
    mkdir "$work/$system"
    chmod 755 "$work/$system"
    cp "${ONETRIP:-${CARGO_TARGET_DIR:-target}/release/onetrip}" "$work/$system/onetrip"
    start_cluster "$work/$system"
    port[$system]=${ports[0]}
    query "${port[$system]}" <<END
CREATE SCHEMA unit;
CREATE FUNCTION unit.write_set() RETURNS bytea LANGUAGE c STRICT AS '$work/unit.so', 'unit_write_set';
CREATE FUNCTION unit.apply(operations bytea) RETURNS void LANGUAGE c STRICT AS '$work/unit.so', 'unit_apply';
CREATE TABLE plain (n int, t text, at timestamptz);
CREATE TABLE key (id bigint PRIMARY KEY, n int, t text, at timestamptz);
CREATE TABLE keys (id bigint PRIMARY KEY, n int, t text, at timestamptz, u text UNIQUE);
CREATE INDEX ON keys (n);
CREATE INDEX ON keys (at);
END
done

# What is measured: table, rows in each write set, how often it is applied.  A table with a key takes a row once.
cases=("plain 1 20000" "plain 8 2500" "plain 20 1000" "plain 20000 1" "key 20000 1" "keys 20000 1")
row="i % 1000, md5(i::text), timestamptz '2026-01-01 00:00Z' + i * interval '1 s'"
declare -A columns=([plain]=$row [key]="i, $row" [keys]="i, $row, 'u' || i")

# µs of user and system time for each row.
apply() {
    local system=$1 table=$2 rows=$3 times=$4
    query "${port[$system]}" <<END | awk -v rows=$((rows * times)) 'NR == 1 {began = $1} NR > 1 && /^[0-9]+$/ {ended = $1}
        END {printf "%.3f\n", (ended - began) / rows / 1000}'
SELECT pg_backend_pid() AS pid \gset
\setenv SESSION :pid
BEGIN;
INSERT INTO $table SELECT ${columns[$table]} FROM generate_series(1, $rows) i;
SELECT unit.write_set() AS rows \gset
ROLLBACK;
CREATE TEMPORARY TABLE entry USING heap AS SELECT :'rows'::bytea AS rows;
BEGIN;
TRUNCATE $table;
\! cut -d ' ' -f 1 /proc/\$SESSION/schedstat
SELECT count(unit.apply(rows)) AS applied FROM entry, generate_series(1, $times) \gset
\! cut -d ' ' -f 1 /proc/\$SESSION/schedstat
ROLLBACK;
END
}

printf 'round\ttable\trows\tsystem\tcpu_us\n'
# Round 0 fills caches, and is not counted.
for round in $(seq 0 "$rounds"); do
    for case in "${cases[@]}"; do
        read -r table rows times <<<"$case"
        # Who comes first alternates.
        systems=(before after)
        [ $((round % 2)) = 0 ] || systems=(after before)
        for system in "${systems[@]}"; do
            seen=$(apply "$system" "$table" "$rows" "$times")
            [ "$round" = 0 ] || printf '%s\t%s\t%s\t%s\t%s\n' "$round" "$table" "$rows" "$system" "$seen"
        done
    done
    say "round $round of $rounds" >&2
done
stop_all
