#!/bin/bash
# Compiles the extension against the headers of the PostgreSQL versions that Debian has in other releases, warnings being
# errors.  Nothing is linked or installed; the headers are unpacked below DIR (default: target/headers).
#
#   scripts/compile-versions.sh [DIR]
#
# apt keeps its own lists there, so the machine's stay as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(realpath -m "${1:-target/headers}")
# Version and the release that has it; Debian has no 16.
versions="15:bookworm 17:trixie 18:sid"

fail() {
    echo "compile-versions: $*" >&2
    exit 1
}

mkdir -p "$dir/lists/partial" "$dir/archives/partial"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $keyring ] || fail "$keyring is missing: install debian-archive-keyring"
: >"$dir/sources.list"
for version in $versions; do
    echo "deb [signed-by=$keyring] http://deb.debian.org/debian ${version#*:} main" >>"$dir/sources.list"
done
apt=(apt-get -qq -o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$dir/lists"
    -o Dir::State::Status="$dir/status" -o Dir::Cache="$dir" -o APT::Sandbox::User=)
: >"$dir/status"
"${apt[@]}" update

# Debian's headers are made for its own libc, which may have functions that this one lacks.
echo '#include <stddef.h>
extern size_t strlcpy(char *dst, const char *src, size_t size);' >"$dir/libc.h"

for version in $versions; do
    number=${version%%:*}
    release=${version#*:}
    (cd "$dir" && "${apt[@]}" -t "$release" download "postgresql-server-dev-$number")
    rm -rf "${dir:?}/$number"
    for package in "$dir"/postgresql-server-dev-"$number"_*.deb; do
        dpkg-deb -x "$package" "$dir/$number"
        rm "$package"
    done
    headers=$dir/$number/usr/include/postgresql/$number
    # As PostgreSQL compiles itself, from 16 on.
    shadow=
    [ "$number" -lt 16 ] || shadow=-Wshadow=compatible-local
    for points in "" -DONETRIP_STOP_POINTS; do
        for file in extension/src/*.c extension/src/*/*.c extension/test/unit/*.c; do
            # shellcheck disable=SC2086
            cc -std=gnu11 -O2 -fPIC -fsyntax-only -Werror -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare \
                -Wno-missing-field-initializers -Wmissing-prototypes -Wpointer-arith -Wvla -Wendif-labels \
                -Wmissing-format-attribute -Wimplicit-fallthrough=3 -Wcast-function-type $shadow \
                -Wformat-security -Wno-format-truncation -Wno-stringop-truncation -fno-strict-aliasing -fwrapv -D_GNU_SOURCE \
                $points -include "$dir/libc.h" -I extension/src -I "$headers/server" -I "$headers/internal" "$file" ||
                fail "$file does not compile for PostgreSQL $number"
        done
    done
    echo "compile-versions: PostgreSQL $number: no warnings"
done
