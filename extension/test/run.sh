#!/bin/bash
# The extension's tests on one node: sql/ (one session), specs/ (several) and t/ (with restarts).  Node and PostgreSQL are real.
# If all of them run, t/ has a node of its own, beside that of the others.
#
# Called by `make -C extension check-all`.  The tests run what is installed in PostgreSQL's folders (`make setup`).
#   TESTS="capture toast"  only these of sql/ (and setup, always); SPECS and RESTARTS (t/) likewise; =none for none
#   ONETRIP=FILE           this onetrip command, instead of building it
#   UNIT=FILE              this onetrip_unit.so; SANITIZERS=asan|valgrind: which one watches the server (check-asan)
#   KEEP=1                 leave the folder with logs and results behind
set -euo pipefail
cd "$(dirname "$0")"

PG_CONFIG=${PG_CONFIG:-pg_config}
bin_dir=$("$PG_CONFIG" --bindir)
# Tests call pg_dump.
export PATH=$bin_dir:$PATH
pgxs_dir=$(dirname "$("$PG_CONFIG" --pgxs)")/..
pg_regress=$pgxs_dir/test/regress/pg_regress
pg_isolation_regress=$pgxs_dir/test/isolation/pg_isolation_regress
READY_SECONDS=${READY_SECONDS:-60}
STOP_SECONDS=${STOP_SECONDS:-30}

fail() {
    echo "test/run.sh: $*" >&2
    exit 1
}

# A test that hangs is stopped after this time, and counts as failed.
TESTS_SECONDS=${TESTS_SECONDS:-900}

work=$(mktemp -d /var/tmp/onetrip-test.XXXXXX)
chmod 755 "$work"
node=
running=
beside=
all=
under_way=
clean_up() {
    local status=$?
    trap - EXIT
    [ -z "$beside" ] || { kill -TERM "$beside" 2>/dev/null && wait "$beside"; } || true
    [ -z "$under_way" ] || echo "test $under_way: FAILED at a command, after which no test can run: ${wrong:-see above}"
    [ -z "$running" ] || kill -TERM "$running" 2>/dev/null || true
    if [ -n "$node" ] && kill -TERM "$node" 2>/dev/null; then
        for _ in $(seq $((STOP_SECONDS * 10))); do
            kill -0 "$node" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "$node" 2>/dev/null && echo "test/run.sh: the node did not stop within $STOP_SECONDS s" >&2
        wait "$node" 2>/dev/null || true
    fi
    if [ -n "${KEEP:-}" ]; then
        echo "test/run.sh: logs and results are in $work"
    else
        rm -rf "$work"
    fi
    exit $status
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

[ -x "$pg_regress" ] && [ -x "$pg_isolation_regress" ] ||
    fail "pg_regress is missing: install postgresql-server-dev-15"
# The lab's command is the product's, and lets a test change what the node of a cluster insists on.
if [ -z "${ONETRIP:-}" ]; then
    (cd ../.. && cargo build --release --locked -p onetrip-lab --bin onetrip-lab)
    target=${CARGO_TARGET_DIR:-../../target}
    ONETRIP=$target/release/onetrip-lab
fi
# If root runs this, the node becomes another user, which may be unable to reach the checkout.
cp "$ONETRIP" "$work/onetrip"
cp "${UNIT:-unit/onetrip_unit.so}" "$work/onetrip_unit.so"
chmod 755 "$work/onetrip" "$work/onetrip_unit.so"

# ---- one node ----

printf '[[region]]\nname = "here"\n' >"$work/topology.toml"
"$work/onetrip" init --topology "$work/topology.toml" --data "$work/nodes" --bin-dir "$bin_dir" --auth trust >"$work/init.log" 2>&1 ||
    { cat "$work/init.log" >&2; fail "onetrip init failed"; }
port=$(sed -n 's/.*(PostgreSQL port \([0-9]*\)).*/\1/p' "$work/init.log")
[ -n "$port" ] || fail "onetrip init did not say which port it chose"
# A query in the replicated database; fails at the first error.
query() {
    PGCONNECT_TIMEOUT=5 "$bin_dir/psql" -h 127.0.0.1 -p "$port" -U postgres -d onetrip -X -q -A -t -v ON_ERROR_STOP=1 -c "$1"
}

start_node() {
    local ready=
    ulimit -c unlimited 2>/dev/null || true
    "$work/onetrip" start --data "$work/nodes/here" >>"$work/node.log" 2>&1 &
    node=$!
    for _ in $(seq $((READY_SECONDS * 5))); do
        kill -0 "$node" 2>/dev/null || break
        if query 'SELECT onetrip.advance()' >/dev/null 2>"$work/ready.log"; then
            ready=yes
            break
        fi
        sleep 0.2
    done
    if [ -z "$ready" ]; then
        tail -n 30 "$work/ready.log" "$work/node.log" "$work/nodes/here/postgres.log" >&2
        fail "the node took no transaction within $READY_SECONDS s"
    fi
}

# Stops the node and PostgreSQL cleanly.
stop_node() {
    kill -TERM "$node"
    for _ in $(seq $((STOP_SECONDS * 10))); do
        kill -0 "$node" 2>/dev/null || break
        sleep 0.1
    done
    kill -0 "$node" 2>/dev/null && fail "the node did not stop within $STOP_SECONDS s"
    wait "$node" 2>/dev/null || true
    node=
}

start_node

# ---- the tests ----

export ONETRIP_UNIT=$work/onetrip_unit.so
ONETRIP_GOLDEN=$(cd ../../testdata/agent && pwd)
export ONETRIP_GOLDEN ONETRIP_NODE_PID=$node
# A process stops when one of its threads comes to handle the signal, which on a busy machine takes a while.
cat >"$work/stop-node" <<'END'
#!/bin/bash
kill -STOP "$ONETRIP_NODE_PID"
for _ in $(seq 2000); do
    grep -hq '^State:[[:space:]]*[^T[:space:]]' /proc/"$ONETRIP_NODE_PID"/task/*/status || exit 0
    sleep 0.005
done
echo "the node has not stopped"
END
chmod 755 "$work/stop-node"
export ONETRIP_STOP_NODE=$work/stop-node
passed=0
failed=0

# What is printed on this version of PostgreSQL and not on 15, and the other way round.
as_known=expected/on-$("$PG_CONFIG" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/').diff

# The lines of regression.diffs that differ, each behind the name of its test.  Whether a plan reads a page or finds it is
# chance.
differences() {
    sed -nE -e 's,^diff .*/results/(.*)\.out$,\1,;tname' -e '/^[-+]/{G;s/^(.*)\n(.*)$/\2 \1/;p}' -e b -e ':name' \
        -e h -e n -e n "$1" | sed -E 's/(Buffers: shared).*/\1/'
}

