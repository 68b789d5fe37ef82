#!/bin/bash
# Other people's programs and their own tests: what do they see in a region of a cluster that they do not see on a plain
# server?  The differences must be those that docs/census/ecosystem.tsv lists, and after each program all regions must be
# equal.
#
#   scripts/test-ecosystem.sh [PROGRAM...]      all by default: django hibernate liquibase psycopg2 alembic sqlalchemy
#                                               asyncpg pgx rails node
#
#   ONETRIP=FILE                this onetrip command (default: target/release/onetrip)
#   ONETRIP_POSTGRES_BIN=DIR    PostgreSQL's programs, with the extension installed
#   ONETRIP_ECOSYSTEM_DIR=DIR   servers, results and logs (default: /var/tmp/onetrip-ecosystem)
#   DJANGO_TESTS="LABEL..."     these of Django's tests, by name
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
bin=${ONETRIP_POSTGRES_BIN:-/usr/lib/postgresql/15/bin}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
# What the package registries gave; the programs run as who called this, the servers as postgres.
packages=$target/ecosystem
dir=$(realpath -m "${ONETRIP_ECOSYSTEM_DIR:-/var/tmp/onetrip-ecosystem}")
list=$root/docs/census/ecosystem.tsv
database=ecosystem
server_settings="max_prepared_transactions = 10
fsync = off"
# shellcheck source=scripts/two-systems.sh
source scripts/two-systems.sh
# shellcheck source=scripts/debian.sh
source scripts/debian.sh
init_options=()

# ---- Python ----

python=$packages/venv/bin/python
requirements=(
    setuptools==75.6.0 wheel==0.45.1
    'psycopg[binary]==3.2.3' psycopg-pool==3.2.4 asgiref==3.8.1 sqlparse==0.5.3 jinja2==3.1.4 pillow==11.0.0 # django
    pytest==8.3.4 psycopg2-binary==2.9.10 sqlalchemy==2.0.36 alembic==1.14.0
    asyncpg==0.32.0 distro==1.9.0 # asyncpg
)
prepare_python() {
    local wanted="${requirements[*]}"
    [ "$(cat "$packages/venv/installed" 2>/dev/null)" != "$wanted" ] || return 0
    say "installing Python's packages"
    mkdir -p "$packages"
    /usr/bin/python3 -m venv --clear "$packages/venv"
    "$packages/venv/bin/pip" install -q --disable-pip-version-check "${requirements[@]}"
    echo "$wanted" >"$packages/venv/installed"
}

# source_of PACKAGE VERSION: PyPI's archive of its source, with its tests, unpacked to $packages/PACKAGE-VERSION.
source_of() {
    local name=$1-$2
    [ ! -e "$packages/$name" ] || return 0
    say "fetching $name"
    rm -rf "$packages/fetched"
    "$packages/venv/bin/pip" download -q --disable-pip-version-check --no-deps --no-binary "$1" -d "$packages/fetched" "$1==$2"
    mkdir "$packages/fetched/source"
    tar -C "$packages/fetched/source" --strip-components=1 -xf "$packages/fetched/"*.tar.gz
    mv "$packages/fetched/source" "$packages/$name"
}

# ---- Django ----

DJANGO=5.2.8
# What uses the database in a way of its own; the other tests are about models, templates, forms.
django_tests=(aggregation backends basic bulk_create cache composite_pk constraints custom_pk datatypes db_functions
    delete distinct_on_fields expressions expressions_case expressions_window fixtures force_insert_update
    get_or_create indexes inspectdb introspection lookup many_to_many migrate_signals
    migration_test_data_persistence migrations migrations2 model_fields model_indexes model_inheritance
    multiple_database ordering postgres_tests queries raw_query schema select_for_update serializers sessions_tests
    test_utils timezones transaction_hooks transactions unmanaged_models update)
