#!/bin/bash
# Compiles the extension and its unit tests, with warnings as errors, against the headers of the installed PostgreSQL and
# those of the other versions that Debian has.  A version whose headers cannot be fetched is reported and skipped; with
# --strict that is an error.  Nothing is linked or installed.
#
#   scripts/compile-versions.sh [--strict] [DIR]     DIR: where fetched headers are kept for a week (default: target/headers)
set -euo pipefail
cd "$(dirname "$0")/.."
PG_CONFIG=${PG_CONFIG:-/usr/lib/postgresql/15/bin/pg_config}
strict=no
if [ "${1:-}" = --strict ]; then
    strict=yes
    shift
fi
dir=$(realpath -m "${1:-target/headers}")
# Each version with the release of Debian that has it; no release has 16.
versions="15:bookworm 17:trixie 18:sid"
# shellcheck source=scripts/debian.sh
. scripts/debian.sh

say() {
    echo "compile-versions: $*"
}

# Fetches the headers of version $1 from Debian's release $2 into folder $3.
fetch() {
    unpack_package "postgresql-server-dev-$1" "$2" "$3" && rm -rf "${3:?}/usr/lib" "${3:?}/usr/share" &&
        touch "$3/fetched" # last, so that an interrupted fetch is repeated
}

# compile VERSION HOW INCLUDES...: compiles each file, and once more those that stop points change.
compile() {
    local number=$1 how=$2 shadow=
    shift 2
    # PostgreSQL itself is compiled with this warning from version 16 on.
    [ "$number" -lt 16 ] || shadow=-Wshadow=compatible-local
    for points in "" -DONETRIP_STOP_POINTS; do
        # shellcheck disable=SC2086
        grep -lZ "${points:+STOP_POINT}" extension/src/*.c extension/src/*/*.c extension/test/unit/*.c |
            xargs -0 -n 1 -P "$(nproc)" cc -std=gnu11 -O2 -fPIC $how -Werror -Wall -Wextra -Wno-unused-parameter \
                -Wno-sign-compare -Wno-missing-field-initializers -Wmissing-prototypes -Wpointer-arith -Wvla \
                -Wendif-labels -Wmissing-format-attribute -Wimplicit-fallthrough=3 -Wcast-function-type $shadow \
                -Wformat-security -Wno-format-truncation -Wno-stringop-truncation -fno-strict-aliasing -fwrapv \
                -D_GNU_SOURCE $points -I extension/src "$@" || {
            say "the extension does not compile without warnings for PostgreSQL $number" >&2
            exit 1
        }
    done
    say "PostgreSQL $number: no warnings"
}

installed=$("$PG_CONFIG" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')
# To machine code, since some warnings come only from the optimizer.
compile "$installed" "-c -o /dev/null" -I "$("$PG_CONFIG" --includedir-server)"

mkdir -p "$dir"
# The fetched headers assume the libc of their own release, which may have functions that this machine's lacks.
echo '#include <stddef.h>
extern size_t strlcpy(char *dst, const char *src, size_t size);' >"$dir/libc.h"
for version in $versions; do
    number=${version%%:*}
    release=${version#*:}
    [ "$number" != "$installed" ] || continue
    if [ -z "$(find "$dir/$number/fetched" -mtime -7 2>/dev/null)" ] && ! fetch "$number" "$release" "$dir/$number"; then
        say "PostgreSQL $number: NOT CHECKED: its headers could not be fetched (Debian's release $release)" >&2
        [ $strict = no ] || exit 1
        continue
    fi
    headers=$dir/$number/usr/include/postgresql/$number
    compile "$number" -fsyntax-only -include "$dir/libc.h" -I "$headers/server" -I "$headers/internal"
done
