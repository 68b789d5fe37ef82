# Goal: PostgreSQL trusts a node on the agent socket only if that runs as its own user or as root.
# Method: another user listens on a socket that everybody may use; only root can start such a process.
if [ "$(id -u)" -eq 0 ]; then
    query "CREATE FUNCTION unit.connect(path text) RETURNS text LANGUAGE c STRICT AS '$ONETRIP_UNIT', 'unit_connect'"
    mkdir -m 777 "$work/foreign"
    listen='use IO::Socket::UNIX; umask 0; my $l = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 1) or die $!; sleep 120'
    setpriv --reuid=nobody --regid=nogroup --clear-groups perl -e "$listen" "$work/foreign/node.sock" &
    foreign=$!
    perl -e "$listen" "$work/foreign/root.sock" &
    root=$!
    for _ in $(seq 200); do
        [ -S "$work/foreign/node.sock" ] && [ -S "$work/foreign/root.sock" ] && break
        sleep 0.05
    done
    said=$(query "SELECT unit.connect('$work/foreign/node.sock')")
    case $said in
    *"runs as user $(id -u nobody), not as this server's user"*) ;;
    *) wrong="a node of another user: $said
" ;;
    esac
    said=$(query "SELECT unit.connect('$work/foreign/root.sock')")
    [ "$said" = connected ] || wrong="${wrong}a node of root: $said
"
    kill "$foreign" "$root"
    wait "$foreign" "$root" 2>/dev/null || true
else
    # shellcheck disable=SC2034
    unchecked="only root can start a process of another user"
fi
