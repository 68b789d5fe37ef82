#!/bin/bash
# PostgreSQL's own regression and isolation suites: what do they show in a region of a cluster that they do not show on a
# plain server?  The differences must be those that docs/census/pg-regress.tsv lists, and after each suite all regions must
# be equal.
#
#   scripts/pg-regress.sh [regress] [isolation]      both by default
#   scripts/pg-regress.sh --write                    no run: writes the list anew from what the last one saw
#
#   ONETRIP=FILE               this onetrip command (default: target/release/onetrip)
#   ONETRIP_POSTGRES_BIN=DIR   PostgreSQL's programs, with the extension installed
#   ONETRIP_REGRESS_DIR=DIR    sources, results and logs (default: /var/tmp/onetrip-pg-regress)
#   PARALLEL=1                 tests in groups at the same time, as PostgreSQL runs them: some get 40001 then, at random
#   STRIDE=--stride=8          sequences in shares, as a cluster has them by default
#   PGOPTIONS="-c default_transaction_isolation=serializable"  (for example) settings of all sessions, on both systems
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
bin=${ONETRIP_POSTGRES_BIN:-/usr/lib/postgresql/15/bin}
dir=$(realpath -m "${ONETRIP_REGRESS_DIR:-/var/tmp/onetrip-pg-regress}")
list=$root/docs/census/pg-regress.tsv
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(regress isolation)
major=$("$bin/pg_config" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')
pgxs_test=$(dirname "$("$bin/pg_config" --pgxs)")/../test
source=$dir/source-$major
database=regression
# shellcheck source=scripts/two-systems.sh
source scripts/two-systems.sh
# shellcheck source=scripts/debian.sh
source scripts/debian.sh

# ---- the sources ----

# Scripts and psql must fit: from 15.19 on psql skips the data of a COPY that failed, and earlier scripts have none there.  So
# psql comes with the scripts.
fetch() (
    say "fetching the source package of PostgreSQL $major"
    rm -rf "$source" "$source.new"
    mkdir -p "$source.new"
    fetch_source "postgresql-$major" "$dir/apt"
    cd "$dir/apt"
    tar -C "$source.new" --strip-components=3 -xf postgresql-"$major"_*.orig.tar.* --wildcards \
        '*/src/test/regress' '*/src/test/isolation'
    if [ "$fetched" = "$wanted" ]; then
        ln -s "$bin" "$source.new/bin"
    else
        apt-get "${apt_options[@]}" download "postgresql-client-$major=$fetched"
        dpkg-deb -x postgresql-client-"$major"_*.deb client
        mkdir "$source.new/bin"
        cp "client/usr/lib/postgresql/$major/bin/psql" "$source.new/bin/"
        say "the tests and psql are those of $fetched, since the source of $wanted (installed) is not offered"
    fi
    echo "$fetched" >"$source.new/version"
    mv "$source.new" "$source"
    rm -rf "$dir/apt"
)

# The tests load three libraries from one folder.
build_libraries() {
    local libraries=$source/lib module
    mkdir -p "$libraries"
    cc -shared -fPIC -O2 -w -fno-strict-aliasing -fwrapv -D_GNU_SOURCE -I "$("$bin/pg_config" --includedir-server)" \
        -o "$libraries/regress.so" "$source/regress/regress.c"
    for module in refint autoinc; do
        cp "$("$bin/pg_config" --pkglibdir)/$module.so" "$libraries/"
    done
}

# ---- servers ----

# What pg_regress sets for a server and a database that it makes itself.
read -ra init_options <<<"${STRIDE:---dense-sequences}"
server_settings="max_prepared_transactions = 2
fsync = off"
prepare_database() {
    local setting
    for setting in lc_messages=C lc_monetary=C lc_numeric=C lc_time=C bytea_output=hex timezone_abbreviations=Default; do
        query "$1" -c "ALTER DATABASE $database SET ${setting%=*} TO '${setting#*=}'"
    done
}

# ---- one suite ----

count() {
    find "$1" -name '*.out' 2>/dev/null | wc -l
}

# run_suite SUITE SYSTEM PORT: leaves the results in $dir/SUITE/SYSTEM.  Both systems write to one folder, since its name is
# in what tests show.
run_suite() {
    local suite=$1 system=$2 port=$3 out=$dir/$1/out program options status=0 began=$SECONDS
    rm -rf "$out"
    own_folder "$out"
    case $suite in
    regress) program=$pgxs_test/regress/pg_regress options=(--schedule="$source/regress/parallel_schedule") ;;
    isolation) program=$pgxs_test/isolation/pg_isolation_regress options=(--schedule="$source/isolation/isolation_schedule") ;;
    esac
    [ -n "${PARALLEL:-}" ] || options+=(--max-connections=1)
    # It is in the background so that this script reacts to a signal at once.
    PGISOLATIONTIMEOUT=60 as_user timeout -k 10 "${SUITE_SECONDS:-3600}" "$program" --use-existing --dbname=$database \
        --host=127.0.0.1 --port="$port" --user=postgres --bindir="$source/bin" --inputdir="$source/$suite" --outputdir="$out" \
        --dlpath="$source/lib" "${options[@]}" >"$dir/$suite/$system.log" 2>&1 &
    running=$!
    wait $running || status=$?
    running=
    [ $status -le 1 ] || { tail -n 5 "$dir/$suite/$system.log" >&2; say "$suite, $system: the suite ended with status $status" >&2; }
    rm -rf "${dir:?}/$suite/$system"
    mv "$out" "$dir/$suite/$system"
    say "$suite, $system: $(count "$dir/$suite/$system/results") tests in $((SECONDS - began)) s"
}

