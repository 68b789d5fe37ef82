#!/bin/bash
# Runs the programs in docs/clients, as they are, against three regions: they all change the same rows at once, a region's
# node and server are killed meanwhile, and every transaction must have happened once.  So must they when the region that all
# are connected to is cut off.  The same again through pgbouncer and HAProxy, with docs/clients/pgbouncer.ini and haproxy.cfg.
# Then counts, 300 ms from them, what connecting and looking around asks of other regions, by driver: nothing, and with
# onetrip.read = fresh nothing before the first table is read; and looks at what docs/clients.md says of pools.
#
#   scripts/test-clients.sh TARGET_FOLDER [transactions of each program]
#
# What it needs beyond `make setup` is installed by `scripts/setup.sh clients`.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
name=test-clients
target=$1
count=${2:-100}
# The product with links that can be made longer.
ONETRIP=${ONETRIP:-$target/release/onetrip-lab}
init=(--lab --tls --auth scram)
# shellcheck source=scripts/clients.sh
. scripts/clients.sh
build_programs
start_regions

passed=0
failed=0
ok() {
    echo "test $1: ok"
    passed=$((passed + 1))
}
broken() {
    echo "test $1: FAILED${2:+: $2}"
    failed=$((failed + 1))
}

# ---- all of them at once, while a region fails ----

