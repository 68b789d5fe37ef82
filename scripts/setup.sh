#!/bin/bash
# Prepares this machine to build and run Onetrip: installs what is missing, builds the extension and installs it into
# PostgreSQL's folders.  Quick and silent when there is nothing to do.  For Debian 12, run by root or by a user with sudo.
#
#   scripts/setup.sh [tests|bench|lint|clients|ecosystem|console|packages|image|docs|postgres18]
#
# What the tools say goes to a log in ONETRIP_LOGS (target/log).
#
# tests: also PostGIS, for its types, and pg_cron, since it must be preloaded and bypasses the access method.
# bench: also ss, with which `make bench` counts packets.
# clients: also the languages and drivers of `make test-clients` that Debian has, HAProxy and pgbouncer; a language that is
# there already stays.
# ecosystem: also what installs from PyPI, Maven, npm and the proxy of Go modules for `make test-ecosystem`, and Ruby with
# Rails' ActiveRecord.
# console: also a browser for `make test-console`, and what makes its pictures small.
# packages, image: also debootstrap and systemd-nspawn for `make test-packages`, buildah for `make image`.
# postgres18: also what PostgreSQL 18 is built from for `make test-18`.
# lint, docs: also what `make lint` and `make docs` use; the extension is not built then.
set -euo pipefail
cd "$(dirname "$0")/.."

PG_VERSION=15
PG_CONFIG=${PG_CONFIG:-/usr/lib/postgresql/$PG_VERSION/bin/pg_config}
# The newest version that any pinned crate requires.
CARGO_NEEDED=1.88
CARGO_DENY=0.20.2
MDBOOK=0.5.4
logs=${ONETRIP_LOGS:-target/log}
root=()
[ "$(id -u)" = 0 ] || root=(sudo)

fail() {
    echo "setup: $*" >&2
    exit 1
}

as_root() {
    [ ${#root[@]} = 0 ] || command -v sudo >/dev/null ||
        fail "this needs root: run it as root or install sudo ($*)"
    "${root[@]}" "$@"
}

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Whether version $1 is at least $2.
at_least() {
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

cargo_is_new_enough() {
    command -v cargo >/dev/null && command -v rustc >/dev/null || return 1
    at_least "$(cargo --version | cut -d ' ' -f 2)" "$CARGO_NEEDED"
}

# Fails unless so many GiB are free on the disk of this folder, beside what is in it already.  A disk that runs full
# fails tests one by one, each for another reason.
need_room() {
    mkdir -p "$1"
    local free used
    free=$(df --output=avail -k "$1" | tail -n 1)
    used=$(du -sk "$1" | cut -f 1)
    [ $((free + used)) -ge $(($2 << 20)) ] ||
        fail "the disk of $1 has $((free >> 20)) GiB free; with the $((used >> 20)) GiB that are there, $2 are needed"
}

wanted=(build-essential pkg-config "postgresql-$PG_VERSION" "postgresql-server-dev-$PG_VERSION")
case "${1:-}" in
    "") ;;
    tests)
        # What is built takes six of them; clusters in /var/tmp the rest.
        need_room "${CARGO_TARGET_DIR:-target}" 10
        need_room /var/tmp/onetrip-room 4
        rmdir /var/tmp/onetrip-room
        wanted+=("postgresql-$PG_VERSION-postgis-3" "postgresql-$PG_VERSION-cron")
        ;;
    bench) wanted+=(iproute2) ;;
    clients)
        wanted+=(python3-psycopg libpostgresql-jdbc-java haproxy pgbouncer)
        command -v go >/dev/null || wanted+=(golang-go)
        command -v javac >/dev/null || wanted+=(default-jdk-headless)
        command -v npm >/dev/null || wanted+=(npm)
        ;;
    ecosystem)
        wanted+=(python3-venv libpq-dev ruby ruby-activerecord ruby-pg ruby-rack)
        command -v go >/dev/null || wanted+=(golang-go)
        command -v javac >/dev/null || wanted+=(default-jdk-headless)
        command -v mvn >/dev/null || wanted+=(maven)
        command -v npm >/dev/null || wanted+=(npm)
        ;;
    console)
        wanted+=(chromium pngquant)
        command -v npm >/dev/null || wanted+=(npm)
        ;;
    lint) wanted+=(shellcheck debian-archive-keyring) ;;
    packages) wanted+=(debootstrap debian-archive-keyring systemd-container) ;;
    postgres18)
        wanted+=(bison flex libicu-dev liblz4-dev libreadline-dev libssl-dev libxml2-dev libzstd-dev uuid-dev zlib1g-dev
            debian-archive-keyring)
        ;;
    image) wanted+=(buildah debootstrap debian-archive-keyring) ;;
    docs) ;;
    *) fail "unknown argument $1" ;;
