#!/bin/bash
# Runs `cargo test` with these arguments, and fails if no test ran: to cargo, a filter that fits none is no mistake.
#
#   scripts/cargo-test.sh ARGUMENT...
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test "$@" | tee "$log"
grep -q '^test result: ok\. [1-9]' "$log" || { echo "no test ran: cargo test $*" >&2; exit 1; }
