#!/bin/bash
# PostgreSQL's own suites: what do they show in a region of a cluster that they do not show on a plain server?  The differences must be those that docs/census/pg-regress.tsv lists, and after each suite all regions must
# be equal.
#
#   scripts/pg-regress.sh [regress] [isolation] [contrib]      all by default
#   scripts/pg-regress.sh --write                    no run: writes the list anew from what the last one saw
#
#   ONETRIP=FILE               this onetrip command (default: target/release/onetrip)
#   ONETRIP_POSTGRES_BIN=DIR   PostgreSQL's programs, with the extension installed
#   ONETRIP_REGRESS_DIR=DIR    sources, results and logs (default: /var/tmp/onetrip-pg-regress)
#   PARALLEL=1                 tests in groups at the same time, as PostgreSQL runs them: some get 40001 then, at random, so
#                              what differs is told, and is no failure
#   SPREAD=1                   so, and the tests of a group run in all three regions: for the regression suite
#   STRIDE=--stride=8          sequences in shares, as a cluster has them by default
#   PGOPTIONS="-c default_transaction_isolation=serializable"  (for example) settings of all sessions, on both systems
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
bin=${ONETRIP_POSTGRES_BIN:-/usr/lib/postgresql/15/bin}
dir=$(realpath -m "${ONETRIP_REGRESS_DIR:-/var/tmp/onetrip-pg-regress}")
list=$root/docs/census/pg-regress.tsv
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(regress isolation contrib)
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
    tar -C "$source.new" --strip-components=1 -xf postgresql-"$major"_*.orig.tar.* --wildcards '*/contrib'
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

# Regions that work at the same time lose against each other.
[ -z "${SPREAD:-}" ] || export PGOPTIONS="${PGOPTIONS:-} -c onetrip.statement_retries=50"

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