django_prepare() {
    prepare_python
    source_of django "$DJANGO"
}
django_run() {
    local -a tests=("${django_tests[@]}")
    [ -z "${DJANGO_TESTS:-}" ] || read -ra tests <<<"$DJANGO_TESTS"
    cd "$packages/django-$DJANGO/tests"
    PYTHONPATH=$root/scripts/ecosystem/django:.. PYTHONWARNINGS=ignore "$python" runtests.py --settings=onetrip_settings \
        --keepdb --noinput --parallel=1 "${tests[@]}"
}

# ---- psycopg2, Alembic, SQLAlchemy, asyncpg ----

pytest() {
    PYTHONPATH=$root/scripts/ecosystem/pytest "$python" -m pytest -q -p onetrip_pytest -p no:cacheprovider --maxfail=10000 "$@"
}

psycopg2_prepare() {
    prepare_python
    source_of psycopg2 2.9.10
}
psycopg2_run() {
    cd "$packages/psycopg2-2.9.10"
    PSYCOPG2_TESTDB=$database PSYCOPG2_TESTDB_HOST=127.0.0.1 PSYCOPG2_TESTDB_PORT=$ECOSYSTEM_PORT PSYCOPG2_TESTDB_USER=postgres \
        pytest tests
}

# What the tests of Alembic and SQLAlchemy want to find in a database.
want_schemas() {
    local what
    for what in 'SCHEMA test_schema' 'SCHEMA test_schema_2' 'EXTENSION hstore' 'EXTENSION citext'; do
        query "$ECOSYSTEM_PORT" -c "CREATE $what"
    done
}

alembic_prepare() {
    prepare_python
    source_of alembic 1.14.0
}
alembic_run() {
    want_schemas
    cd "$packages/alembic-1.14.0"
    pytest --dburi "postgresql+psycopg2://postgres@127.0.0.1:$ECOSYSTEM_PORT/$database" tests
}

sqlalchemy_prepare() {
    prepare_python
    source_of sqlalchemy 2.0.36
}
sqlalchemy_run() {
    want_schemas
    cd "$packages/sqlalchemy-2.0.36"
    # Only what uses a database; the other tests compare SQL text.  Thousands more reflect many tables at once, by all
    # combinations of what can be asked, and compare operators of ranges with those of Python.
    pytest --backend-only -k 'not get_multi and not Range' \
        --dburi "postgresql+psycopg2://postgres@127.0.0.1:$ECOSYSTEM_PORT/$database" \
        test/dialect/postgresql test/dialect/test_suite.py test/engine
}

asyncpg_prepare() {
    prepare_python
    source_of asyncpg 0.32.0
    # Two tests connect to the first database by its name.
    sed -i "s/database='postgres'/database='$database'/" "$packages/asyncpg-0.32.0/tests/test_cache_invalidation.py"
}
asyncpg_run() {
    cd "$packages/asyncpg-0.32.0"
    # The module is that of the wheel, not the folder here.  Regions offer TLS, which delays what two tests expect after a
    # connection was forgotten.  Left out are tests that start servers of their own, if they do not leave out themselves, and
    # those of how its source is written.
    PYTHONSAFEPATH=1 PGHOST=127.0.0.1 PGPORT=$ECOSYSTEM_PORT PGUSER=postgres PGDATABASE=$database PGSSLMODE=disable \
        pytest -k 'not TestConnectionAttributes and not TestGssAuthentication and not TestCodeQuality' tests
}

# ---- Hibernate, Liquibase ----

java=$packages/java
java_prepare() {
    ! cmp -s scripts/ecosystem/java/pom.xml "$java/pom.xml" || return 0
    say "fetching Java's packages"
    rm -rf "$java"
    mkdir -p "$java"
    cp scripts/ecosystem/java/pom.xml "$java/pom.new"
    mvn -q -B -f "$java/pom.new" dependency:copy-dependencies -DoutputDirectory="$java/lib"
    mv "$java/pom.new" "$java/pom.xml"
}

hibernate_prepare() {
    java_prepare
    javac -cp "$java/lib/*" -d "$java/classes" scripts/ecosystem/java/Hibernate.java
}
hibernate_run() {
    java -cp "$java/classes:$java/lib/*" Hibernate
}

