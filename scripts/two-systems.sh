# shellcheck shell=bash
# What scripts that compare a cluster with a plain server have in common: the servers, and whether all regions are equal.
# To be sourced by a script with `set -euo pipefail`, which sets:
#
#   bin               the folder of PostgreSQL's programs
#   database          the database, which is the replicated one in the cluster
#   server_settings   lines for postgresql.conf, of both
#   init_options      array, options of `onetrip init`
#
# shellcheck disable=SC2154
regions=(a b c)

say() {
    echo "$(basename "$0" .sh): $*"
}

fail() {
    say "$*" >&2
    exit 1
}

# PostgreSQL does not run as root.
as_user() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=postgres --regid=postgres --init-groups "$@"
    else
        "$@"
    fi
}

# A folder that the server's user owns.
own_folder() {
    mkdir -p "$1"
    [ "$(id -u)" != 0 ] || chown postgres: "$1"
}

nodes=()
plain=
running=
trap 'stop_all || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

query() {
    local port=$1
    shift
    PGCONNECT_TIMEOUT=5 "$bin/psql" -h 127.0.0.1 -p "$port" -U postgres -d "${DB:-$database}" -X -q -A -t -v ON_ERROR_STOP=1 "$@"
}

# Sets `ports`.  The settings are those of a region that an effect on what tests show could have.
start_plain() {
    plain=$1/server
    own_folder "$plain"
    as_user "$bin/initdb" -D "$plain" -U postgres --encoding UTF8 --locale=C.UTF-8 --data-checksums --auth=trust \
        >"$1/initdb.log" 2>&1
    printf '%s\n' "$server_settings" "unix_socket_directories = '$plain'" "max_connections = 200" "shared_buffers = '128MB'" \
        >>"$plain/postgresql.conf"
    local port
    for port in $(seq 25432 25532); do
        ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || continue
        break
    done
    as_user "$bin/pg_ctl" -D "$plain" -w -t 60 -l "$plain/log" -o "-p $port" start >"$1/start.log" 2>&1 ||
        { tail "$1/start.log" "$plain/log" >&2; fail "the plain server did not start"; }
    ports=("$port")
    DB=postgres query "$port" -c "CREATE DATABASE $database TEMPLATE template0"
}

start_cluster() {
    local region ready
    printf '[[region]]\nname = "%s"\n' "${regions[@]}" >"$1/topology.toml"
    sed -i '1i preferred_leader = "a"\n' "$1/topology.toml"
    own_folder "$1/nodes"
    "$1/onetrip" init --topology "$1/topology.toml" --data "$1/nodes" --database "$database" --bin-dir "$bin" --auth trust \
        "${init_options[@]}" >"$1/init.log" 2>&1 ||
        { cat "$1/init.log" >&2; fail "onetrip init failed"; }
    for region in "${regions[@]}"; do
        echo "$server_settings" >>"$1/nodes/$region/postgres/postgresql.conf"
        "$1/onetrip" start --data "$1/nodes/$region" >>"$1/nodes/$region.log" 2>&1 &
        nodes+=($!)
    done
    mapfile -t ports < <(sed -n 's/.*(PostgreSQL port \([0-9]*\)).*/\1/p' "$1/init.log")
    [ "${#ports[@]}" = ${#regions[@]} ] || fail "onetrip init did not say which ports it chose"
    for port in "${ports[@]}"; do
        ready=
        for _ in $(seq 300); do
            ! query "$port" -c 'SELECT onetrip.advance()' >/dev/null 2>&1 || { ready=yes; break; }
            sleep 0.2
        done
        [ -n "$ready" ] || { tail -n 20 "$1"/nodes/*.log >&2; fail "a region took no transaction within 60 s"; }
    done
}

stop_all() {
    local node
    [ -z "$running" ] || kill -TERM "$running" 2>/dev/null || true
    if [ -n "$plain" ]; then
        as_user "$bin/pg_ctl" -D "$plain" -m fast -t 60 stop >/dev/null 2>&1 || true
        plain=
    fi
    for node in "${nodes[@]}"; do
        kill -TERM "$node" 2>/dev/null || true
    done
    for node in "${nodes[@]}"; do
        wait "$node" 2>/dev/null || true
    done
    nodes=()
}

# All statements of a dump, one on each line and in order.  Left out are numbers of sequences, since each region has its own
# share, and the random key of \restrict.
statements() {
    awk -v RS= '{
        text = ""
        n = split($0, line, "\n")
        for (i = 1; i <= n; i++)
            if (line[i] !~ /^--|^\\(un)?restrict|^ *(START WITH|INCREMENT BY|(NO )?M(IN|AX)VALUE|CACHE|ONETRIP)/)
                text = text (text == "" ? "" : "\\n") line[i]
        if (text != "") print text
    }' | LC_ALL=C sort
}

# Whether all regions are equal, and no server crashed.  What is wrong goes to $1/regions.txt.
judge_regions() {
    local work=$1 i what name said wrong=0
    : >"$work/regions.txt"
    "$work/onetrip" check --data "$work/nodes" --indexes --timeout 120 >"$work/check.txt" 2>&1 ||
        { wrong=1; echo "onetrip check: see check.txt"; tail -n 40 "$work/check.txt"; } >>"$work/regions.txt"
    for i in "${!regions[@]}"; do
        for what in "pg_dump --schema-only $database" "pg_dumpall --globals-only --no-role-passwords"; do
            name=${what%% *}-${regions[$i]}
            # shellcheck disable=SC2086
            "$bin/"$what -h 127.0.0.1 -p "${ports[$i]}" -U postgres 2>"$work/$name.err" | statements >"$work/$name" ||
                { wrong=1; echo "$what fails in region ${regions[$i]}: $(head -n 3 "$work/$name.err")"; } >>"$work/regions.txt"
            diff "$work/${what%% *}-${regions[0]}" "$work/$name" >"$work/$name.diff" ||
                { wrong=1; echo "$what differs between ${regions[0]} and ${regions[$i]}: $name.diff"; } >>"$work/regions.txt"
        done
        said=0
        grep -aFf testdata/crash-marks "$work/nodes/${regions[$i]}.log" "$work/nodes/${regions[$i]}/postgres.log" \
            >>"$work/regions.txt" || said=$?
        # 1 says that nothing was found, and 2 that a log cannot be read.
        [ $said = 1 ] ||
            { wrong=1; echo "a server or a node crashed, or its log is missing: region ${regions[$i]}"; } >>"$work/regions.txt"
    done
    return $wrong
}