# Whether test $2 of suite $1 shows the same on both systems.  PostgreSQL's expected results count as the plain server's:
# some tests have several, by how plans and timing turn out.
same() {
    local theirs
    for theirs in "$dir/$1/plain/results/$2.out" "$source/$1/expected/$2.out" "$source/$1/expected/$2"_[0-9].out; do
        [ ! -e "$theirs" ] || ! diff -w "$theirs" "$dir/$1/cluster/results/$2.out" >/dev/null 2>&1 || return 0
    done
    return 1
}

# What each message that only the cluster shows says about why a test differs.
causes="serializable|due to read/write dependencies among transactions
prepare|cannot PREPARE a transaction that has used onetrip tables
concurrently|index \".*\" is not valid yet
logical|cannot replicate what a subscription with
large object|cannot replicate a large object
tablespace|cannot replicate (CREATE or DROP TABLESPACE|REINDEX with TABLESPACE)
rewrite|cannot replicate ALTER COLUMN TYPE
temporary|cannot make a temporary table a child|cannot replicate (DROP of temporary|a (definition|value|USING).* temporary)
OID|cannot replicate (a value of type|a statement about \"pg_toast)
local|will stay on this server
refused|cannot replicate |cannot update or delete rows of table
conflict|could not (commit|serialize access due to concurrent)|canceled .* in favor|was first"

# causes_of DIFF: all that fit, with commas; - if there are none.  `refused` is for those that fit nothing else.
causes_of() {
    local cause pattern seen=
    while IFS='|' read -r cause pattern; do
        [ "$cause" != refused ] || [ -z "$seen" ] || continue
        ! grep -aqE "^> .*($pattern)" "$1" || seen=$seen,$cause
    done <<<"$causes"
    seen=${seen#,}
    echo "${seen:--}"
}

# Compares what was seen with the list: each line there has suite, test, causes, and why.  A test whose cause is `timing` may
# differ or not.
compare() {
    local suite=$1 work=$dir/$1 test seen why wrong=0
    rm -rf "$work/diffs"
    mkdir -p "$work/diffs"
    for test in $(sed -n 's/^test: //p' "$source/$suite/"*_schedule); do
        same "$suite" "$test" && continue
        diff "$work/plain/results/$test.out" "$work/cluster/results/$test.out" >"$work/diffs/$test" 2>&1 || true
        printf '%s\t%s\n' "$test" "$(causes_of "$work/diffs/$test")"
    done | LC_ALL=C sort >"$work/differing.tsv"
    awk -F '\t' -v suite="$suite" '$1 == suite {print $2 "\t" $3}' "$list" | LC_ALL=C sort >"$work/listed.tsv"
    while IFS=$'\t' read -r test seen; do
        why=$(awk -F '\t' -v test="$test" '$1 == test {print $2}' "$work/listed.tsv")
        [ "$why" != "$seen" ] && [ "$why" != timing ] || continue
        wrong=1
        say "$suite/$test differs${why:+ by other causes than listed}: $seen: $(grep -am1 -E '^> .*(ERROR|FATAL|WARNING):' \
            "$work/diffs/$test" | cut -c 3-100)"
    done <"$work/differing.tsv"
    for test in $(awk -F '\t' '$2 != "timing" {print $1}' "$work/listed.tsv" | LC_ALL=C comm -13 <(cut -f 1 "$work/differing.tsv") -); do
        wrong=1
        say "$suite/$test is listed and does not differ any more"
    done
    # These are wrong wherever they are.
    if grep -aE '^> .*(server closed the connection|XX000|cache lookup failed|could not open relation with OID|lacks attribute)' \
        "$work/diffs/"* >"$work/internal.txt"; then
        wrong=1
        say "$suite: internal errors: $work/internal.txt"
    fi
    say "$suite: $(wc -l <"$work/differing.tsv") of $(count "$work/plain/results") tests differ," \
        "$(wc -l <"$work/listed.tsv") are listed: $work/diffs"
    return $wrong
}

# Writes the list anew from what was seen; what it says about tests that stay is kept.
write_list() {
    local suite test seen why
    for suite in regress isolation; do
        [ -e "$dir/$suite/differing.tsv" ] || continue
        while IFS=$'\t' read -r test seen; do
            why=$(awk -F '\t' -v suite="$suite" -v test="$test" '$1 == suite && $2 == test {print $4}' "$list")
            printf '%s\t%s\t%s\t%s\n' "$suite" "$test" "$seen" "$why"
        done <"$dir/$suite/differing.tsv"
    done >"$dir/list"
    { head -n 1 "$list"; cat "$dir/list"; } >"$list.new"
    mv "$list.new" "$list"
}

# ---- all of it ----

if [ "${suites[*]}" = --write ]; then
    write_list
    exit
fi
for suite in "${suites[@]}"; do
    case $suite in regress | isolation) ;; *) sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