liquibase_prepare() {
    java_prepare
}
# step NAME COMMAND...: a test that is a command.
step() {
    local name=$1 outcome=ok
    shift
    echo "---- $name"
    "$@" || outcome=failed
    printf '%s\t%s\t\n' "$name" "$outcome" >>"$ECOSYSTEM_RESULTS"
}
liquibase() {
    local port=$1
    shift
    # The log is kept for what the commands print, which says what was wrong.
    (cd scripts/ecosystem/java && java -cp "$java/lib/*" liquibase.integration.commandline.LiquibaseCommandLine --log-level=OFF \
        --changelog-file=changelog.yaml --url="jdbc:postgresql://127.0.0.1:$port/$database" --username=postgres --password= "$@")
}
liquibase_run() {
    local ports
    read -ra ports <<<"$ECOSYSTEM_PORTS"
    step update_to_tag liquibase "${ports[0]}" update-to-tag --tag=in-the-changelog
    step update liquibase "${ports[0]}" update
    step tag liquibase "${ports[0]}" tag --tag=second
    step tag_exists liquibase "${ports[0]}" tag-exists --tag=second
    step status liquibase "${ports[0]}" status
    step roll_back_two liquibase "${ports[0]}" rollback-count --count=2
    step update_again liquibase "${ports[0]}" update
    step roll_back_to_tag liquibase "${ports[0]}" rollback --tag=in-the-changelog
    step rehearse_rollback liquibase "${ports[0]}" update-testing-rollback
    step checksums liquibase "${ports[0]}" clear-checksums
    step generate_changelog liquibase "${ports[0]}" generate-changelog \
        --changelog-file="$dir/generated.yaml" --overwrite-output-file=true
    step last_region_has_nothing_to_do liquibase "${ports[-1]}" update
    step last_region_rolls_back liquibase "${ports[-1]}" rollback --tag=in-the-changelog
    step drop_all liquibase "${ports[-1]}" drop-all
}

# ---- pgx ----

# The newest that Debian 12's Go builds.
PGX=v5.5.5
pgx_prepare() {
    local module
    [ ! -e "$packages/pgx-$PGX" ] || return 0
    say "fetching pgx"
    module=$(go mod download -json "github.com/jackc/pgx/v5@$PGX" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    [ -n "$module" ] || fail "go does not fetch pgx"
    rm -rf "$packages/pgx"
    mkdir -p "$packages"
    # The cache of modules is read-only, and a module there is not one's own to test.
    cp -r --no-preserve=mode "$module" "$packages/pgx"
    (cd "$packages/pgx" && go test -vet=off -run '^$' ./... >/dev/null) ||
        fail "the tests of pgx cannot be built"
    # It commits 100,000 times, one after the other.
    sed -i 's/^func TestListenNotifyWhileBusyIsSafe(/func leftOut(/' "$packages/pgx/conn_test.go"
    mv "$packages/pgx" "$packages/pgx-$PGX"
}
pgx_run() {
    cd "$packages/pgx-$PGX"
    query "$ECOSYSTEM_PORT" -f testsetup/postgresql_setup.sql
    local server="host=127.0.0.1 port=$ECOSYSTEM_PORT user=postgres dbname=$database"
    # The other packages need no database.
    PGX_TEST_DATABASE=$server PGX_TEST_TCP_CONN_STRING=$server go test -json -vet=off -count=1 -p 1 -timeout 300s \
        . ./pgconn ./pgtype/... ./pgxpool ./stdlib |
        python3 "$root/scripts/ecosystem/go/results.py"
}

# ---- Rails' ActiveRecord ----

rails=$packages/rails
# What uses the database in a way of its own; the other tests are about models, queries and their text.
rails_tests=(adapters/postgresql/ migration/ associations/has_and_belongs_to_many_associations adapter ar_schema comment
    connection_pool custom_locking database_statements date_time_precision defaults disconnected explain fixtures
    habtm_destroy_order hot_compatibility insert_all invertible_migration locking migration migrator
    multi_db_migrator multiple_db pooled_connections prepared_statement_status primary_keys query_cache
    relation/update_all relation/delete_all schema_dumper schema_loading statement_cache statement_invalid
    tasks/database_tasks tasks/postgresql_rake test_fixtures time_precision transaction_callbacks
    transaction_isolation transactions types view)
# The libraries are Debian's.
rails_prepare() {
    local wanted
    wanted=$(dpkg-query -W -f '${source:Version}' ruby-activerecord)
    [ "$(cat "$rails/version" 2>/dev/null)" != "$wanted" ] || return 0
    say "fetching the source package of Rails"
    fetch_source ruby-activerecord "$packages/fetched"
    rm -rf "$rails"
    mkdir -p "$rails"
    tar -C "$rails" --strip-components=2 -xf "$packages/fetched/"rails_*.orig.tar.* --wildcards '*/activerecord/test'
    # Four tests reach the second database through a foreign table, by a socket in the usual place.
    sed -i "s/OPTIONS (dbname /OPTIONS (host '127.0.0.1', port '#{ENV[\"PGPORT\"]}', dbname /" \
        "$rails/test/cases/adapters/postgresql/foreign_table_test.rb"
    echo "$wanted" >"$rails/version"
    rm -rf "$packages/fetched"
}
rails_run() {
    local test
    DB=postgres query "$ECOSYSTEM_PORT" -c "CREATE DATABASE ${database}_other TEMPLATE template0"
    cd "$rails"
    rm -f debug.log
    for test in "${rails_tests[@]}"; do
        case $test in
        */) printf '%s\n' "test/cases/$test"*_test.rb ;;
        *) echo "test/cases/${test}_test.rb" ;;
        esac
    done >files
    # Some tests connect by what libpq knows.
    ARCONFIG=$root/scripts/ecosystem/ruby/rails.yml PGHOST=127.0.0.1 PGPORT=$ECOSYSTEM_PORT PGUSER=postgres \
        ruby -I test -r "$root/scripts/ecosystem/ruby/results.rb" \
        -e 'File.readlines("files", chomp: true).each { |file| require "./#{file}" }' -- --seed 1
}

