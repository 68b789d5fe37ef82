#!/bin/bash
# Builds the packages of the checked-out commit twice, in folders of different names, which must give the same files;
# installs them into a fresh Debian 12 without a compiler; boots that with systemd, and runs a cluster of three regions in it
# from the package's unit.
#
#   scripts/test-packages.sh BUILD_FOLDER       as root; DEBS=FOLDER takes packages that are there instead of building
#
# The Debian system is made by debootstrap, from the mirror that apt of this machine uses, and run by systemd-nspawn, in a
# namespace of its own, with processes and mounts that end with it.  What was fetched is kept in BUILD_FOLDER.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "test-packages: this needs root, to make a Debian system and to enter it" >&2; exit 1; }
if [ -z "${IN_NAMESPACE:-}" ]; then
    IN_NAMESPACE=yes exec unshare --mount --pid --ipc --uts --fork --kill-child --mount-proc "$0" "$@"
fi
mkdir -p "$1"
build=$(realpath "$1")
cd "$(dirname "$0")/.."
tree=$PWD
work=$(mktemp -d /var/tmp/onetrip-packages.XXXXXX)
chmod 755 "$work"
system=$work/system
passed=0

fail() {
    echo "test-packages: $*" >&2
    exit 1
}
clean_up() {
    local status=$?
    trap - EXIT
    if [ $status -ne 0 ]; then
        tail -n 5 "$work"/*.log >&2 2>/dev/null || true
    fi
    # Processes of the cluster first, then mounts; both are this namespace's.
    kill -TERM -1 2>/dev/null || true
    sleep 1
    kill -KILL -1 2>/dev/null || true
    umount -R -l "$system"/{proc,sys,dev} "$system/var/cache/apt/archives" 2>/dev/null || true
    rm -rf --one-file-system "$work"
    exit $status
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

ok() {
    echo "test $1: ok"
    passed=$((passed + 1))
}
within() { # within SECONDS WHAT COMMAND...: repeats the command until it succeeds
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >"$work/within.log" 2>&1; do
        [ $SECONDS -lt $deadline ] || fail "$what: not in time"
        sleep 0.5
    done
}
inside() { # in the Debian system, with nothing of this machine's environment
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive chroot "$system" "$@"
}
booted() { # in the system that runs, as root
    nsenter --target "$leader" --mount --uts --ipc --net --pid -- \
        env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"
}
onetrip() {
    booted runuser -u onetrip -- onetrip "$@"
}

# ---- the same commit gives the same packages ----

if [ -z "${DEBS:-}" ]; then
    for folder in once a/second/time; do
        git clone -q "$tree" "$work/$folder/onetrip"
        "$work/$folder/onetrip/scripts/deb.sh" "$work/$folder/debian" "$work/$folder/build"
        rm -rf "${work:?}/$folder/build"
    done
    DEBS=$work/once/debian
    for package in "$DEBS"/*.deb; do
        cmp "$package" "$work/a/second/time/debian/${package##*/}" || fail "two builds differ: ${package##*/}"
    done
    ok two_builds_are_the_same_files
fi
ls "$DEBS"/onetrip_*.deb "$DEBS"/postgresql-15-onetrip_*.deb >"$work/packages.log" || fail "there are no packages in $DEBS"
for package in "$DEBS"/*.deb; do
    # Strings of a path of this machine would make another file elsewhere.
    dpkg-deb --fsys-tarfile "$package" | grep -qaF -e "$work" -e "$tree" -e "$HOME/.cargo" &&
        fail "${package##*/} contains a path of the machine that built it"
    dpkg-deb -c "$package" | awk '$2 != "root/root" { exit 1 }' || fail "${package##*/} has files of another owner than root"
done
ok packages_contain_nothing_of_the_machine_that_built_them

# ---- a fresh Debian 12 ----

