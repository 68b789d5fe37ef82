#!/bin/bash
# Makes a backup of a node, keeps the last KEEP backups, and removes the segments of the archive that none of these needs.
# For cron or a systemd timer; exits with status 0 only if the new backup is complete.
#
#   backup.sh NODE_FOLDER BACKUPS_FOLDER ARCHIVE_FOLDER KEEP
#
# ONETRIP names the program (default: onetrip on the PATH, else the one installed with this script, else the one built here).
set -euo pipefail
if [ $# -ne 4 ] || ! [ "$4" -ge 1 ] 2>/dev/null; then
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
node=$1 backups=$2 archive=$3 keep=$4
here=$(dirname "$0")
# The PATH of cron lacks /usr/local/bin.
onetrip=${ONETRIP:-$(command -v onetrip || command -v "$here/../../bin/onetrip" || echo "$here/../target/release/onetrip")}

checkpoint_of() {
    sed -n 's/^ *"checkpoint": *\([0-9][0-9]*\),*$/\1/p' "$1/manifest.json"
}

"$onetrip" backup --data "$node" --to "$backups/$(date -u +%Y-%m-%dT%H%M%SZ)"

# Only complete backups count, which have a manifest; their names sort by time.  Others are left for a person to look at.
whole=()
for folder in "$backups"/*/; do
    if [ -f "$folder/manifest.json" ]; then whole+=("${folder%/}"); fi
done
while [ ${#whole[@]} -gt "$keep" ]; do
    echo "removing ${whole[0]}"
    # The manifest goes first: if the removal is interrupted, what remains does not count as a backup.
    rm -f "${whole[0]}/manifest.json"
    rm -rf "${whole[0]}"
    whole=("${whole[@]:1}")
done

# A segment can be removed when the one after it begins at or before the first entry that the oldest backup needs.
needed=$(($(checkpoint_of "${whole[0]}") + 1))
previous=
for segment in "$archive"/*.log; do
    [ -e "$segment" ] || continue
    first=$((16#$(basename "$segment" .log)))
    if [ -n "$previous" ] && [ "$first" -le "$needed" ]; then
        echo "removing $previous"
        rm -f "$previous"
    fi
    previous=$segment
done
