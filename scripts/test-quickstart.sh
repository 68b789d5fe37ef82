#!/bin/bash
# Runs the commands of docs/quickstart.md, one after the other in one shell, as a reader would, and compares what they print
# with what the page shows below them.
#
#   scripts/test-quickstart.sh
#
# Only the folders and the ports are others, so that it can run beside anything.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d /var/tmp/onetrip-quickstart.XXXXXX)
chmod 755 "$work"
clean_up() {
    local status=$?
    trap - EXIT
    [ $status -eq 0 ] || tail -n 20 "$work/output.log" "$work"/onetrip-*.log >&2
    # What the page left running, because it ended early.
    if [ -e "$work/pids" ]; then
        xargs -r kill <"$work/pids" 2>/dev/null || true
        sleep 1
    fi
    rm -rf "$work"
    exit $status
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# Three ports that are free, below those that the kernel gives to outgoing connections.
mapfile -t ports < <(perl -MIO::Socket::INET -e '
    my @open;
    while (@open < 3) {
        my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1", LocalPort => 10_000 + int rand 20_000);
        push @open, $socket if $socket;
    }
    print $_->sockport, "\n" for @open')

# The page as a script: each block of commands, and after it a comparison with the block of output that follows it.
perl -e '
    my ($work, $target, @port) = @ARGV;
    open my $in, "<", "docs/quickstart.md" or die $!;
    local $/;
    my $page = <$in>;
    my ($blocks, $shown) = (0, 0);
    print "set -euo pipefail\n";
    while ($page =~ /^([ ]*)```(sh|text)\n(.*?)^\1```$/gms) {
        my ($indent, $kind, $text) = ($1, $2, $3);
        $text =~ s/^$indent//gm;
        if ($kind eq "sh") {
            $blocks++;
            $text =~ s{/var/tmp/onetrip}{$work/onetrip}g;
            $text =~ s{\btarget/release/}{$target/release/}g;
            $text =~ s{\b550([123])\b}{$port[$1 - 1]}g;
            print "echo \"quickstart: block $blocks\" >&2\n{\n${text}jobs -p > $work/pids\n} > $work/output.log\n";
        } else {
            $shown++;
            open my $out, ">", "$work/expected.$shown" or die $!;
            print $out $text;
            print "diff -ubB $work/expected.$shown $work/output.log >&2\n";
        }
    }
    die "the page has $blocks blocks of commands, $shown of output\n" unless $blocks >= 5 && $shown >= 1;
' "$work" "${CARGO_TARGET_DIR:-target}" "${ports[@]}" >"$work/page.sh"
timeout 540 bash "$work/page.sh"
[ ! -e "$work/onetrip" ] || { echo "quickstart: the page leaves a cluster behind" >&2; exit 1; }
echo "test quickstart: ok"
