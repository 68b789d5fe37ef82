#!/bin/bash
# Checks that the product contains nothing that only tests need: the command, as it is shipped, depends neither on the lab
# nor on the checker, and is built without the features that are for tests.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=$(cargo tree --locked -p onetrip-cli -e normal --prefix none --format '{f}|{p}')
grep -q '|onetrip-node ' <<<"$tree" ||
    { echo "lint-product: the command does not depend on onetrip-node: was it renamed?" >&2; exit 1; }
if found=$(grep -E '\|onetrip-(lab|checker) |^([^|]*,)?(lab)(,[^|]*)?\|onetrip-' <<<"$tree"); then
    echo "lint-product: the onetrip command as it is shipped contains what only tests need (features|crate):" >&2
    sort -u <<<"$found" >&2
    exit 1
fi
