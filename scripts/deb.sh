#!/bin/bash
# Builds Debian packages of the checked-out commit: `onetrip`, and `postgresql-N-onetrip` for each PostgreSQL N whose
# headers are installed (PGDG's or Debian's postgresql-server-dev-N, 15 or later; 16 has not been compiled against).
#
#   scripts/deb.sh OUT [BUILD_FOLDER]      OUT: where the packages go; BUILD_FOLDER: of cargo (default: target/packages)
#
# The same commit gives the same files, wherever and whenever it is built, with the same compilers: times are the commit's
# (SOURCE_DATE_EPOCH, if that is set), and paths of this machine are mapped to others.  The version is the workspace's, and
# unless the commit has the tag vVERSION, the commit's time and name.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
out=$(realpath "$1")
cd "$(dirname "$0")/.."
build=$(realpath -m "${2:-target/packages}")
tree=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

say() {
    echo "deb: $*"
}
fail() {
    say "$*" >&2
    exit 1
}

# ---- the version, the time ----

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
[ -n "$version" ] || fail "Cargo.toml names no version"
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) || fail "this is no git checkout: set SOURCE_DATE_EPOCH"
fi
export SOURCE_DATE_EPOCH
if git rev-parse --verify -q HEAD >/dev/null; then
    if ! git tag --points-at HEAD | grep -qxF "v$version"; then
        # ~ sorts before the release.
        version+="~$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$(git rev-parse --short=8 HEAD)"
    fi
    if ! git diff --quiet HEAD --; then
        say "the checkout differs from its commit, and so does what the packages contain: their version says modified" >&2
        version+=".modified"
    fi
fi
version+=-1
architecture=$(dpkg --print-architecture)

# ---- the command ----

# Flags of the environment would make another build of the same commit.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS CARGO_INCREMENTAL
cargo_home=${CARGO_HOME:-$HOME/.cargo}
sysroot=$(rustc --print sysroot)
maps="--remap-path-prefix=$tree=/usr/src/onetrip --remap-path-prefix=$cargo_home=/usr/src/cargo"
maps+=" --remap-path-prefix=$build=/usr/src/build --remap-path-prefix=$sysroot=/usr/src/rust"
c_maps="-ffile-prefix-map=$tree=/usr/src/onetrip -ffile-prefix-map=$cargo_home=/usr/src/cargo -ffile-prefix-map=$build=/usr/src/build"
RUSTFLAGS="$maps" CFLAGS="${CFLAGS:-} $c_maps" CARGO_TARGET_DIR="$build" \
    scripts/quiet.pl "$build/log/packages.log" "building the packages" \
    cargo build --release --locked -p onetrip-cli --bin onetrip --example pages

# package NAME FOLDER DEPENDS DESCRIPTION: makes the package of what FOLDER contains; the description's first line is short.
package() {
    local name=$1 folder=$2 file
    shift 2
    mkdir -p "$folder/DEBIAN" "$folder/usr/share/doc/$name"
    cp packaging/copyright "$folder/usr/share/doc/$name/copyright"
    gzip -9n <CHANGELOG.md >"$folder/usr/share/doc/$name/changelog.gz"
    # Debuggers and backtraces keep the names of functions.
    while IFS= read -r -d '' file; do
        if head -c 4 "$file" | grep -q ELF; then
            strip --strip-debug --remove-section=.comment "$file"
            # The linker computed it from paths too.
            objcopy --remove-section=.note.gnu.build-id "$file"
        fi
    done < <(find "$folder/usr" -type f -print0)
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\nSection: database\nPriority: optional\n' \
            "$name" "$version" "$architecture"
        printf 'Maintainer: the authors of Onetrip <onetrip@localhost>\nInstalled-Size: %s\n' \
            "$(du -k --apparent-size -s "$folder/usr" | cut -f 1)"
        printf '%s\n' "$1"
        printf 'Description: %s\n' "$2" | sed '2,$s/^/ /'
    } >"$folder/DEBIAN/control"
    (cd "$folder" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 md5sum) \
        >"$folder/DEBIAN/md5sums"
    if [ -d "$folder/etc" ]; then
        (cd "$folder" && find etc -type f -printf '/%p\n' | LC_ALL=C sort) >"$folder/DEBIAN/conffiles"
    fi
    find "$folder" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group --threads-max=1 -Zxz --build "$folder" "$out/${name}_${version}_$architecture.deb" >/dev/null
    say "${name}_${version}_$architecture.deb"
}

# Which libraries, and since which version, the files of FOLDER need.
needs() {
    mkdir -p "$work/shlibs/debian"
    printf 'Source: onetrip\n\nPackage: onetrip\nArchitecture: any\n' >"$work/shlibs/debian/control"
    (cd "$work/shlibs" && dpkg-shlibdeps -O --ignore-missing-info "$@" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
}

DESTDIR=$work/onetrip PREFIX=/usr scripts/install.sh command "$build"
gzip -9n "$work/onetrip"/usr/share/man/man1/*.1
mkdir -p "$work/onetrip/DEBIAN"
install -m 755 packaging/preinst packaging/postinst packaging/postrm "$work/onetrip/DEBIAN/"
libraries=$(needs "$work/onetrip/usr/bin/onetrip")
[ -n "$libraries" ] || fail "dpkg-shlibdeps does not say what the command needs"
package onetrip "$work/onetrip" "Depends: $libraries, \
systemd | systemd-standalone-sysusers | systemd-sysusers, systemd | systemd-standalone-tmpfiles | systemd-tmpfiles" \
"PostgreSQL in every region, one database: the node
The onetrip command: it makes, runs, watches, checks, backs up and restores
the nodes of a cluster. Each region has a node and, unless it is a witness,
a PostgreSQL with the extension of the package postgresql-N-onetrip."

# ---- the extension ----

made=0
for pg_config in /usr/lib/postgresql/*/bin/pg_config; do
    [ -x "$pg_config" ] && [ -e "$("$pg_config" --pgxs)" ] || continue
    number=$("$pg_config" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')
    if [ "$number" -lt 15 ] || [ "$number" -eq 16 ]; then
        say "PostgreSQL $number: no package, since the extension is not known to work there"
        continue
    fi
    rm -rf "$work/extension"
    mkdir "$work/extension"
    git ls-files -z extension | xargs -0 cp -a --parents -t "$work/extension"
    make --no-print-directory -s -C "$work/extension/extension" PG_CONFIG="$pg_config" \
        COPT="-ffile-prefix-map=$work/extension=/usr/src/onetrip" DESTDIR="$work/postgresql-$number" install >/dev/null
    libraries=$(needs "$work/postgresql-$number$("$pg_config" --pkglibdir)/onetrip.so")
    [ -n "$libraries" ] || fail "dpkg-shlibdeps does not say what the extension needs"
    # Both come from one commit: the node and the extension speak one version of their protocol.
    package "postgresql-$number-onetrip" "$work/postgresql-$number" \
        "Depends: $libraries, postgresql-$number, onetrip (= $version)" \
"PostgreSQL in every region, one database: the extension
The extension for PostgreSQL $number that records what transactions change,
and applies what others changed. The node, in the package onetrip, makes the
database that uses it."
    made=$((made + 1))
done
[ "$made" -gt 0 ] || fail "no PostgreSQL with headers is in /usr/lib/postgresql: install postgresql-server-dev-15"
