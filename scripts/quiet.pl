#!/usr/bin/perl
# Runs a command whose output only matters if it fails: the output goes to a log file, and here appear a few lines that say
# what is being done, how far it is and about how long it will still take.  If the command fails, the end of the log is shown,
# and where the log is.  A command that has nothing to do and is done within two seconds is not mentioned.
#
#   scripts/quiet.pl LOG WHAT COMMAND [ARGUMENT...]
#
# How far it is comes from cargo's own count of parts, which cargo prints to others than terminals if CARGO_TERM_PROGRESS_WHEN
# says so.  Only modules of Debian's perl-base are used, since this runs before anything is installed.
use strict;
use warnings;
use POSIX ();

my ($log, $what, @command) = @ARGV;
die "usage: quiet.pl LOG WHAT COMMAND [ARGUMENT...]\n" unless @command;
(my $folder = $log) =~ s{/?[^/]*$}{};
system('mkdir', '-p', $folder) == 0 or exit 1 if length $folder;
open my $out, '>', $log or die "quiet: $log: $!\n";
select((select($out), $| = 1)[0]);
$| = 1;

@ENV{qw(CARGO_TERM_PROGRESS_WHEN CARGO_TERM_PROGRESS_WIDTH)} = ('always', 100);
my $pid = open(my $in, '-|') // die "quiet: fork: $!\n";
if (!$pid) {
    open STDERR, '>&', \*STDOUT or die;
    no warnings "exec";
    exec { $command[0] } @command or print("$command[0]: $!\n"), POSIX::_exit(127);
}
# At a terminal Ctrl-C reaches the command by itself.
$SIG{$_} = sub { kill 'TERM', $pid; exit 1 } for qw(TERM HUP);

my $start = time;
my ($done, $all, $warnings, $told, $on_line) = (0, 0, 0, $start, 0);
my ($first, $had);    # when cargo first said how many parts are done, and how many
my $terminal = -t STDOUT;
my $every = $terminal ? 1 : 15;

sub lasts {
    my $seconds = shift;
    return $seconds < 60 ? "$seconds s" : sprintf('%d min %02d s', $seconds / 60, $seconds % 60);
}

# So many small parts take about as long as the first $n parts of a build of $all do: the last twentieth, which uses all the
# others, is the work's own, and takes ten times as long a part.
sub work {
    my ($n) = @_;
    my $own = POSIX::ceil($all / 20);
    my $early = $all - $own;
    return $n < $early ? $n : $early + 10 * ($n - $early);
}

sub report {
    my $elapsed = time - $start;
    my $line = $what;
    # The first parts say little about the others.
    if ($done > 0 && $all > $done) {
        $line .= ": $done of $all parts";
        my ($parts, $seconds) = (work($done) - work($had), time - $first);
        $line .= ', about ' . lasts(10 * (1 + int($seconds * (work($all) - work($done)) / $parts / 10))) . ' left'
            if $parts * 20 > $all && $seconds > 2;
    }
    else { $line .= ': ' . lasts($elapsed) if $elapsed > 5 }
    $line .= " (log: $log)" unless $on_line++ && $terminal;
    print $terminal ? sprintf("\r%-100s", $line) : "$line\n";
}

my $rest = '';
while (1) {
    vec(my $ready = '', fileno $in, 1) = 1;
    if (select $ready, undef, undef, 1) {
        my $got = sysread $in, my $bytes, 65536;
        last unless $got;
        $rest .= $bytes;
        # Cargo ends its count with a carriage return, which the next line writes over.
        while ($rest =~ s/^([^\r\n]*)([\r\n])//) {
            my ($line, $end) = ($1, $2);
            $line =~ s/\e\[[0-9;]*[A-Za-z]//g;
            if ($line =~ m{^\s*Building\b.*?\b(\d+)/(\d+)\b}) {
                ($done, $all) = ($1, $2);
                $first //= time;
                $had //= $done;
            }
            elsif ($line =~ /\S/) {
                print $out "$line\n";
                $warnings++ if $line =~ /\bwarning:/;
            }
        }
    }
    if (time >= $told + ($on_line ? $every : 2)) {
        $told = time;
        report();
    }
}
print $out "$rest\n" if length $rest;
close $in;
my $status = $?;
print "\r", ' ' x 100, "\r" if $terminal && $on_line;
if ($status != 0) {
    close $out;
    print STDERR "$what: failed; the end of $log:\n";
    system 'tail', '-n', 30, $log;
    print STDERR "all of it: $log\n";
    exit(($status >> 8) || 1);
}
print "$what: done in ", lasts(time - $start), $warnings ? ", with $warnings " . ($warnings == 1 ? 'warning' : 'warnings') . " (log: $log)" : '', "\n" if $on_line || $warnings;
