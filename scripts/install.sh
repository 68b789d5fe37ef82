#!/bin/bash
# Installs what `make build` has built, for `make install` and for the packages: the command with its manual pages,
# completions, the script for backups and the files by which systemd knows it, or the extension.
#
#   scripts/install.sh command BUILD_FOLDER     BUILD_FOLDER: of cargo, with release/ in it
#   scripts/install.sh extension                into the PostgreSQL that PG_CONFIG names
#
# DESTDIR is put before every path, PREFIX (/usr/local) is where the command goes.
set -euo pipefail
cd "$(dirname "$0")/.."
destination=${DESTDIR:-}
prefix=${PREFIX:-/usr/local}

put() { # put MODE FILE PATH: the folder is made if it is missing
    install -D -m "$1" "$2" "$destination$3"
}

case "${1:-}" in
    command)
        programs=$2/release
        for program in onetrip examples/pages; do
            [ -x "$programs/$program" ] || { echo "install: $programs/$program is missing: make build" >&2; exit 1; }
        done
        if "$programs/onetrip" --version | grep -q 'built for tests'; then
            echo "install: $programs/onetrip was built for tests, in which an overflow ends it: make build" >&2
            exit 1
        fi
        pages=$(mktemp -d)
        trap 'rm -rf "$pages"' EXIT
        "$programs/examples/pages" "$pages"
        put 755 "$programs/onetrip" "$prefix/bin/onetrip"
        for page in "$pages"/man1/*.1; do
            put 644 "$page" "$prefix/share/man/man1/${page##*/}"
        done
        put 644 "$pages/bash/onetrip" "$prefix/share/bash-completion/completions/onetrip"
        # Debian's zsh looks in a folder of its own for what packages bring.
        [ "$prefix" = /usr ] && zsh=vendor-completions || zsh=site-functions
        put 644 "$pages/zsh/_onetrip" "$prefix/share/zsh/$zsh/_onetrip"
        sed "s|@PREFIX@|$prefix|" packaging/onetrip@.service.in >"$pages/onetrip@.service"
        put 644 "$pages/onetrip@.service" "$prefix/lib/systemd/system/onetrip@.service"
        put 644 packaging/sysusers.conf "$prefix/lib/sysusers.d/onetrip.conf"
        put 644 packaging/tmpfiles.conf "$prefix/lib/tmpfiles.d/onetrip.conf"
        put 755 scripts/backup.sh "$prefix/share/onetrip/backup.sh"
        ;;
    extension)
        make --no-print-directory -s -C extension PG_CONFIG="$PG_CONFIG" DESTDIR="$destination" install >/dev/null
        ;;
    *)
        sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
esac
