#!/bin/bash
# Measures how long a client is without a server when the region that it is connected to fails, with the programs of
# docs/clients, HAProxy and pgbouncer as docs/clients.md has them; writes README.md and raw.tsv.
#
#   scripts/bench-clients.sh TARGET_FOLDER FOLDER_OF_THE_PAGE [rounds]
#
# What it needs beyond `make setup` is installed by `scripts/setup.sh clients`.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
name=bench-clients
target=$1
out=$2
rounds=${3:-5}
# How long a client may be without a server in seconds, before it is given up.
PATIENCE=40
init=()
# shellcheck source=scripts/clients.sh
. scripts/clients.sh
mkdir -p "$out"
build_programs
start_regions
start_pools near middle far

# Each set-up: where the program connects, and its language.
setups=("0 python" "0 go" "0 java" "0 javascript" "0 rust" "haproxy python" "sessions python" "transactions python")
labels=("psycopg (libpq)" "pgx" "pgJDBC, socketTimeout=15" "node-postgres, query_timeout of 15 s" "tokio-postgres" "psycopg, HAProxy"
    "psycopg, pgbouncer (sessions), HAProxy" "psycopg, pgbouncer (transactions), HAProxy")

# All is well, the region $1 leads, and what stands before the regions has found the nearest one again.
settle() {
    local region
    for region in "${regions[@]}"; do
        wait_for "$region"
    done
    "$work/onetrip" leader --data "$work/nodes" --to "$1" >"$work/leader.log" 2>&1 || fail "the leader does not move to $1"
    for _ in $(seq 300); do
        for region in "${regions[@]}"; do
            query "$region" "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'app'" >"$work/end.log"
        done
        [ "$(PGPASSWORD=secret "$bin_dir/psql" -X -q -A -t -h 127.0.0.1 -p "$pgbouncer_port" -U app -d onetrip \
            -c 'SELECT inet_server_port()' 2>>"$work/end.log" || true)" != "${port[near]}" ] || return 0
        sleep 0.2
    done
    fail "HAProxy does not go back to the nearest region"
}
# How many commits there have been in $1 since the time $2, each a line with its time.
commits_since() {
    awk -v since="$2" '$1 > since { n++ } END { print n + 0 }' "$1"
}
# wait_for_commits FILE SINCE TENTHS: until there are a hundred since then.
wait_for_commits() {
    for _ in $(seq "$3"); do
        [ "$(commits_since "$1" "$2")" -lt 100 ] || return 0
        sleep 0.1
    done
    return 1
}
# The longest time between two commits in $1, in ms, from the time $2 on.
longest_gap() {
    awk -v since="$2" '$1 > since && $1 - last > gap { gap = $1 - last } { last = $1 } END { printf "%.0f\n", gap * 1000 }' "$1"
}
# once SIGNAL LEADER SETUP: the client's time without a server, in ms, or a word if it got none in time.
once() {
    local address language program stamps=$work/stamps at gap
    read -r address language <<<"$3"
    settle "$2"
    : >"$stamps"
    (
        local -n command=$language
        address "$address" "$language"
        exec "${command[@]}" 1000000
    ) > >(perl -MTime::HiRes=time -ne 'BEGIN { $| = 1 } printf "%.4f\n", time' >"$stamps") 2>"$work/program.log" &
    program=$!
    wait_for_commits "$stamps" 0 300 || fail "$language does not commit"
    at=$(date +%s.%N)
    signal "$1" near
    if wait_for_commits "$stamps" "$at" $((PATIENCE * 10)); then
        gap=$(longest_gap "$stamps" "$at")
    else
        gap=none
    fi
    kill -KILL "$program"
    wait "$program" 2>/dev/null || true
    if [ "$1" = STOP ]; then
        signal CONT near
    else
        wait "${node[near]}" 2>/dev/null || true
        start near
    fi
    echo "$gap"
}

printf 'signal\tleader\tsetup\tround\tgap_ms\n' >"$out/raw.tsv"
# measure SIGNAL LEADER ROUNDS
measure() {
    local round n gap
    for round in $(seq "$3"); do
        for n in "${!setups[@]}"; do
            once "$1" "$2" "${setups[n]}" >"$work/gap"
            gap=$(cat "$work/gap")
            printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "${labels[n]}" "$round" "$gap" | tee -a "$out/raw.tsv"
        done
    done
}
load_before=$(cut -d ' ' -f 1-3 /proc/loadavg)
measure KILL far "$rounds"
measure KILL near "$rounds"
measure STOP far $(((rounds + 1) / 2))
load_after=$(cut -d ' ' -f 1-3 /proc/loadavg)

# ---- the page ----

# cell SIGNAL LEADER LABEL: median and worst.
cell() {
    awk -F '\t' -v s="$1" -v l="$2" -v label="$3" '$1 == s && $2 == l && $3 == label { print $5 }' "$out/raw.tsv" |
        sed "s/none/$((PATIENCE * 1000))/" | sort -n | awk -v most=$((PATIENCE * 1000)) '
            function show(ms) { return ms >= most ? "never" : ms }
            { v[NR] = $1 }
            END { printf "%s | %s", show(v[int((NR + 1) / 2)]), show(v[NR]) }'
}
cpu=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
# What people wrote stays.
seen=$(sed -n '/^<!-- seen -->$/,/^<!-- \/seen -->$/p' "$out/README.md" 2>/dev/null || true)
{
    cat <<EOF
# A client whose region fails

**Question.** How long is a client without a server when the node and the server of its region are
killed, or hang, with each way of [finding another one](../../clients.md)?

**Set-up.** One machine: $(nproc) cores ($cpu), $("$bin_dir/postgres" --version),
commit $(git rev-parse --short HEAD). Load averages before $load_before, after $load_after.
\`make bench-clients\`, $rounds rounds ($(((rounds + 1) / 2)) of those that hang); each is in
[raw.tsv](raw.tsv). Three regions without distances, which have to be added. One client at a time,
one of the programs of [the page](../../clients.md#run-until-it-has-happened-once) as it is, commits
one transaction after the other, each in a few ms. All processes of its region get the signal at
once. The figure is the longest time between two commits that the client was told of, from the
signal on, in ms: to notice, to find another region, and, if the leader was there, the election
too. HAProxy and pgbouncer have the files of [the page](../../clients.md#haproxy-and-pgbouncer).
*never*: not within $PATIENCE s.

${seen:-<!-- seen -->
<!-- /seen -->}

| client | killed: median | worst | killed, with the leader: median | worst | hangs: median | worst |
|---|---|---|---|---|---|---|
EOF
    for label in "${labels[@]}"; do
        echo "| $label | $(cell KILL far "$label") | $(cell KILL near "$label") | $(cell STOP far "$label") |"
    done
} >"$work/page"
cp "$work/page" "$out/README.md"
