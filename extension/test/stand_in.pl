# Stands between a session and its node: passes on all frames (docs/agent-protocol.md) but READ, which it answers itself,
# and AWAIT while DIR/missing exists.
#
#   stand_in.pl DIR NODE_SOCKET
#
# Listens on DIR/node.sock.  For each READ that may ask others it adds a line to DIR/asked and runs DIR/answer, a shell script.
# What that prints:
#   N         READ_AT, at N
#   stale N   READ_AT with the number before, at 0; then the answer, at N
#   silence   nothing; a later READ gets an answer to this one as well, before its own
#   lost      the connection is closed
# While DIR/old exists, HELLO says nothing that the node of an earlier release would not look at.  While DIR/missing exists,
# the answer to AWAIT is that only the regions that are named there do not show the entry.  DIR/damaged contains the type of a
# frame, in hexadecimal: of the next one of that type only the first byte gets to the session, and the file is gone.
#
# It ends once DIR or the node's socket is gone.
use strict;
use warnings;
use File::Basename qw(dirname);
use IO::Select;
use IO::Socket::UNIX;

my ($dir, $node_socket) = @ARGV;
# The node lets in only its own user, in the folder of its own server.  It cannot see the folder of a process that has
# become another user, until that runs a program; and that user may not be able to read this file.
my ($uid, $gid) = (stat $node_socket)[4, 5];
my $data = dirname($node_socket) . '/postgres';
chdir $data or die "$data: $!";
if ($> == 0) {
    open my $file, '<', $0 or die "$0: $!";
    my $program = do { local $/; <$file> };
    $( = $gid;
    $) = "$gid $gid";
    ($<, $>) = ($uid, $uid);
    exec $^X, '-e', $program, $dir, $node_socket or die "$^X: $!";
}
$SIG{CHLD} = 'IGNORE';
umask 0;
my $listener = IO::Socket::UNIX->new(Local => "$dir/node.sock", Listen => 10) or die "$dir/node.sock: $!";

# Sends frames to the session.
sub answer {
    my ($backend, $frames) = @_;
    while (length $frames) {
        my ($length, $type) = unpack 'VC', $frames;
        my $frame = substr($frames, 0, 4 + $length, '');
        if (open my $named, '<', "$dir/damaged") {
            chomp(my $damaged = <$named>);
            if ($type == hex $damaged) {
                unlink "$dir/damaged";
                $frame = pack('VC', 2, $type) . substr($frame, 5, 1);
            }
        }
        syswrite($backend, $frame);
    }
}

sub serve {
    my ($backend) = @_;
    my $node = IO::Socket::UNIX->new(Peer => $node_socket) or die "$node_socket: $!";
    my $both = IO::Select->new($backend, $node);
    my ($buffer, $late, $said_by_node) = ('', '', '');
    $SIG{CHLD} = 'DEFAULT';
    for (;;) {
        for my $ready ($both->can_read) {
            sysread($ready, my $bytes, 65536) or return;
            if ($ready == $node) {
                $said_by_node .= $bytes;
                while (length $said_by_node >= 5) {
                    my $length = 4 + unpack 'V', $said_by_node;
                    last if length $said_by_node < $length;
                    answer($backend, substr($said_by_node, 0, $length, ''));
                }
                next;
            }
            $buffer .= $bytes;
            while (length $buffer >= 5) {
                my ($length, $type) = unpack 'VC', $buffer;
                last if length $buffer < 4 + $length;
                my $frame = substr($buffer, 0, 4 + $length, '');
                substr($frame, -16, 8) = "\0" x 8 if $type == 0x01 && -e "$dir/old";
                if ($type == 0x0a && open my $named, '<', "$dir/missing") {
                    chomp(my $missing = <$named>);
                    answer($backend, pack('VCQ<v/a*', 11 + length $missing, 0x87, unpack('x5Q<', $frame), $missing));
                    next;
                }
                if ($type != 0x09) {
                    syswrite($node, $frame);
                    next;
                }
                my ($number, $may_ask) = unpack 'x5Q<C', $frame;
                # It has no read lease.
                if (!$may_ask) {
                    answer($backend, pack('VCQ<Q<C', 18, 0x86, $number, 0, 2));
                    next;
                }
                open my $asked, '>>', "$dir/asked" or return;
                print $asked "$number\n";
                close $asked;
                my $said = `sh $dir/answer`;
                return if $said =~ /lost/;
                if ($said =~ /silence/) {
                    $late .= pack 'VCQ<Q<C', 18, 0x86, $number, 0, 1;
                    next;
                }
                $late .= pack 'VCQ<Q<C', 18, 0x86, $number - 1, 0, 1 if $said =~ /stale/;
                my ($at) = $said =~ /(\d+)/;
                answer($backend, $late . pack('VCQ<Q<C', 18, 0x86, $number, $at // 0, 1));
                $late = '';
            }
        }
    }
}

while (-d $dir && -S $node_socket) {
    next unless IO::Select->new($listener)->can_read(1);
    my $backend = $listener->accept or next;
    next if fork;
    close $listener;
    serve($backend);
    exit;
}
