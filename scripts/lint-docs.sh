#!/bin/bash
# Checks the pages: lines have at most 100 characters, except in fenced blocks, in the tables of docs/measurements, and where
# an address is given a name ([name]: ADDRESS); links lead to files and headings that are there; every page of docs is on the
# map, docs/index.md, of which the site's contents are made; and every measurement is in the list of docs/measurements.
#
#   scripts/lint-docs.sh [FILE...]     default: README.md, CHANGELOG.md and all pages below docs and testdata
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# = 0 ]; then
    mapfile -t pages < <(find docs testdata -name '*.md' | sort)
    [ ${#pages[@]} -gt 0 ] || { echo "lint-docs: there are no pages" >&2; exit 1; }
    set -- README.md CHANGELOG.md "${pages[@]}"
fi
for page; do
    [ -r "$page" ] || { echo "lint-docs: $page cannot be read" >&2; exit 1; }
done

# -CSD: characters, not bytes.
perl -CSD -ne '
    if (/^\s*```/) { $fenced = !$fenced }
    elsif (!$fenced && !(/^\|/ && $ARGV =~ m{^docs/measurements/}) && !/^\[[^]]+\]: \S+$/) {
        chomp;
        if (length > 100) {
            printf STDERR "lint-docs: %s:%d: %d characters, but at most 100 are allowed\n", $ARGV, $., length;
            $failures++;
        }
    }
    if (eof) {
        if ($fenced) { print STDERR "lint-docs: $ARGV: a fenced block does not end\n"; $failures++ }
        $pages++; $fenced = 0;
        close ARGV;    # starts line numbers from 1 again
    }
    END { if ($failures) { print STDERR "lint-docs: $failures lines to mend\n"; $? = 1 } else { print "lint-docs: $pages pages\n" } }
' "$@"
scripts/links.pl "$@"

for page in docs/*.md; do
    page=${page#docs/}
    [ "$page" = index.md ] || grep -q "^- \[[^]]*\]($page): " docs/index.md || {
        echo "lint-docs: docs/$page is not on the map: give it a line in docs/index.md, as '- [Title]($page): what it tells.'" >&2
        exit 1
    }
done
for page in docs/measurements/*/README.md; do
    page=${page#docs/measurements/}
    grep -qF "($page)" docs/measurements/README.md || {
        echo "lint-docs: docs/measurements/$page is not in the list: give it a line in docs/measurements/README.md" >&2
        exit 1
    }
done
