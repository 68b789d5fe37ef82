#!/bin/bash
# Builds an OCI image from the Debian packages of `make deb`, with packaging/Containerfile and without a daemon.
#
#   scripts/image.sh BUILD_FOLDER       the image goes to BUILD_FOLDER/image, the packages come from BUILD_FOLDER/debian
#
# BASE is the image to begin with (debian:12-slim), or `debootstrap`: then a Debian 12 is made here, for which no registry of
# images is needed.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
build=$(realpath "$1")
cd "$(dirname "$0")/.."
base=${BASE:-debian:12-slim}
ls "$build"/debian/onetrip_*.deb >/dev/null 2>&1 || { echo "image: there are no packages: make deb" >&2; exit 1; }
work=$(mktemp -d /var/tmp/onetrip-image.XXXXXX)
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
# Nothing of this stays in the user's own store of images.
store=(--root "$work/store" --runroot "$work/run")
trap 'rm -rf "$work"' EXIT
if [ "$base" = debootstrap ]; then
    scripts/quiet.pl "$build/log/debian-system.log" "making a Debian 12" \
        scripts/debian-system.sh "$work/system" "$build/debootstrap"
    container=$(buildah "${store[@]}" from scratch)
    buildah "${store[@]}" add -q "$container" "$work/system" / >/dev/null
    buildah "${store[@]}" commit -q "$container" localhost/debian:12 >/dev/null
    base=localhost/debian:12
fi
mkdir -p "$work/context"
cp -r "$build/debian" "$work/context/"
scripts/quiet.pl "$build/log/image.log" "building the image" \
    buildah "${store[@]}" build --build-arg "BASE=$base" --file packaging/Containerfile --tag onetrip "$work/context"
# It is tried as it is: its command, as its user, makes a cluster.
container=$(buildah "${store[@]}" from onetrip)
printf '[[region]]\nname = "%s"\n' a b c >"$work/topology.toml"
buildah "${store[@]}" copy -q "$container" "$work/topology.toml" /topology.toml >/dev/null
user=$(buildah "${store[@]}" run "$container" -- id -un)
[ "$user" = onetrip ] || { echo "image: it runs as $user" >&2; exit 1; }
buildah "${store[@]}" run "$container" -- onetrip init --topology /topology.toml --data /var/lib/onetrip/try ||
    { echo "image: its command does not work" >&2; exit 1; }
rm -rf "$build/image"
buildah "${store[@]}" push -q onetrip "oci:$build/image:onetrip"
echo "image: $build/image"
