#!/bin/bash
# Copies Debian's PostgreSQL to a folder of its own and installs the extension there, so that another build of it (with stop
# points, with sanitizers, from another checkout) can run beside the installed one.
#
#   scripts/postgres-copy.sh DIR [make variables for the extension ...]
#
# To use it, set ONETRIP_POSTGRES_BIN=DIR/usr/lib/postgresql/15/bin.  Programs find their libraries by relative paths.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
copy=$(realpath -m "$1")
shift
cd "$(dirname "$0")/.."

for folder in usr/lib/postgresql/15 usr/share/postgresql/15 usr/include/postgresql/15; do
    if [ ! -d "$copy/$folder" ]; then
        mkdir -p "$copy/$(dirname "$folder")"
        cp -a "/$folder" "$copy/$folder.new"
        mv "$copy/$folder.new" "$copy/$folder"
    fi
done
# The sources are copied and built in DIR, so that object files of this build and of the checkout's do not mix.  Sources
# of an earlier copy are deleted first: a file that has moved since must not be compiled from its old place as well.
mkdir -p "$copy/build"
find "$copy/build" -name '*.[ch]' -delete
tar -C extension --exclude='*.o' --exclude='*.so' --exclude='*.bc' --exclude='.built-for-*' -cf - . | tar -C "$copy/build" -xf -
build() {
    make --no-print-directory -s -C "$copy/build" PG_CONFIG="$copy/usr/lib/postgresql/15/bin/pg_config" "$@"
}
build -j "$(nproc)" "$@"
build "$@" install >/dev/null