done
[ -x "$pgxs_test/regress/pg_regress" ] || fail "pg_regress is missing: install postgresql-server-dev-$major"
mkdir -p "$dir"
chmod 755 "$dir"
[ -e "$source/version" ] || fetch
build_libraries
status=0
for suite in "${suites[@]}"; do
    work=$dir/$suite
    rm -rf "$work"
    mkdir -p "$work"
    chmod 755 "$work"
    # If root runs this, the nodes become another user, which may be unable to reach the checkout.
    cp "${ONETRIP:-${CARGO_TARGET_DIR:-target}/release/onetrip}" "$work/onetrip"
    chmod 755 "$work/onetrip"
    start_plain "$work"
    prepare_database "${ports[0]}"
    run_suite "$suite" plain "${ports[0]}"
    stop_all
    start_cluster "$work"
    prepare_database "${ports[0]}"
    run_suite "$suite" cluster "${ports[0]}"
    judge_regions "$work" && equal=yes || equal=no
    stop_all
    compare "$suite" || status=1
    if [ "$equal" = yes ]; then
        say "$suite: all regions are equal"
        rm -rf "$work/server" "$work/nodes"
    else
        status=1
        say "$suite: regions are NOT equal, or a server crashed:"
        head -n 20 "$work/regions.txt"
    fi
done
exit $status
