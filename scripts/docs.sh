#!/bin/bash
# Builds a site from the pages in docs with mdBook, and checks every link in it.
#
#   scripts/docs.sh FOLDER        the site goes to FOLDER/book; FOLDER/book-source is what it is made of
#
# Its contents are the map of docs/index.md, then all decisions and measurements by date, so that there is no second list to
# keep.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
folder=$(realpath "$1")
cd "$(dirname "$0")/.."
source=$folder/book-source
rm -rf "$source" "$folder/book"
mkdir -p "$source/src"
cp docs/book.toml "$source/"
tar -C docs --exclude=book.toml -cf - . | tar -C "$source/src" -xf -
# The changelog is beside the README, as is usual; in the site it is a page as any other.
sed 's|](docs/|](|g; s|^  docs/|  |' CHANGELOG.md >"$source/src/CHANGELOG.md"
find "$source/src" -name '*.md' -exec sed -i 's|](\.\./CHANGELOG\.md|](CHANGELOG.md|' {} +

title() {
    sed -n '/^# /{s/^# //;s/[][]//g;p;q}' "$1"
}
{
    echo "[The map](index.md)"
    sed -n 's/^## /\n# /p; s/^- \(\[[^]]*\]([^)]*)\): .*/- \1/p' "$source/src/index.md"
    printf '\n# Decisions\n'
    for page in docs/decisions/*.md; do
        echo "- [$(title "$page")](${page#docs/})"
    done
    printf '\n# Measurements\n'
    find docs/measurements -mindepth 2 -name '*.md' | LC_ALL=C sort | while IFS= read -r page; do
        echo "- [$(title "$page")](${page#docs/})"
    done
} >"$source/src/SUMMARY.md"
(cd "$source" && mdbook build --dest-dir "$folder/book") >"$folder/book.log" 2>&1 || {
    cat "$folder/book.log" >&2
    echo "docs: mdBook failed" >&2
    exit 1
}
# What mdBook only warns of is wrong too.
if grep -E '\b(WARN|ERROR)\b' "$folder/book.log" >&2; then
    echo "docs: mdBook complains" >&2
    exit 1
fi
scripts/links.pl --site "$folder/book"
