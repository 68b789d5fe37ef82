#!/usr/bin/perl
# Checks that every link to a file of this repository finds it, and that what it names after # is a heading there.
#
#   scripts/links.pl PAGE.md...         links and pictures in pages; headings are named as on the usual hosts of repositories
#   scripts/links.pl --site FOLDER      the same in a site that was built from them, in all its HTML
#
# Links to other hosts are not followed.
use strict;
use warnings;
use Cwd qw(realpath);
use File::Basename qw(dirname);

my ($links, $failures) = (0, 0);
my %names;    # by file: the names that a link to it can have after #
my $site = @ARGV && $ARGV[0] eq '--site';
shift @ARGV if $site;
die "usage: links.pl PAGE.md... | --site FOLDER\n" unless @ARGV;
if ($site) {
    my $folder = $ARGV[0];
    @ARGV = ();
    find_html($folder);
    die "links: there is no HTML in $folder\n" unless @ARGV;
}

sub find_html {
    my $folder = shift;
    opendir my $in, $folder or die "links: $folder: $!\n";
    for (sort grep { !/^\./ } readdir $in) {
        if (-d "$folder/$_") { find_html("$folder/$_") }
        elsif (/\.html$/) { push @ARGV, "$folder/$_" }
    }
}

sub text_of {
    my $file = shift;
    open my $in, '<:encoding(UTF-8)', $file or die "links: $file: $!\n";
    local $/;
    return scalar <$in>;
}

# Without what is shown as it stands; numbers of lines stay.
sub prose {
    my $text = shift;
    $text =~ s{^([ \t]*)(```+|~~~+)[^\n]*\n(.*?)^[ \t]*\2[ \t]*$}{"\n" x ($3 =~ tr/\n//) . "\n"}gmse;
    return $text;
}

sub without_code {
    my $text = shift;
    $text =~ s{(?<!`)(`+)(?!`)(.*?)(?<!`)\1(?!`)}{my $code = $2; $code =~ s/[^\n]//g; $code}gse;
    return $text;
}

sub names_of {
    my $file = shift;
    return $names{$file} //= do {
        my (%found, %seen);
        my $text = $site ? text_of($file) : prose(text_of($file));
        if ($site) { $found{$_} = 1 for $text =~ /\bid="([^"]+)"/g }
        else {
            $found{$_} = 1 for $text =~ /<a id="([^"]+)"/g;
            for ($text =~ /^#{1,6}[ \t]+(.*?)[ \t#]*$/gm) {
                s/!?\[([^\]]*)\]\([^)]*\)/$1/g;    # of a link its text counts
                my $name = lc;
                $name =~ s/[^\p{Word}\- ]//g;
                $name =~ tr/ /-/;
                my $times = $seen{$name}++;
                $found{ $times ? "$name-$times" : $name } = 1;
            }
        }
        \%found;
    };
}

sub wrong {
    my ($page, $text, $at, $why) = @_;
    my $line = 1 + (substr($text, 0, $at) =~ tr/\n//);
    print STDERR "links: $page:$line: $why\n";
    $failures++;
}

for my $page (@ARGV) {
    my $text = $site ? text_of($page) : without_code(prose(text_of($page)));
    my $pattern = $site ? qr/\b(?:href|src)="([^"]*)"/ : qr/\]\(\s*<?([^)\s>]+)>?[^)]*\)|\b(?:href|src|srcset)="([^"]*)"/;
    while ($text =~ /$pattern/g) {
        my ($link, $at) = ($1 // $2, $-[0]);
        next if $link =~ m{^(?:[a-z][a-z0-9+.-]*:|//)}i;
        # The page for addresses that are not there links from the site's root.
        next if $site && $page =~ m{/404\.html$};
        $links++;
        $link =~ s/&amp;/&/g;
        $link =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ge;
        my ($path, $name) = $link =~ /^([^#?]*)(?:\?[^#]*)?(?:#(.*))?$/s;
        my $file = length $path ? dirname($page) . "/$path" : $page;
        if ($path =~ m{^/}) { wrong($page, $text, $at, "$link: begins at the root of the file system"); next }
        if (!-e $file) { wrong($page, $text, $at, "$link: there is no such file"); next }
        if (-d $file && !$site) { next }
        next unless defined $name && length $name && $file =~ ($site ? qr/\.html$/ : qr/\.md$/);
        wrong($page, $text, $at, "$link: there is no such heading") unless names_of(realpath $file)->{$name};
    }
}
if ($failures) { print STDERR "links: $failures of $links lead nowhere\n"; exit 1 }
die "links: no link was found: is this script still right?\n" unless $links;
print "links: $links in ", scalar @ARGV, $site ? " pages of the site\n" : " pages\n";
