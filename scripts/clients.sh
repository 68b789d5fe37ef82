# shellcheck shell=bash disable=SC2034,SC2154
# Three regions, the programs of docs/clients, and what docs/clients.md puts before the regions.  Sourced by
# scripts/test-clients.sh and scripts/bench-clients.sh, which set `name` and `target` before, and `init`, the options of
# `onetrip init`.  At the exit everything that was started is ended, and $work goes.
mkdir -p "$target/clients"
build=$(realpath "$target/clients")
onetrip=$(realpath "${ONETRIP:-$target/release/onetrip}")
bin_dir=${ONETRIP_POSTGRES_BIN:-/usr/lib/postgresql/15/bin}
PG_JDBC=/usr/share/java/postgresql.jar
PGX=v5.5.5
NODE_POSTGRES=8.13.1
work=$(mktemp -d "/var/tmp/onetrip-$name.XXXXXX")
chmod 755 "$work"
# The nodes that run, by region.
declare -A node=()
regions=(near middle far)

fail() {
    echo "$name: $*" >&2
    exit 1
}

clean_up() {
    local status=$? region
    trap - EXIT
    for region in "${!node[@]}"; do
        signal CONT "$region" 2>/dev/null || true
    done
    # shellcheck disable=SC2046
    kill -TERM $(jobs -p) 2>/dev/null || true
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

# By language, the command that runs its program.
python=(/usr/bin/python3 docs/clients/retry.py)
javascript=(node "$build/js/retry.js")
go=("$build/go/retry")
java=(java -cp "$build/java:$PG_JDBC" Retry)
rust=("$(realpath "$target/release/examples/retry")")
languages=(python javascript go java rust)

build_programs() {
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
}

# ---- three regions ----

# The ports of PostgreSQL and of the nodes' HTTP, by region.
declare -A port=() http=()

# Passwords, TLS where a driver asks for it by itself, and TLS for who asks a node whether its region can be written.  Drivers
# pass by a region without a majority.
start_regions() {
    local region toml
    cp "$onetrip" "$work/onetrip"
    printf '[[region]]\nname = "%s"\n' "${regions[@]}" >"$work/topology.toml"
    echo secret >"$work/password"
    "$work/onetrip" init "${init[@]}" --topology "$work/topology.toml" --data "$work/nodes" --bin-dir "$bin_dir" \
        --password-file "$work/password" >"$work/init.log" 2>&1 ||
        fail "onetrip init failed"
    for region in "${regions[@]}"; do
        toml=$work/nodes/$region/node.toml
        port[$region]=$(sed -n 's/^port = \([0-9]*\)$/\1/p' "$toml" | head -n 1)
        http[$region]=$(sed -n 's/^http = "127.0.0.1:\([0-9]*\)"$/\1/p' "$toml")
        [ -n "${port[$region]}" ] && [ -n "${http[$region]}" ] || fail "$toml lacks the ports of PostgreSQL and of HTTP"
        sed -i 's/^http = .*/&\nhttp_tls = true/; s/^\[postgres\]$/&\nread_only_without_majority = true/' "$toml"
        start "$region"
    done
    for region in "${regions[@]}"; do
        wait_for "$region"
    done
    query near "CREATE ROLE app LOGIN PASSWORD 'secret'; GRANT CREATE ON SCHEMA public TO app;
        $(sed -n '/^GRANT EXECUTE ON FUNCTION onetrip.outcome/p' docs/clients.md); SET ROLE app;
        CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL); INSERT INTO account VALUES (1, 0), (2, 0);
        CREATE TABLE transfer (by text NOT NULL)"
}
start() {
    "$work/onetrip" start --data "$work/nodes/$1" >>"$work/$1.log" 2>&1 &
    node[$1]=$!
}
# A read replica in a region of its own, $1.
join_replica() {
    local peer
    peer=$(sed -n 's/^listen = "\(127.0.0.1:[0-9]*\)"$/\1/p' "$work/nodes/near/node.toml")
    "$work/onetrip" token --data "$work/nodes/near" --role replica >"$work/token" 2>"$work/token.log"
    "$work/onetrip" join --from "$peer" --token-file "$work/token" --region "$1" --data "$work/nodes/$1" --bin-dir "$bin_dir" \
        >"$work/$1.log" 2>&1 &
    node[$1]=$!
    for _ in $(seq 600); do
        port[$1]=$(sed -n 's/^port = \([0-9]*\)$/\1/p' "$work/nodes/$1/node.toml" 2>/dev/null | head -n 1 || true)
        [ -z "${port[$1]}" ] || ! query "$1" 'SELECT FROM account' >"$work/query.log" 2>&1 || return 0
        sleep 0.1
    done
    fail "the replica $1 lets nobody in"
}
query() {
    PGPASSWORD=secret PGCONNECT_TIMEOUT=5 "$bin_dir/psql" -h 127.0.0.1 -p "${port[$1]}" -U postgres -d onetrip -X -q -A -t \
        -v ON_ERROR_STOP=1 -c "$2"
}
wait_for() {
    for _ in $(seq 600); do
        query "$1" 'SELECT onetrip.advance()' >/dev/null 2>&1 && return
        sleep 0.1
    done
    fail "region $1 takes no transaction"
}
# signal SIGNAL REGION: to the region's node and all processes of its server.
signal() {
    local postmaster children
    postmaster=$(head -n 1 "$work/nodes/$2/postgres/postmaster.pid")
    children=$(ps -o pid= --ppid "$postmaster")
    # shellcheck disable=SC2086
    kill "-$1" "${node[$2]}" "$postmaster" $children 2>/dev/null || true
}

