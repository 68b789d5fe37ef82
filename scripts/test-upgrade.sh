#!/bin/bash
# Builds the previous release beside this one, and runs the tests of rolling upgrades between the two (crates/lab/tests/upgrade).
#
#   scripts/test-upgrade.sh TARGET_FOLDER [FILTER]
#
# The previous release is the commit or tag in scripts/previous-release.  Of either release the tests get what is shipped: the
# command and the extension's files.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
mkdir -p "$1"
target=$(realpath "$1")
shift
commit=$(git rev-parse --verify "$(cat scripts/previous-release)^{commit}")
work=$target/previous
# If root starts them, the servers run as the user postgres, which may be unable to reach the checkout.
releases=$work/releases
if [ "$(id -u)" = 0 ] && ! setpriv --reuid=nobody --regid=nogroup --clear-groups test -x "$target"; then
    releases=/var/tmp/onetrip-releases
fi
mkdir -p "$work" "$releases"

if [ "$(git -C "$work/source" rev-parse HEAD 2>/dev/null)" != "$commit" ]; then
    rm -rf "$work/source"
    git worktree prune
    git worktree add --quiet --force --detach "$work/source" "$commit"
fi
# Libraries of others are the same mostly, and are not built again.
if [ ! -d "$work/target/release" ] && [ -d "$target/release/deps" ]; then
    mkdir -p "$work/target/release"
    cp -a "$target/release/"{deps,build,.fingerprint} "$work/target/release/"
fi

# build NAME SOURCE TARGET_FOLDER
build() {
    (cd "$2" && CARGO_TARGET_DIR=$3 ONETRIP_LOGS=$target/log "$OLDPWD/scripts/quiet.pl" "$target/log/upgrade-$1.log" "building the $1 release" \
        cargo build --release --locked -p onetrip-cli --bin onetrip)
    "$2/scripts/postgres-copy.sh" "$releases/postgres-$1"
    mkdir -p "$releases/$1/extension"
    rm -f "$releases/$1/extension/"*
    install -m 755 "$3/release/onetrip" "$releases/$1/onetrip"
    install -m 644 "$releases/postgres-$1/usr/lib/postgresql/15/lib/onetrip.so" "$releases/$1/onetrip.so"
    install -m 644 "$2"/extension/onetrip.control "$2"/extension/onetrip--*.sql "$releases/$1/extension/"
}
# As it was shipped.
(unset CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS; build previous "$work/source" "$work/target")
build present "$PWD" "$target"
rm -rf "$releases/postgres"
cp -a "$releases/postgres-present" "$releases/postgres"
rm -rf "$releases/postgres/build" "$releases/postgres/usr/include"
ONETRIP_RELEASES=$releases exec scripts/cargo-test.sh --release --locked -p onetrip-lab --test upgrade -- --ignored --test-threads=1 --nocapture "$@"