# ---- programs in JavaScript ----

node=$packages/node
node_prepare() {
    ! cmp -s scripts/ecosystem/node/package.json "$node/package.json" || return 0
    say "fetching packages from npm"
    rm -rf "$node"
    mkdir -p "$node/new"
    cp scripts/ecosystem/node/package.json "$node/new"
    (cd "$node/new" && npm install --silent --no-audit --no-fund --no-package-lock)
    mv "$node/new/"* "$node"
}
node_run() {
    # A module finds its packages beside itself.
    cp "$root/scripts/ecosystem/node/"*.mjs "$node"
    node "$node/main.mjs"
}

# ---- all of it ----

# run PROGRAM SYSTEM: leaves the results in $dir/PROGRAM/SYSTEM.tsv: test, outcome, what it said.
run() {
    local program=$1 system=$2 status=0 began=$SECONDS
    ECOSYSTEM_RESULTS=$dir/$1/$2.tsv
    : >"$ECOSYSTEM_RESULTS"
    export ECOSYSTEM_RESULTS ECOSYSTEM_PORT=${ports[0]} ECOSYSTEM_PORTS="${ports[*]}" ECOSYSTEM_DATABASE=$database
    ("${program}_run") >"$dir/$program/$system.log" 2>&1 &
    running=$!
    wait $running || status=$?
    running=
    say "$program, $system: $(cut -f 1 "$ECOSYSTEM_RESULTS" | sort -u | wc -l) tests," \
        "$(awk -F '\t' '$2 == "failed" {print $1}' "$ECOSYSTEM_RESULTS" | sort -u | wc -l) failed, in $((SECONDS - began)) s"
    [ -s "$ECOSYSTEM_RESULTS" ] || { tail -n 20 "$dir/$program/$system.log"; fail "$program, $system: ended with status $status"; }
}

# One line for each test: name and outcome; failed if any part of it failed.
outcomes() {
    awk -F '\t' '{if (!($1 in seen) || $2 == "failed") seen[$1] = $2} END {for (test in seen) print test "\t" seen[test]}' "$1" |
        LC_ALL=C sort
}