# ---- what stands before them ----

free_port() {
    perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1")->sockport'
}
# configure FILE OLD NEW...: the file of docs/clients with what differs from one machine to the other, all of which must be there.
configure() {
    local file=$1 text
    shift
    text=$(cat "docs/clients/$file")
    while [ $# -gt 0 ]; do
        [[ $text == *"$1"* ]] || fail "docs/clients/$file has no '$1'"
        text=${text//"$1"/"$2"}
        shift 2
    done
    echo "$text" >"$work/$file"
}
# HAProxy and pgbouncer as docs/clients configures them.  The regions' order is that of the arguments.
start_pools() {
    local ca=$work/nodes/near/tls/ca.crt
    haproxy_port=$(free_port)
    pgbouncer_port=$(free_port)
    configure haproxy.cfg 127.0.0.1:5000 "127.0.0.1:$haproxy_port" /etc/haproxy/onetrip-ca.crt "$ca" \
        "10.0.1.10:5432 port 7180" "127.0.0.1:${port[$1]} port ${http[$1]}" \
        "10.0.2.10:5432 port 7180" "127.0.0.1:${port[$2]} port ${http[$2]}" \
        "10.0.3.10:5432 port 7180" "127.0.0.1:${port[$3]} port ${http[$3]}"
    haproxy -f "$work/haproxy.cfg" -db >"$work/haproxy.log" 2>&1 &
    # The role and the function are those of the page.
    sed -n '/^CREATE ROLE pgbouncer/,/^```/p' docs/clients.md | grep -v '^```' >"$work/pgbouncer.sql"
    query near "$(cat "$work/pgbouncer.sql")"
    mkdir "$work/pgbouncer"
    echo '"pgbouncer" "long and random"' >"$work/pgbouncer/userlist.txt"
    cp "$ca" "$work/pgbouncer/onetrip-ca.crt"
    configure pgbouncer.ini port=5000 "port=$haproxy_port" "listen_port = 6432" "listen_port = $pgbouncer_port" \
        /etc/pgbouncer "$work/pgbouncer" /var/run/postgresql "$work/pgbouncer" /var/log/postgresql "$work/pgbouncer"
    # It refuses to run as root.
    local as=()
    if [ "$(id -u)" = 0 ]; then
        chown -R postgres "$work/pgbouncer"
        as=(-u postgres)
    fi
    pgbouncer "${as[@]}" "$work/pgbouncer.ini" >"$work/pgbouncer.log" 2>&1 &
    for _ in $(seq 100); do
        PGPASSWORD=secret "$bin_dir/psql" -X -q -h 127.0.0.1 -p "$pgbouncer_port" -U app -d onetrip -c '' >"$work/psql.log" 2>&1 && return
        sleep 0.1
    done
    fail "no connection through pgbouncer and HAProxy"
}

# Tells a program of $2 where to connect: the regions, beginning with that number (0 to 2), a replica before near
# (`replica`), `haproxy`, or pgbouncer (`sessions`, `transactions`).  The drivers that give names to statements by themselves
# are told not to, for transactions.
address() {
    local n host hosts="" database=onetrip url jdbc
    ONETRIP_URLS=
    case $1 in
        [0-2])
            for n in 0 1 2; do
                hosts+=${hosts:+,}127.0.0.1:${port[${regions[(n + $1) % 3]}]}
            done
            ;;
        replica) hosts=127.0.0.1:${port[replica]},127.0.0.1:${port[near]} ;;
        haproxy) hosts=127.0.0.1:$haproxy_port ;;
        sessions) hosts=127.0.0.1:$pgbouncer_port ;;
        transactions)
            hosts=127.0.0.1:$pgbouncer_port
            database=onetrip_transactions
            ;;
    esac
    url="postgresql://app:secret@$hosts/$database?target_session_attrs=read-write"
    jdbc="jdbc:postgresql://$hosts/$database?user=app&password=secret&targetServerType=primary&connectTimeout=3&socketTimeout=15"
    if [ "$1" = transactions ]; then
        jdbc+="&prepareThreshold=0"
        [ "$2" != go ] || url+="&default_query_exec_mode=exec"
    fi
    for host in ${hosts//,/ }; do
        ONETRIP_URLS+=${ONETRIP_URLS:+ }postgresql://app:secret@$host/$database
    done
    export ONETRIP_URLS ONETRIP_URL=$url ONETRIP_JDBC_URL=$jdbc
}
