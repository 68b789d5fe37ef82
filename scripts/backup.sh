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

# What the JSON file says of this name.
said() {
    sed -n "s/^ *\"$2\": *\"\{0,1\}\([^\",]*\)\"\{0,1\},*\$/\1/p" "$1"
}

made=$backups/$(date -u +%Y-%m-%dT%H%M%SZ)
"$onetrip" backup --data "$node" --to "$made"

# Only complete backups count, which have a manifest; their names sort by time.  Others are left for a person to look at.
others=()
for folder in "$backups"/*/; do
    folder=${folder%/}
    # The new one stays, even if the clock has been set back.
    if [ -f "$folder/manifest.json" ] && [ "$folder" != "$made" ]; then others+=("$folder"); fi
done
while [ ${#others[@]} -ge "$keep" ]; do
    echo "removing ${others[0]}"
    # The manifest goes first: if the removal is interrupted, what remains does not count as a backup.
    rm -f "${others[0]}/manifest.json"
    rm -rf "${others[0]}"
    others=("${others[@]:1}")
done

# The first entry that a backup needs.  Backups of another cluster, such as the one from before a restore, have positions
# that say nothing of this archive.
if [ ! -f "$archive/archive.json" ]; then
    echo "$archive holds no archive: is it mounted?" >&2
    exit 1
fi
cluster=$(said "$archive/archive.json" cluster)
needed=
for folder in "$made" ${others[@]+"${others[@]}"}; do
    [ "$(said "$folder/manifest.json" cluster)" = "$cluster" ] || continue
    first=$(($(said "$folder/manifest.json" checkpoint) + 1))
    if [ -z "$needed" ] || [ "$first" -lt "$needed" ]; then needed=$first; fi
done
[ -n "$needed" ] || exit 0

# A segment can be removed when the one after it begins at or before that entry.
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
