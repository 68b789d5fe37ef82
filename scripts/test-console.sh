#!/bin/bash
# Opens the console in a real browser while three regions work, one of them fails and comes back; then with a token.
# What the browser checks is in scripts/test-console.mjs.
#
#   scripts/test-console.sh TARGET_FOLDER [FOLDER_FOR_SCREENSHOTS]
#
# What it needs beyond `make setup` is installed by `scripts/setup.sh console`.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
release=$(realpath "$1/release")
mkdir -p "$1/console"
browser=$(realpath "$1/console")
pictures=${2:+$(realpath "$2")}
bin_dir=${ONETRIP_POSTGRES_BIN:-/usr/lib/postgresql/15/bin}
PLAYWRIGHT=1.65.1
AXE=4.14.1
work=$(mktemp -d /var/tmp/onetrip-console.XXXXXX)
chmod 755 "$work"
loads=()
demo=

fail() {
    echo "test-console: $*" >&2
    exit 1
}

clean_up() {
    local status=$?
    trap - EXIT
    for pid in "${loads[@]}" $demo; do
        kill -TERM "$pid" 2>/dev/null || true
    done
    wait
    [ $status -eq 0 ] || tail -n 5 "$work"/*.log >&2
    rm -rf "$work"
    exit $status
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

[ -e "$browser/node_modules/axe-core" ] && [ -e "$browser/node_modules/playwright-core" ] ||
    (cd "$browser" && npm install --no-package-lock --no-audit --no-fund "playwright-core@$PLAYWRIGHT" "axe-core@$AXE") \
        >"$work/npm.log" 2>&1 || fail "playwright-core and axe-core cannot be installed"
cp scripts/test-console.mjs "$browser/"

# ---- three regions, with load in each ----

"$release/demo" --data "$work/demo" --seconds 1 --clients 4 --bin-dir "$bin_dir" >"$work/demo.out" 2>"$work/demo.log" &
demo=$!
for _ in $(seq 1200); do
    ! grep -q 'Ctrl-C ends it' "$work/demo.out" || break
    kill -0 "$demo" 2>/dev/null || fail "the demo ended early"
    sleep 0.1
done
address=$(sed -n 's/^See it in a browser: //p' "$work/demo.out")
[ -n "$address" ] || fail "the demo names no console"
nodes=$work/demo/nodes
port_of() {
    sed -n '/^\[postgres\]/,$s/^port = //p' "$nodes/$1/node.toml" | head -n 1
}
query() {
    "$bin_dir/psql" -h 127.0.0.1 -p "$(port_of "$1")" -U postgres -d onetrip -X -q -A -t -v ON_ERROR_STOP=1 -c "$2"
}
regions=(us-east-1 us-east-2 us-west-2)
query us-east-1 "CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL);
    INSERT INTO account SELECT n, 0 FROM generate_series(1, 5000) n"
# Mostly rows of their own; now and then a few that all regions want, so that some lose.
cat >"$work/load.sql" <<'SQL'
\set id random(1, 5000)
\set hot random(1, 10)
\if :hot = 1
\set id random(1, 2)
\endif
UPDATE account SET balance = balance + 1 WHERE id = :id;
SQL
# A name that would run as a script in a page that did not escape it.
export PGAPPNAME='<img src=x onerror=alert(1)>' PGOPTIONS='-c onetrip.statement_retries=0'
for region in "${regions[@]}"; do
    for _ in $(seq 100); do
        [ "$(query "$region" 'SELECT count(*) FROM account' 2>/dev/null)" != 5000 ] || break
        sleep 0.1
    done
    (
        while :; do
            "$bin_dir/pgbench" -n -h 127.0.0.1 -p "$(port_of "$region")" -U postgres -c 6 -j 1 -T 3600 -R 50 \
                --max-tries=10 -f "$work/load.sql" onetrip >>"$work/load-$region.log" 2>&1 || sleep 0.2
        done
    ) &
    loads+=($!)
done

# ---- the browser ----

status=0
ONETRIP=$release/onetrip-lab node "$browser/test-console.mjs" "$address" "$nodes" us-west-2 ${pictures:+"$pictures"} || status=$?
[ -z "$pictures" ] || pngquant --force --ext .png --speed 1 --strip 96 "$pictures"/*.png
exit $status