# The modules whose tests run on a server that is there already, and whose extension is installed.
contrib_modules() {
    local makefile module
    for makefile in "$source"/contrib/*/Makefile; do
        module=$(basename "$(dirname "$makefile")")
        [ -e "$("$bin/pg_config" --sharedir)/extension/$module.control" ] || continue
        grep -q '^NO_INSTALLCHECK' "$makefile" || [ -z "$(contrib_tests "$module")" ] || echo "$module"
    done
}

# contrib_tests MODULE: as its Makefile says.
contrib_tests() {
    printf 'include Makefile\nprint-tests:\n\t@echo $(REGRESS)\n' |
        make -s -C "$source/contrib/$1" -f - USE_PGXS=1 PG_CONFIG="$bin/pg_config" print-tests
}

# All tests of a suite; those of a contrib module are called MODULE/TEST.
tests_of() {
    local module
    case $1 in
    contrib)
        for module in $(contrib_modules); do
            # shellcheck disable=SC2046
            printf "$module/%s\n" $(contrib_tests "$module")
        done
        ;;
    *) sed -n 's/^test: //p' "$source/$1/"*_schedule | tr ' ' '\n' ;;
    esac
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

# What a new database would be like: contrib modules expect one each.
empty_database() {
    query "$1" <<'END'
SET client_min_messages = error;
SELECT format('DROP TABLE IF EXISTS %s CASCADE', oid::regclass) FROM pg_class
WHERE relkind IN ('r', 'p') AND oid >= 16384 AND NOT EXISTS (
    SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid AND deptype = 'e')
\gexec
SELECT format('DROP EXTENSION IF EXISTS %I CASCADE', extname) FROM pg_extension WHERE extname NOT IN ('plpgsql', 'onetrip')
\gexec
SELECT format('DROP SCHEMA %I CASCADE', nspname) FROM pg_namespace
WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'onetrip')
\gexec
CREATE SCHEMA public AUTHORIZATION pg_database_owner;
GRANT USAGE ON SCHEMA public TO PUBLIC;
END
}

# dblink and postgres_fdw connect to the server on which they run, and look for its socket where Debian's are.
# link_socket FOLDER PORT
sockets=()
link_socket() {
    as_user ln -sf "$1/.s.PGSQL.$2" /var/run/postgresql/ || fail "dblink and postgres_fdw would find no server"
    sockets+=("/var/run/postgresql/.s.PGSQL.$2")
}
trap 'rm -f "${sockets[@]}"; stop_all || true' EXIT

# ---- one suite ----

count() {
    find "$1" -name '*.out' 2>/dev/null | wc -l
}

# spread DIR: makes a folder with a psql that runs each test in one of the regions, by the test's name, as soon as that region
# shows what the others have committed; prints the folder's name.
spread() {
    mkdir -p "$1/bin"
    cat >"$1/bin/psql" <<END
#!/bin/bash
ports=(${ports[*]})
export PGPORT=\${ports[\$((\$(cksum <<<"\$PGAPPNAME" | cut -d ' ' -f 1) % \${#ports[@]}))]}
"$source/bin/psql" -X -q -A -t -d $database -c 'SELECT onetrip.advance()' >/dev/null
exec "$source/bin/psql" "\$@"
END
    chmod 755 "$1/bin" "$1/bin/psql"
    echo "$1/bin"
}

# run_suite SUITE SYSTEM PORT: leaves the results in $dir/SUITE/SYSTEM.  Both systems write to one folder, since its name is
# in what tests show.
run_suite() {
    local suite=$1 system=$2 port=$3 out=$dir/$1/out programs=$source/bin began=$SECONDS module options=()
    rm -rf "$out"
    own_folder "$out"
    : >"$dir/$suite/$system.log"
    [ -n "${PARALLEL:-}${SPREAD:-}" ] || options+=(--max-connections=1)
    [ "$system" = plain ] || [ -z "${SPREAD:-}" ] || programs=$(spread "$dir/$suite")
    case $suite in
    regress) run_tests regress "$source/regress" --schedule="$source/regress/parallel_schedule" "${options[@]}" ;;
    isolation) run_tests isolation "$source/isolation" --schedule="$source/isolation/isolation_schedule" "${options[@]}" ;;
    contrib)
        for module in $(contrib_modules); do
            empty_database "$port"
            # shellcheck disable=SC2046
            run_tests regress "$source/contrib/$module" $(contrib_tests "$module")
            mkdir -p "$dir/$suite/$system.new"
            mv "$out/results" "$dir/$suite/$system.new/$module"
        done
        mv "$dir/$suite/$system.new" "$out/results"
        ;;
    esac
    rm -rf "${dir:?}/$suite/$system"
    mv "$out" "$dir/$suite/$system"
    say "$suite, $system: $(count "$dir/$suite/$system/results") tests in $((SECONDS - began)) s"
}

# run_tests PROGRAM INPUT OPTION...: for run_suite, whose variables it uses.
run_tests() {
    local name=$1 input=$2 program=$pgxs_test/regress/pg_regress status=0
    shift 2
    [ "$name" = regress ] || program=$pgxs_test/isolation/pg_isolation_regress
    # It is in the background so that this script reacts to a signal at once.
    PGISOLATIONTIMEOUT=60 as_user timeout -k 10 "${SUITE_SECONDS:-3600}" "$program" --use-existing --dbname=$database \
        --host=127.0.0.1 --port="$port" --user=postgres --bindir="$programs" --inputdir="$input" --outputdir="$out" \
        --dlpath="$source/lib" "$@" >>"$dir/$suite/$system.log" 2>&1 &
    running=$!
    wait $running || status=$?
    running=
    [ $status -le 1 ] || { tail -n 5 "$dir/$suite/$system.log" >&2; say "$suite, $system: the suite ended with status $status" >&2; }
}

# Whether test $2 of suite $1 shows the same on both systems.  PostgreSQL's expected results count as the plain server's:
# some tests have several, by how plans and timing turn out.
same() {
    local theirs expected
    [ "$1" = contrib ] && expected=$source/contrib/${2%/*}/expected/${2#*/} || expected=$source/$1/expected/$2
    for theirs in "$dir/$1/plain/results/$2.out" "$expected.out" "$expected"_[0-9].out; do
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
    local suite=$1 work=$dir/$1 test diff seen why wrong=0
    rm -rf "$work/diffs"
    mkdir -p "$work/diffs"
    tests_of "$suite" >"$work/tests"
    for test in $(<"$work/tests"); do
        same "$suite" "$test" && continue
        diff=$work/diffs/${test//\//.}
        diff "$work/plain/results/$test.out" "$work/cluster/results/$test.out" >"$diff" 2>&1 || true
        printf '%s\t%s\n' "$test" "$(causes_of "$diff")"
    done | LC_ALL=C sort >"$work/differing.tsv"
    awk -F '\t' -v suite="$suite" '$1 == suite {print $2 "\t" $3}' "$list" | LC_ALL=C sort >"$work/listed.tsv"
    while IFS=$'\t' read -r test seen; do
        why=$(awk -F '\t' -v test="$test" '$1 == test {print $2}' "$work/listed.tsv")
        [ "$why" != "$seen" ] && [ "$why" != timing ] || continue
        wrong=1
        say "$suite/$test differs${why:+ by other causes than listed}: $seen: $(grep -am1 -E '^> .*(ERROR|FATAL|WARNING):' \
            "$work/diffs/${test//\//.}" | cut -c 3-100)"
    done <"$work/differing.tsv"
    for test in $(awk -F '\t' '$2 != "timing" {print $1}' "$work/listed.tsv" | LC_ALL=C comm -13 <(cut -f 1 "$work/differing.tsv") -); do
        wrong=1
        say "$suite/$test is listed and does not differ any more"
    done
    # At random, since who loses is.
    [ -z "${PARALLEL:-}${SPREAD:-}" ] || wrong=0
    # A module that is not installed, or whose Makefile cannot be read, would not be missed otherwise.
    if [ "$(grep -c . "$work/tests")" -lt 110 ]; then
        wrong=1
        say "$suite: only $(grep -c . "$work/tests") tests"
    fi
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
    for suite in regress isolation contrib; do
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
    case $suite in regress | isolation | contrib) ;; *) sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
done
[ -x "$pgxs_test/regress/pg_regress" ] || fail "pg_regress is missing: install postgresql-server-dev-$major"
mkdir -p "$dir"
chmod 755 "$dir"
[ -e "$source/version" ] && [ -e "$source/contrib" ] || fetch
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
    link_socket "$work/server" "${ports[0]}"
    run_suite "$suite" plain "${ports[0]}"
    stop_all
    start_cluster "$work"
    prepare_database "${ports[0]}"
    link_socket "$work/nodes/a" "${ports[0]}"
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
