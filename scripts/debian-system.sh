#!/bin/bash
# Makes a fresh, minimal Debian 12 in a folder with debootstrap, from the mirror that apt of this machine uses; its own apt
# reads the same repositories of Debian.
#
#   scripts/debian-system.sh FOLDER CACHE       as root; CACHE: where fetched packages are kept
set -euo pipefail
[ $# = 2 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
fail() {
    echo "debian-system: $*" >&2
    exit 1
}
mkdir -p "$1" "$2"
# shellcheck disable=SC2016
repositories=$(apt-get indextargets --format '$(ORIGIN)|$(CODENAME)|$(REPO_URI)' 'Created-By: Packages' |
    awk -F '|' '$1 == "Debian" && $2 ~ /^bookworm/ { print $3, $2, "main" }' | sort -u)
mirror=$(awk '$2 == "bookworm" { print $1; exit }' <<<"$repositories")
[ -n "$mirror" ] || fail "apt of this machine does not read Debian 12 (bookworm): run apt-get update"
debootstrap --variant=minbase --cache-dir="$(realpath "$2")" --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    --include=ca-certificates bookworm "$1" "$mirror" || fail "debootstrap failed"
sed 's/^/deb /' <<<"$repositories" >"$1/etc/apt/sources.list"