# run NAME ADDRESS LANGUAGE: starts the language's program with `count` transactions.
declare -A program=() transfers=()
run() {
    local -n command=$3
    (
        address "$2" "$3"
        exec timeout 300 "${command[@]}" "$count"
    ) >"$work/$1.log" 2>&1 &
    program[$1]=$!
    transfers[$3]=$((${transfers[$3]:-0} + count))
}
# Waits until some transactions of those that were started are through.
wait_for_some() {
    for _ in $(seq 600); do
        [ "$(query "$1" 'SELECT count(*) FROM transfer')" -lt "$count" ] || return 0
        sleep 0.1
    done
}
# The programs end well.
end_well() {
    local name
    for name in "${!program[@]}"; do
        if wait "${program[$name]}"; then
            ok "$name"
        else
            broken "$name"
            tail -n 10 "$work/$name.log"
        fi
    done
}
# once_each SUFFIX: each transaction of theirs has happened once, in every region.
once_each() {
    local name region seen expected balance sum
    expected=$(for name in "${!transfers[@]}"; do echo "$name ${transfers[$name]}"; done | LC_ALL=C sort | paste -s -d, | sed 's/,/, /g')
    sum=$((count * ${#program[@]}))
    for region in "${regions[@]}"; do
        wait_for "$region"
        seen=$(query "$region" "SELECT string_agg(by || ' ' || n, ', ' ORDER BY by COLLATE \"C\") FROM (SELECT by, count(*) n FROM transfer GROUP BY 1) t")
        balance=$(query "$region" "SELECT string_agg(balance::text, ' ' ORDER BY id) FROM account")
        if [ "$seen" = "$expected" ] && [ "$balance" = "-$sum $sum" ]; then
            ok "once_each_in_$region$1"
        else
            broken "once_each_in_$region$1" "$seen; $balance"
        fi
    done
    program=()
    transfers=()
    query near "TRUNCATE transfer; UPDATE account SET balance = 0"
}

# links JSON [NODE]: tells each node so about each of its links; with NODE, about those from and to that one.
links() {
    /usr/bin/python3 - "$work/nodes/near/tls/ca.crt" "$1" "${2:-0}" "${http[near]}" "${http[middle]}" "${http[far]}" <<'END'
import json, ssl, sys, urllib.request

trusted = ssl.create_default_context(cafile=sys.argv[1])
told, which = json.loads(sys.argv[2]), int(sys.argv[3])
for node, port in enumerate(sys.argv[4:], 1):
    for peer in {1, 2, 3} - {node}:
        if which in (0, node, peer):
            body = json.dumps({"peer": peer} | told).encode()
            request = urllib.request.Request(f"https://127.0.0.1:{port}/links", body, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, context=trusted, timeout=10)
END
}

run python 0 python
run javascript 1 javascript
run go 2 go
run java 0 java
run rust 1 rust
# A region's node and server are killed once some transactions are through, and started again.  Sessions outlive their
# postmaster by a moment.
wait_for_some near
kill -KILL "${node[middle]}" "$(head -n 1 "$work/nodes/middle/postgres/postmaster.pid")"
wait "${node[middle]}" 2>/dev/null || true
start middle
end_well
once_each ""

# ---- the nearest region is cut off, while its server and its node go on ----

for language in "${languages[@]}"; do
    run "${language}_cut_off" 0 "$language"
done
wait_for_some near
links '{"cut": true}' 1
# The others tell them what became of their transactions there.
end_well
links '{"cut": false}' 1
wait_for near
once_each _past_a_region_without_a_majority

# ---- the same through pgbouncer and HAProxy, and the region that HAProxy has chosen fails ----

start_pools near middle far
for language in "${languages[@]}"; do
    run "${language}_in_sessions" sessions "$language"
    run "${language}_in_transactions" transactions "$language"
done
run python_elsewhere 2 python
wait_for_some far
signal KILL near
wait "${node[near]}" 2>/dev/null || true
# They do not need that region, even to learn what became of their transactions there.
end_well
start near
once_each _through_pools

# ---- a read replica in front of the list ----

join_replica replica
count=5
for language in "${languages[@]}"; do
    run "${language}_passes_a_replica_by" replica "$language"
done
end_well
once_each _past_a_replica

# ---- connecting, and looking around, 300 ms from the other regions and back ----

# The replica's region stays near; it is not asked.
links '{"one_way_ms": 150}'
for region in "${regions[@]}"; do
    wait_for "$region"
done
begun=$(date +%s%N)
query near "UPDATE account SET balance = 0"
if [ $((($(date +%s%N) - begun) / 1000000)) -ge 300 ]; then
    ok the_other_regions_are_far_away
else
    broken the_other_regions_are_far_away
fi

# What asked other regions so far, less so many fresh reads.  The apply worker goes on to settle what became of the programs'
# transactions that lost.
crossings() {
    query near "SELECT string_agg(cause || ' ' || count - CASE cause WHEN 'fresh read' THEN $1 ELSE 0 END, ', ' ORDER BY cause)
        FROM onetrip.crossings WHERE cause <> 'outcome settled'"
}
# look NAME COMMAND...: the command connects to region near, asks what drivers ask, and reads a table once.
crosses=nothing_crosses
reads=0
look() {
    local name=$1 before after
    shift
    before=$(crossings 0)
    if timeout 60 "$@" >"$work/look-$name.log" 2>&1; then
        after=$(crossings "$reads")
        if [ "$before" = "$after" ]; then
            ok "${crosses}_with_$name"
        else
            broken "${crosses}_with_$name" "before: $before; after: $after"
        fi
    else
        broken "${crosses}_with_$name"
        tail -n 10 "$work/look-$name.log"
    fi
}
look_with_each() {
    address 0 ""
    look psql "$bin_dir/psql" -X -q "$ONETRIP_URL" -c '\d account' -c '\d' -c 'SELECT count(*) FROM transfer'
    look psycopg "${python[@]}" 0
    look node-postgres "${javascript[@]}" 0
    look pgx "${go[@]}" 0
    look pgjdbc "${java[@]}" 0
    look tokio-postgres "${rust[@]}" 0
}
look_with_each
address sessions ""
look pgbouncer "$bin_dir/psql" -X -q "$ONETRIP_URL" -c '\d account' -c 'SELECT count(*) FROM transfer'
query near "ALTER ROLE app SET onetrip.read = fresh"
crosses=only_the_read_crosses
reads=1
look_with_each
query near "ALTER ROLE app RESET onetrip.read"

# ---- what pools do to what belongs to a session ----

# The secret from which a password is checked is the same everywhere, so pgbouncer can use it in another region.
secrets=$(for region in "${regions[@]}"; do query "$region" "SELECT rolpassword FROM pg_authid WHERE rolname = 'app'"; done | sort -u)
if [[ $secrets == SCRAM-SHA-256* ]] && [ "$(wc -l <<<"$secrets")" = 1 ]; then
    ok secrets_are_the_same_everywhere
else
    broken secrets_are_the_same_everywhere
fi
# let_in USER PASSWORD: whether pgbouncer does.
let_in() {
    PGPASSWORD=$2 "$bin_dir/psql" -X -q -h 127.0.0.1 -p "$pgbouncer_port" -U "$1" -d onetrip -c '' 2>>"$work/let-in.log"
}
if let_in app secret && ! let_in app wrong && ! let_in postgres secret && ! let_in nobody secret; then
    ok pgbouncer_asks_for_passwords
else
    broken pgbouncer_asks_for_passwords
fi
sessions=postgresql://app:secret@127.0.0.1:$pgbouncer_port/onetrip
status=0
timeout 120 env ONETRIP_SESSIONS="$sessions" ONETRIP_TRANSACTIONS="${sessions}_transactions" \
    ONETRIP_NEAR="postgresql://postgres:secret@127.0.0.1:${port[near]}/onetrip" \
    ONETRIP_MIDDLE="postgresql://postgres:secret@127.0.0.1:${port[middle]}/onetrip" \
    /usr/bin/python3 -u scripts/test-pooling.py >"$work/pooling.out" 2>"$work/pooling.log" || status=$?
cat "$work/pooling.out"
passed=$((passed + $(grep -c ': ok$' "$work/pooling.out" || true)))
failed=$((failed + $(grep -c ': FAILED: ' "$work/pooling.out" || true)))
if [ $status -ne 0 ] && ! grep -q ': FAILED: ' "$work/pooling.out"; then
    broken pooling "it ended with $status"
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