# differs_as_known NAME TEST...: the folder NAME keeps what differs in `differs`, for a list to be made anew (KEEP=1).
differs_as_known() {
    local name=$1
    shift
    [ -s "$work/$name/regression.diffs" ] || return 1
    differences "$work/$name/regression.diffs" >"$work/$name/differs"
    for test in "$@"; do
        grep "^$test " "$as_known" || true
    done | diff - "$work/$name/differs"
}

# run NAME PROGRAM TEST...
run() {
    local name=$1 program=$2 status=0 test known=()
    shift 2
    for test in "$@"; do
        if [ -e "expected/$test.out" ]; then
            known+=("$test")
        else
            echo "test $test: expected/$test.out is missing"
            failed=$((failed + 1))
        fi
    done
    set -- "${known[@]}"
    [ $# -gt 0 ] || return 0
    mkdir -p "$work/$name"
    # Both programs write what they compare into the output folder; nothing is written to the checkout.
    # In the background, so that this script reacts to a signal at once.
    timeout -k 10 $TESTS_SECONDS "$program" --use-existing --dbname=onetrip --host=127.0.0.1 --port="$port" --user=postgres \
        --bindir="$bin_dir" --inputdir="$PWD" --outputdir="$work/$name" "$@" >"$work/$name/log" 2>&1 &
    running=$!
    wait "$running" || status=$?
    running=
    grep -E '^(test|ok|not ok) ' "$work/$name/log" || true
    ok=$(grep -cE '^(test .*\.\.\. ok|ok )' "$work/$name/log" || true)
    if [ $status -eq 1 ] && [ -e "$as_known" ] && differs_as_known "$name" "$@"; then
        echo "the others differ as $as_known says"
        ok=$# status=0
    fi
    passed=$((passed + ok))
    # Tests that were never run have failed too.
    failed=$((failed + $# - ok))
    if [ $status -ne 0 ]; then
        [ "$ok" -lt $# ] || { failed=$((failed + 1)); echo "$name: all tests are ok, and yet it ended with status $status"; }
        if [ -s "$work/$name/regression.diffs" ]; then
            cat "$work/$name/regression.diffs"
        else
            cat "$work/$name/log"
        fi
    fi
}

names() {
    local file
    for file in "$1"/*."$2"; do
        basename "$file" ".$2"
    done | LC_ALL=C sort
}

# The ports of this node are in use by now, so the other one takes others.
if [ -z "${TESTS:-}${SPECS:-}${RESTARTS:-}" ]; then
    TESTS=none SPECS=none RESTARTS=$(names t sh) ONETRIP=$work/onetrip ./run.sh >"$work/beside.log" 2>&1 &
    beside=$!
    RESTARTS=none
    all=yes
fi

tests=${TESTS:-$(names sql sql | grep -vx setup)}
specs=${SPECS:-$(names specs spec)}
[ "$specs" = none ] && specs=
[ "$tests" = none ] && tests=
# shellcheck disable=SC2086
run sql "$pg_regress" setup $tests
# shellcheck disable=SC2086
run specs "$pg_isolation_regress" $specs

# The examples in the documentation, each page in one session.
examples() {
    local page=$1 name
    name=docs/$(basename "$page")
    sed -n '/^```sql$/,/^```$/{/^```/!p}' "$page" >"$work/examples.sql"
    if [ -s "$work/examples.sql" ] && "$bin_dir/psql" -h 127.0.0.1 -p "$port" -U postgres -d onetrip -X -q \
        -v ON_ERROR_STOP=1 -f "$work/examples.sql" >"$work/examples.log" 2>&1; then
        echo "test $name: ok"
        passed=$((passed + 1))
    else
        echo "test $name: FAILED"
        tail -n 20 "$work/examples.log"
        failed=$((failed + 1))
    fi
}
if [ -n "$all" ]; then
    examples ../../docs/settings.md
    examples ../../docs/functions.md
    examples ../../docs/monitoring.md
    # Those that connect to another server are left out.
    perl -0pe 's/```sql\nCREATE SUBSCRIPTION.*?\n```\n//sg' ../../docs/publications.md >"$work/publications.md"
    printf '```sql\nDROP PUBLICATION shop;\n```\n' >>"$work/publications.md"
    examples "$work/publications.md"
fi

# The tests that stop and start the node: each is a script that runs in this shell.  It sets `wrong` if it fails, or
# `unchecked` if it cannot run here; and a command that fails ends everything, since nobody knows what is left of the node.
restarts=${RESTARTS:-$(names t sh)}
[ "$restarts" = none ] && restarts=
if [ -n "${TESTS:-}${SPECS:-}" ] && [ -z "${RESTARTS:-}" ]; then
    restarts=
fi
for test in $restarts; do
    wrong='' unchecked='' under_way=$test
    # Not as a condition, in which bash would go on after a command that fails.
    # shellcheck disable=SC1090
    . "t/$test.sh"
    under_way=
    if [ -n "$wrong" ]; then
        echo "test $test: FAILED"
        echo "$wrong"
        failed=$((failed + 1))
    elif [ -n "$unchecked" ]; then
        echo "test $test: NOT CHECKED: $unchecked"
    else
        echo "test $test: ok"
        passed=$((passed + 1))
    fi
done

if [ -n "$beside" ]; then
    status=0
    wait "$beside" || status=$?
    beside=
    counts='^([0-9]+) passed, ([0-9]+) failed$'
    grep -vE "$counts" "$work/beside.log" || true
    read -r its_passed its_failed < <(sed -nE "s/$counts/\\1 \\2/p" "$work/beside.log") || its_passed=0 its_failed=1
    [ "$status" -eq 0 ] || [ "$its_failed" -gt 0 ] || its_failed=1
    passed=$((passed + its_passed)) failed=$((failed + its_failed))
fi

if ! kill -0 "$node" 2>/dev/null; then
    tail -n 30 "$work/node.log" >&2
    failed=$((failed + 1))
    echo "the node ended during the tests"
fi
# The postmaster logs a crash only after the core file is written.
[ "$failed" -eq 0 ] || sleep 3
crash_marks=../../testdata/crash-marks
cat "$work/node.log" "$work/nodes/here/postgres.log" >"$work/logs"
# t/ kills servers on purpose, by SIGKILL.
if grep -aFf "$crash_marks" "$work/logs" | grep -v "signal 9: Killed"; then
    failed=$((failed + 1))
    echo "the server crashed during the tests"
    # What the process was running, and where in it.
    grep -aF -B 4 -A 2 -f "$crash_marks" "$work/nodes/here/postgres.log" | grep -v "signal 9: Killed" | cut -c 1-300 | tail -n 60
    for core in "$work"/nodes/here/postgres/core*; do
        [ -e "$core" ] || continue
        gdb -batch -ex "backtrace 18" "$bin_dir/postgres" "$core" 2>/dev/null | grep '^#' | cut -c 1-160
    done
fi
# Do the sanitizers find anything at all?  This comes last, since it crashes the server.
if [ -n "${SANITIZERS:-}" ]; then
    query "CREATE FUNCTION unit.read_behind_end() RETURNS int LANGUAGE c AS '$ONETRIP_UNIT', 'unit_read_behind_end'"
    query "SELECT unit.read_behind_end()" >/dev/null 2>&1 || true
    if grep -aq "AddressSanitizer: heap-buffer-overflow" "$work/nodes/here/postgres.log" ||
        { [ "$SANITIZERS" = valgrind ] && grep -q "at .* unit_read_behind_end" /var/tmp/onetrip-valgrind.*.log; }; then
        echo "test sanitizers: ok"
        passed=$((passed + 1))
    else
        echo "test sanitizers: FAILED, a read behind the end of a block went unseen"
        failed=$((failed + 1))
    fi
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
