#!/bin/bash
# Builds the extension with stop points, beside the normal build, and runs the tests that need it.
#
#   scripts/test-outcomes.sh TARGET_FOLDER
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
mkdir -p "$1"
copy=$(realpath "$1")/postgres-stop-points
# If root starts them, the servers run as the user postgres, which may be unable to reach the checkout.
if [ "$(id -u)" = 0 ] && ! setpriv --reuid=nobody --regid=nogroup --clear-groups test -x "$(dirname "$copy")"; then
    copy=/var/tmp/onetrip-postgres-stop-points
fi
scripts/postgres-copy.sh "$copy" STOP_POINTS=1
export ONETRIP_POSTGRES_BIN=$copy/usr/lib/postgresql/15/bin
exec scripts/cargo-test.sh --release --locked -p onetrip-lab --test cluster outcomes -- --ignored --test-threads=1 --nocapture
