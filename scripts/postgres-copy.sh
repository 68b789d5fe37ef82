#!/bin/bash
# Copies Debian's PostgreSQL to a folder of its own and installs the extension there, so that another build of it (with stop
# points, with sanitizers, of another checkout) can run beside the installed one.
#
#   scripts/postgres-copy.sh DIR [make variables for the extension ...]
#
# Then: ONETRIP_POSTGRES_BIN=DIR/usr/lib/postgresql/15/bin.  PostgreSQL finds its libraries relative to its programs.
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
# The sources are built elsewhere: another build's object files must not end up here, nor these there.
# Sources that have moved since must not be compiled from their old place as well.
mkdir -p "$copy/build"
find "$copy/build" -name '*.[ch]' -delete
tar -C extension --exclude='*.o' --exclude='*.so' --exclude='*.bc' -cf - . | tar -C "$copy/build" -xf -
make --no-print-directory -s -C "$copy/build" PG_CONFIG="$copy/usr/lib/postgresql/15/bin/pg_config" "$@" install >/dev/null