echo "test-packages: making a Debian 12"
scripts/debian-system.sh "$system" "$build/debootstrap" >"$work/debian-system.log" 2>&1 || fail "debootstrap failed"
# As on a machine whose operator has read docs/packages.md: no server of Debian's own on port 5432.
mkdir -p "$system/etc/postgresql-common" "$build/apt-archives/partial"
echo 'create_main_cluster = false' >"$system/etc/postgresql-common/createcluster.conf"
mount -t proc proc "$system/proc"
mount --rbind --make-rslave /sys "$system/sys"
mount --rbind --make-rslave /dev "$system/dev"
mount --bind "$build/apt-archives" "$system/var/cache/apt/archives"
printf '#!/bin/sh\nexit 101\n' >"$system/usr/sbin/policy-rc.d"
chmod 755 "$system/usr/sbin/policy-rc.d"
mkdir "$system/packages"
cp "$DEBS"/onetrip_*.deb "$DEBS"/postgresql-15-onetrip_*.deb "$system/packages/"
inside apt-get update -q >"$work/update.log" 2>&1 || fail "apt-get update failed in the fresh system"
inside sh -c 'apt-get install -y -q --no-install-recommends /packages/*.deb' >"$work/install.log" 2>&1 ||
    fail "the packages cannot be installed"
for tool in cc gcc cargo rustc make; do
    inside sh -c "command -v $tool" >/dev/null && fail "the fresh system has $tool"
done
ok packages_install_where_nothing_can_be_compiled

# ---- what they brought ----

[ "$(inside stat -c '%U %G %a' /var/lib/onetrip)" = "onetrip onetrip 750" ] || fail "/var/lib/onetrip is not the user's"
inside onetrip --version | grep -q '^onetrip ' || fail "the command does not run"
inside systemd-analyze verify --man=no onetrip@us-east-1.service >"$work/verify.log" 2>&1 || fail "the unit is not right"
[ ! -s "$work/verify.log" ] || fail "systemd-analyze has something to say about the unit"
ok the_unit_is_verified
exposure=$(inside systemd-analyze security --offline=true /usr/lib/systemd/system/onetrip@.service 2>"$work/security.log" |
    tee -a "$work/security.log" | sed -n 's/.*Overall exposure level for [^:]*: \([0-9]*\)\.\([0-9]\).*/\1\2/p')
[ -n "$exposure" ] && [ "$exposure" -le 30 ] || fail "the unit is exposed: ${exposure:-?} of 100"
ok the_unit_is_confined
inside apt-get install -y -q --no-install-recommends systemd-sysv dbus zsh man-db >"$work/tools.log" 2>&1 ||
    fail "no tools"
inside bash -c 'source /usr/share/bash-completion/completions/onetrip; COMP_WORDS=(onetrip sta); COMP_CWORD=1
    _onetrip onetrip sta onetrip; echo "${COMPREPLY[*]}"' | grep -qx 'start status' || fail "bash completes nothing"
inside zsh -f -c 'autoload -U compinit; compinit -u; whence -v _onetrip' | grep -q 'autoload' || fail "zsh finds no completion"
inside sh -c 'for page in /usr/share/man/man1/onetrip*.1.gz; do man --warnings -l "$page" 2>&1 >/dev/null; done' >"$work/man.log"
[ ! -s "$work/man.log" ] || fail "a manual page is not right"
for command in $(inside onetrip help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\).*/\1/p'); do
    [ "$command" = help ] || [ -e "$system/usr/share/man/man1/onetrip-$command.1.gz" ] || fail "no manual page of $command"
done
ok manual_pages_and_completions

# ---- a cluster, from the unit ----

# What apt needed there, systemd mounts for itself.
umount -R -l "$system"/{proc,sys,dev} "$system/var/cache/apt/archives"
systemd-nspawn --quiet --directory="$system" --boot --register=no --keep-unit --machine=onetrip-test --console=pipe \
    >"$work/boot.log" 2>&1 </dev/null &
container=$!
find_leader() {
    leader=$(pgrep -P $container | head -n 1) && [ -n "$leader" ]
}
is_up() {
    booted systemctl is-system-running | grep -qx running
}
within 60 "systemd starts" find_leader
within 120 "the system is up" is_up
regions=(us-east-1 us-east-2 us-west-2)
units=("${regions[@]/#/onetrip@}")
printf '[[region]]\nname = "%s"\n' "${regions[@]}" >"$system/packages/topology.toml"
booted onetrip init --topology /packages/topology.toml --data /var/lib/onetrip --user onetrip >"$work/init.log" 2>&1 ||
    fail "onetrip init failed"