# The differences must be those of the list, where a name that ends with * stands for all that begin so.
compare() {
    local program=$1 work=$dir/$1 wrong=0 test
    outcomes "$work/plain.tsv" >"$work/plain.outcomes"
    outcomes "$work/cluster.tsv" >"$work/cluster.outcomes"
    LC_ALL=C comm -3 "$work/plain.outcomes" "$work/cluster.outcomes" | sed 's/^\t//' | cut -f 1 | LC_ALL=C sort -u >"$work/differing"
    awk -F '\t' -v program="$program" '$1 == program {print $2}' "$list" >"$work/listed"
    while IFS=$'\t' read -r what test; do
        [ "$what" = new ] || [ -z "${DJANGO_TESTS:-}" ] || continue
        wrong=1
        case $what in
        new) say "$program: $test differs: $(said "$work/cluster.tsv" "$test")" ;;
        gone) say "$program: $test is listed and does not differ any more" ;;
        esac
    done < <(awk -v listed="$work/listed" '
        function fits(test, name) {
            return name ~ /\*$/ ? index(test, substr(name, 1, length(name) - 1)) == 1 : test == name
        }
        BEGIN {while ((getline name < listed) > 0) used[name] = 0}
        {
            found = 0
            for (name in used) if (fits($0, name)) {used[name] = 1; found = 1}
            if (!found) print "new\t" $0
        }
        END {for (name in used) if (!used[name]) print "gone\t" name}' "$work/differing")
    # These are wrong wherever they are.
    if grep -aE 'server closed the connection|XX000|cache lookup failed|could not open relation with OID' "$work/cluster.tsv"; then
        wrong=1
        say "$program: internal errors"
    fi
    # What is ours must pass on a plain server.
    case $program in
    hibernate | liquibase | node)
        ! grep -P '\tfailed\t' "$work/plain.tsv" || { wrong=1; say "$program: failed on the plain server"; }
        ;;
    esac
    say "$program: $(wc -l <"$work/differing") of $(wc -l <"$work/plain.outcomes") tests differ"
    return $wrong
}
# said FILE TEST: what the test's first failure said.
said() {
    awk -F '\t' -v test="$2" '$1 == test && $2 == "failed" {print $3; exit}' "$1"
}

all=(django hibernate liquibase psycopg2 alembic sqlalchemy asyncpg pgx rails node)
programs=("$@")
[ ${#programs[@]} -gt 0 ] || programs=("${all[@]}")
for program in "${programs[@]}"; do
    [[ " ${all[*]} " = *" $program "* ]] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
done
mkdir -p "$dir"
chmod 755 "$dir"
status=0
for program in "${programs[@]}"; do
    work=$dir/$program
    rm -rf "$work"
    mkdir -p "$work"
    chmod 755 "$work"
    # If root runs this, the nodes become another user, which may be unable to reach the checkout.
    cp "${ONETRIP:-$target/release/onetrip}" "$work/onetrip"
    chmod 755 "$work/onetrip"
    "${program}_prepare"
    case $program in
    hibernate | liquibase | node) init_options=() ;;
    # One region writes, and tests want keys 1, 2, 3.
    *) init_options=(--dense-sequences) ;;
    esac
    start_plain "$work"
    run "$program" plain
    stop_all
    start_cluster "$work"
    run "$program" cluster
    # It would be in vain if nothing had been replicated.
    crossings=$(query "${ports[0]}" -c 'SELECT coalesce(sum(count), 0) FROM onetrip.crossings')
    [ "$crossings" -gt 10 ] || fail "$program: nothing was replicated"
    say "$program, cluster: $crossings round trips to other regions"
    judge_regions "$work" && equal=yes || equal=no
    stop_all
    compare "$program" || status=1
    if [ "$equal" = yes ]; then
        say "$program: all regions are equal"
        rm -rf "$work/server" "$work/nodes"
    else
        status=1
        say "$program: regions are NOT equal, or a server crashed:"
        head -n 20 "$work/regions.txt"
    fi
done
exit $status
