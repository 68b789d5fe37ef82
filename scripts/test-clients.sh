#!/bin/bash
# Runs the programs in docs/clients, as they are, against three regions: they all change the same rows at once, a region's
# node and server are killed meanwhile, and every transaction must have happened once.  Then counts what connecting and
# looking around asks of other regions, by driver: nothing.
#
#   scripts/test-clients.sh TARGET_FOLDER [transactions of each program]
#
# What it needs beyond `make setup` is installed by `scripts/setup.sh clients`.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
mkdir -p "$1/clients"
build=$(realpath "$1/clients")
onetrip=$(realpath "${ONETRIP:-$1/release/onetrip}")
rust=$(realpath "$1/release/examples/retry")
count=${2:-100}
bin_dir=${ONETRIP_POSTGRES_BIN:-/usr/lib/postgresql/15/bin}
PG_JDBC=/usr/share/java/postgresql.jar
PGX=v5.5.5
NODE_POSTGRES=8.13.1
work=$(mktemp -d /var/tmp/onetrip-clients.XXXXXX)
chmod 755 "$work"
declare -A node=()
regions=(near middle far)

fail() {
    echo "test-clients: $*" >&2
    exit 1
}

clean_up() {
    local status=$?
    trap - EXIT
    for region in "${!node[@]}"; do
        kill -TERM "${node[$region]}" 2>/dev/null || true
    done
    wait
    if [ $status -ne 0 ]; then
        tail -n 5 "$work"/*.log >&2
    fi
    rm -rf "$work"
    exit $status
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# ---- the programs ----

mkdir -p "$build/go" "$build/js" "$build/java"
cp docs/clients/retry.go "$build/go/"
(
    cd "$build/go"
    [ -e go.mod ] || go mod init retry
    go get "github.com/jackc/pgx/v5@$PGX" && go build -o retry retry.go
) >"$work/go.log" 2>&1 || fail "the program in Go cannot be built"
cp docs/clients/retry.js "$build/js/"
(cd "$build/js" && { [ -e node_modules/pg ] || npm install --no-package-lock --no-audit "pg@$NODE_POSTGRES"; }) \
    >"$work/js.log" 2>&1 || fail "node-postgres cannot be installed"
javac -d "$build/java" docs/clients/Retry.java >"$work/java.log" 2>&1 || fail "the program in Java cannot be built"

# ---- three regions ----

cp "$onetrip" "$work/onetrip"
printf '[[region]]\nname = "%s"\n' "${regions[@]}" >"$work/topology.toml"
# A password, and TLS where a driver asks for it by itself.
echo secret >"$work/password"
"$work/onetrip" init --topology "$work/topology.toml" --data "$work/nodes" --bin-dir "$bin_dir" \
    --password-file "$work/password" >"$work/init.log" 2>&1 ||
    fail "onetrip init failed"
declare -A port=()
for region in "${regions[@]}"; do
    port[$region]=$(sed -n 's/^port = \([0-9]*\)$/\1/p' "$work/nodes/$region/node.toml" | head -n 1)
    [ -n "${port[$region]}" ] || fail "node.toml of $region names no port of PostgreSQL"
done
start() {
    "$work/onetrip" start --data "$work/nodes/$1" >>"$work/$1.log" 2>&1 &
    node[$1]=$!
}
query() {
    PGPASSWORD=secret PGCONNECT_TIMEOUT=5 "$bin_dir/psql" -h 127.0.0.1 -p "${port[$1]}" -U postgres -d onetrip -X -q -A -t -v ON_ERROR_STOP=1 -c "$2"
}
wait_for() {
    for _ in $(seq 600); do
        query "$1" 'SELECT onetrip.advance()' >/dev/null 2>&1 && return
        sleep 0.1
    done
    fail "region $1 takes no transaction"
}
for region in "${regions[@]}"; do
    start "$region"
done
for region in "${regions[@]}"; do
    wait_for "$region"
done
query near "CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL); INSERT INTO account VALUES (1, 0), (2, 0);
    CREATE TABLE transfer (by text NOT NULL)"

# ---- all of them at once, while a region fails ----

# The hosts, beginning with region number $1.
hosts() {
    local n host=
    for n in 0 1 2; do
        host+=${host:+,}127.0.0.1:${port[${regions[(n + $1) % 3]}]}
    done
    echo "$host"
}
# run NUMBER NAME COMMAND...: a program whose nearest region is that number.
declare -A program=()
run() {
    local number=$1 name=$2 host urls=
    shift 2
    for host in $(hosts "$number" | tr ',' ' '); do
        urls+=${urls:+ }postgresql://postgres:secret@$host/onetrip
    done
    ONETRIP_URL="postgresql://postgres:secret@$(hosts "$number")/onetrip?target_session_attrs=read-write" \
        ONETRIP_JDBC_URL="jdbc:postgresql://$(hosts "$number")/onetrip?user=postgres&password=secret&targetServerType=primary" \
        ONETRIP_URLS=$urls timeout 300 "$@" >"$work/$name.log" 2>&1 &
    program[$name]=$!
}
java_program=(java -cp "$build/java:$PG_JDBC" Retry)
run 0 python /usr/bin/python3 docs/clients/retry.py "$count"
run 1 javascript node "$build/js/retry.js" "$count"
run 2 go "$build/go/retry" "$count"
run 0 java "${java_program[@]}" "$count"
run 1 rust "$rust" "$count"

# A region's node and server are killed once some transactions are through, and started again.
for _ in $(seq 600); do
    [ "$(query near 'SELECT count(*) FROM transfer')" -lt "$count" ] || break
    sleep 0.1
done
kill -KILL "${node[middle]}" "$(head -n 1 "$work/nodes/middle/postgres/postmaster.pid")"
wait "${node[middle]}" 2>/dev/null || true
start middle

failed=0
for name in "${!program[@]}"; do
    if wait "${program[$name]}"; then
        echo "test $name: ok"
    else
        echo "test $name: FAILED"
        tail -n 10 "$work/$name.log"
        failed=$((failed + 1))
    fi
done
passed=$((${#program[@]} - failed))
for region in "${regions[@]}"; do
    wait_for "$region"
    seen=$(query "$region" "SELECT string_agg(by || ' ' || n, ', ' ORDER BY by) FROM (SELECT by, count(*) n FROM transfer GROUP BY 1) t")
    expected=$(printf '%s\n' "${!program[@]}" | LC_ALL=C sort | sed "s/\$/ $count/" | paste -s -d, | sed 's/,/, /g')
    balance=$(query "$region" "SELECT string_agg(balance::text, ' ' ORDER BY id) FROM account")
    sum=$((count * ${#program[@]}))
    if [ "$seen" = "$expected" ] && [ "$balance" = "-$sum $sum" ]; then
        echo "test once_each_in_$region: ok"
        passed=$((passed + 1))
    else
        echo "test once_each_in_$region: FAILED: $seen; $balance"
        failed=$((failed + 1))
    fi
done

# ---- connecting, and looking around ----

# What asked other regions so far.  The apply worker goes on to settle what became of the programs' transactions that lost.
crossings() {
    query near "SELECT string_agg(cause || ' ' || count, ', ' ORDER BY cause) FROM onetrip.crossings
        WHERE cause <> 'outcome settled'"
}
# look NAME COMMAND...: the command connects to region near, and asks what drivers ask.
look() {
    local name=$1 before after
    shift
    before=$(crossings)
    if timeout 60 "$@" >"$work/look-$name.log" 2>&1; then
        after=$(crossings)
        if [ "$before" = "$after" ]; then
            echo "test nothing_crosses_with_$name: ok"
            passed=$((passed + 1))
            return
        fi
        echo "test nothing_crosses_with_$name: FAILED: before: $before; after: $after"
    else
        echo "test nothing_crosses_with_$name: FAILED"
        tail -n 10 "$work/look-$name.log"
    fi
    failed=$((failed + 1))
}
url=postgresql://postgres:secret@127.0.0.1:${port[near]}/onetrip
export ONETRIP_URL=$url ONETRIP_URLS=$url ONETRIP_JDBC_URL="jdbc:postgresql://127.0.0.1:${port[near]}/onetrip?user=postgres&password=secret"
look psql "$bin_dir/psql" -X -q "$url" -c '\d account' -c '\d' -c 'SELECT count(*) FROM transfer'
look psycopg /usr/bin/python3 docs/clients/retry.py 0
look node-postgres node "$build/js/retry.js" 0
look pgx "$build/go/retry" 0
look pgjdbc "${java_program[@]}" 0
look tokio-postgres "$rust" 0

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