booted systemctl start "${units[@]}" >"$work/start.log" 2>&1 || fail "the units do not start"
within 120 "status is well" onetrip status --data /var/lib/onetrip
query() { # query REGION SQL
    local port
    port=$(sed -n '/^\[postgres\]/,$s/^port = //p' "$system/var/lib/onetrip/$1/node.toml")
    booted psql -h "/var/lib/onetrip/$1" -p "$port" -U postgres -d onetrip -X -q -A -t -v ON_ERROR_STOP=1 -c "$2"
}
query us-east-1 "CREATE TABLE account (id int PRIMARY KEY, balance int); INSERT INTO account VALUES (1, 10)"
within 60 "the row is in us-west-2" query us-west-2 "SELECT 1 / count(*) FROM account"
query us-west-2 "UPDATE account SET balance = balance + 1"
seen=$(query us-east-1 "SET onetrip.read = fresh; SELECT balance FROM account")
[ "$seen" = 11 ] || fail "us-east-1 shows a balance of $seen"
onetrip check --data /var/lib/onetrip >"$work/check.log" 2>&1 || fail "the regions differ"
grep -q '^equal' "$work/check.log" || fail "onetrip check does not say equal"
for unit in "${units[@]}"; do
    pid=$(booted systemctl show -P MainPID "$unit")
    [ "$(booted stat -c %U "/proc/$pid")" = onetrip ] || fail "$unit does not run as onetrip"
done
ok three_regions_serve_from_packages
query us-east-1 "COPY account TO '/var/tmp/outside'" >"$work/outside.log" 2>&1 || true
[ ! -e "$system/var/tmp/outside" ] || fail "the unit lets PostgreSQL write outside of its folder"
query us-east-1 "COPY account TO '/usr/outside'" >"$work/outside.log" 2>&1 && fail "the unit lets PostgreSQL write in /usr"
grep -q 'Read-only file system' "$work/outside.log" || fail "a file in /usr is refused for another reason"
ok the_unit_confines_postgresql

# ---- a node that is killed alone ----

server=$(head -n 1 "$system/var/lib/onetrip/us-east-2/postgres/postmaster.pid")
booted systemctl kill --signal=KILL --kill-whom=main onetrip@us-east-2
adopted() {
    booted journalctl -q --no-pager -u onetrip@us-east-2 | grep 'adopted the running PostgreSQL'
}
within 60 "the PostgreSQL that went on is adopted" adopted
within 60 "status is well again" onetrip status --data /var/lib/onetrip
[ "$(head -n 1 "$system/var/lib/onetrip/us-east-2/postgres/postmaster.pid")" = "$server" ] || fail "it is another server"
ok a_server_outlives_its_node
booted systemctl stop "${units[@]}" >"$work/stop.log" 2>&1 || fail "the units do not stop"
for unit in "${units[@]}"; do
    [ "$(booted systemctl show -P Result "$unit")" = success ] || fail "$unit did not end well"
done
ls "$system"/var/lib/onetrip/*/postgres/postmaster.pid >"$work/stop.log" 2>&1 && fail "a PostgreSQL is left"
ok nodes_stop_in_order
booted systemctl poweroff >"$work/poweroff.log" 2>&1 || true
wait $container || fail "the system does not go down"

# ---- gone again ----

inside dpkg --purge postgresql-15-onetrip onetrip >"$work/purge.log" 2>&1 || fail "the packages cannot be removed"
[ ! -e "$system/usr/bin/onetrip" ] && [ ! -e "$system/usr/share/onetrip" ] || fail "something stays"
[ -e "$system/var/lib/onetrip/us-east-1/node.toml" ] || fail "purge has removed a node"
ok data_outlives_the_packages

echo "$passed passed, 0 failed"
