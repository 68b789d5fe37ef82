#!/bin/bash
# Tries scripts/quiet.pl with commands that print what cargo prints: what is shown, what goes to the log, and what becomes of
# a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "test-quiet: $*" >&2
    cat "$work"/* >&2
    exit 1
}

scripts/quiet.pl "$work/log" trying sh -c 'echo one; echo two >&2' >"$work/shown" 2>&1
[ ! -s "$work/shown" ] || fail "something is said about a command that had nothing to do"
[ "$(cat "$work/log")" = "one
two" ] || fail "the log is not what the command printed"

scripts/quiet.pl "$work/log" trying sh -c 'printf "   Building [=>  ] 100/300: serde\r"; sleep 2
    printf "   Building [==> ] 200/300: tokio\r"; sleep 2; echo "warning: unused"; echo "    Finished"' >"$work/shown" 2>&1
grep -Eqx "trying: (100|200) of 300 parts.* \(log: $work/log\)" "$work/shown" || fail "it is not shown how far the command is"
grep -Eqx "trying: done in [0-9]+ s, with 1 warning \(log: $work/log\)" "$work/shown" || fail "the end is not shown"
! grep -q Building "$work/log" || fail "the log contains what was counted"

status=0
scripts/quiet.pl "$work/log" trying sh -c 'echo "error: this is wrong"; exit 101' >"$work/shown" 2>&1 || status=$?
[ $status = 101 ] || fail "the failure has the status $status"
grep -qx "error: this is wrong" "$work/shown" || fail "the reason is not shown"
grep -qx "all of it: $work/log" "$work/shown" || fail "it is not said where the log is"