esac
missing=()
for package in "${wanted[@]}"; do
    installed "$package" || missing+=("$package")
done
if ! cargo_is_new_enough; then
    # Debian 12 has a recent toolchain besides its usual one, in order to build browsers.
    if command -v cargo >/dev/null; then
        fail "$(command -v cargo) is $(cargo --version); Onetrip needs $CARGO_NEEDED or later: update it (rustup update)"
    fi
    missing+=(cargo-web rustc-web)
fi
if [ "${1:-}" = lint ]; then
    # rustup installs both with the toolchain.
    cargo clippy --version >/dev/null 2>&1 || missing+=(rust-web-clippy)
    cargo fmt --version >/dev/null 2>&1 || missing+=(rustfmt-web)
fi

if [ ${#missing[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || fail "there is no apt-get: install by hand what is missing: ${missing[*]}"
    echo "setup: installing ${missing[*]}"
    # The package would start a server of its own on port 5432, which nobody here needs.
    if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
        as_root mkdir -p /etc/postgresql-common
        echo 'create_main_cluster = false' | as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
    fi
    as_root true # asks for a password before anything else is printed
    # Nor does anybody need the services of these; `systemctl unmask` gives them back.
    for service in haproxy pgbouncer; do
        if [[ " ${missing[*]} " == *" $service "* ]] && [ ! -e "/etc/systemd/system/$service.service" ]; then
            as_root mkdir -p /etc/systemd/system
            as_root ln -sf /dev/null "/etc/systemd/system/$service.service"
        fi
    done
    scripts/quiet.pl "$logs/apt-update.log" "fetching Debian's lists of packages" "${root[@]}" apt-get update -q
    scripts/quiet.pl "$logs/apt-install.log" "installing packages" "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends -o Dpkg::Options::=--force-confold "${missing[@]}"
    cargo_is_new_enough ||
        fail "Debian offers no cargo $CARGO_NEEDED or later here: install the Rust toolchain (rustup) and try again"
fi
[ -x "$PG_CONFIG" ] || fail "$PG_CONFIG is missing although postgresql-server-dev-$PG_VERSION is installed"

if [ "${1:-}" = lint ]; then
    # Checks the licenses and known vulnerabilities of libraries.  Debian does not package it; building it takes minutes.
    command -v cargo-deny >/dev/null || scripts/quiet.pl "$logs/cargo-deny.log" "building cargo-deny" \
        cargo install cargo-deny --locked --version "$CARGO_DENY"
    exit
fi
if [ "${1:-}" = docs ]; then
    # Makes the site.  Without its web server, which would double the time that this takes.
    [ "$(mdbook --version 2>/dev/null)" = "mdbook v$MDBOOK" ] || scripts/quiet.pl "$logs/mdbook.log" "building mdBook" \
        cargo install mdbook --locked --version "$MDBOOK" --no-default-features --features search
    exit
fi

scripts/quiet.pl "$logs/extension.log" "building the extension" \
    make --no-print-directory -s -j "$(nproc)" -C extension PG_CONFIG="$PG_CONFIG"
libraries=$("$PG_CONFIG" --pkglibdir)
shared=$("$PG_CONFIG" --sharedir)/extension
same=yes
cmp -s extension/onetrip.so "$libraries/onetrip.so" || same=no
for file in extension/onetrip.control extension/onetrip--*.sql; do
    cmp -s "$file" "$shared/$(basename "$file")" || same=no
done
if [ $same = no ]; then
    echo "setup: installing the extension into $libraries"
    as_root make --no-print-directory -s -C extension PG_CONFIG="$PG_CONFIG" install >/dev/null
fi
