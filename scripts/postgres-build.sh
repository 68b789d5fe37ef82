#!/bin/bash
# Builds another PostgreSQL than the installed one from Debian's source package, with assertions, and with the extension in it.
#
#   scripts/postgres-build.sh MAJOR DIR     MAJOR: 18, the newest that Debian's sid has
#
# The first time takes ten minutes.  To use it, set ONETRIP_POSTGRES_BIN=DIR/usr/lib/postgresql/MAJOR/bin.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
major=$1
dir=$(realpath -m "$2")
cd "$(dirname "$0")/.."
# shellcheck source=scripts/debian.sh
. scripts/debian.sh
bin=$dir/usr/lib/postgresql/$major/bin
# One without assertions, as earlier versions of this script built it, is built anew.
if [ ! -e "$dir/built-with-assertions" ]; then
    rm -rf "${dir:?}/source" "${dir:?}/usr" && mkdir -p "$dir"
    fetch_source_of "postgresql-$major" sid "$dir/source"
    tar -C "$dir/source" -xf "$dir"/source/postgresql-"$major"_*.orig.tar.*
    # Its makefiles do not make what they need if another make has called them.
    (
        unset MAKELEVEL MAKEFLAGS MFLAGS
        cd "$dir"/source/postgresql-"$major".*/ &&
            ./configure --prefix="$dir/usr/lib/postgresql/$major" --with-icu --with-openssl --with-libxml --with-lz4 \
                --with-zstd --with-uuid=e2fs --enable-cassert &&
            make -j "$(nproc)" world-bin && make install-world-bin
    ) >"$dir/build.log" 2>&1 || { tail -n 20 "$dir/build.log" >&2; exit 1; }
    rm -rf "$dir/source"
    touch "$dir/built-with-assertions"
fi
make --no-print-directory -s -C extension PG_CONFIG="$bin/pg_config" install >/dev/null
# The server runs as another user than root.
chmod -R a+rX "$dir"
