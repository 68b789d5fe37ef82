#!/bin/bash
# Makes a copy of PostgreSQL whose `postgres` runs under a memory checker, with the extension and the tests' library in it.
#
#   scripts/postgres-checked.sh asan|valgrind DIR
#
# asan: the extension is built with AddressSanitizer and UndefinedBehaviorSanitizer; the first finding ends the server with
#       SIGABRT and is in its log.  Leaks are not looked for: PostgreSQL frees memory together with its memory context.
# valgrind: findings go to /var/tmp/onetrip-valgrind.PID.log, one file for each process.
# In both cases PostgreSQL itself is Debian's build.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
kind=$1
copy=$(realpath -m "$2")
cd "$(dirname "$0")/.."

flags=-fno-omit-frame-pointer
[ "$kind" = asan ] && flags="$flags -fsanitize=address,undefined -fno-sanitize-recover=all"
bin=$copy/usr/lib/postgresql/15/bin
scripts/postgres-copy.sh "$copy" COPT="$flags"
make --no-print-directory -s -j "$(nproc)" -C "$copy/build" PG_CONFIG="$bin/pg_config" COPT="$flags" test/unit/onetrip_unit.so

if [ ! -e "$bin/postgres.plain" ]; then
    mv "$bin/postgres" "$bin/postgres.plain"
fi
case $kind in
asan)
    # AddressSanitizer's runtime must be initialized before any library's constructor runs: libgpg-error's calls gettext,
    # which holds a lock while it allocates memory, and the initialization of the runtime takes that lock again.
    printf '%s\n' '#include <stdlib.h>' \
        '__attribute__((constructor)) static void start(void) { void *volatile p = malloc(1); free(p); }' >"$copy/first.c"
    gcc -shared -fPIC -O0 -Wl,-z,initfirst -o "$copy/first.so" "$copy/first.c"
    cat >"$bin/postgres" <<END
#!/bin/bash
export LD_PRELOAD="$(realpath "$(gcc -print-file-name=libasan.so)") $copy/first.so"
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:disable_coredump=1 UBSAN_OPTIONS=print_stacktrace=1:abort_on_error=1
exec -a "$bin/postgres" "$bin/postgres.plain" "\$@"
END
    ;;
valgrind)
    cat >"$bin/postgres" <<END
#!/bin/bash
exec valgrind --quiet --leak-check=no --undef-value-errors=yes --num-callers=25 --suppressions="$PWD/extension/test/valgrind.supp" \
    --log-file=/var/tmp/onetrip-valgrind.%p.log "$bin/postgres.plain" "\$@"
END
    ;;
*)
    echo "scripts/postgres-checked.sh: the checker must be asan or valgrind, not $kind" >&2
    exit 2
    ;;
esac
chmod 755 "$bin/postgres"
