#!/bin/bash
# Checks that the includes of the extension point down: a file of extension/src/WING may include its own wing's headers and
# WING/WING.h of wings below it.  The order is that of the table in extension/src/base/base.h.  And that no deadline is made of
# the wall clock.
#
#   scripts/include-direction.sh [SOURCES]     SOURCES: another extension/src
set -euo pipefail
sources=$(realpath "${1:-$(dirname "$0")/../extension/src}")
cd "$sources"

# The first word of each line between the table's head and the empty line after it, from the top wing down.
mapfile -t wings < <(sed -n '/^ \*	wing		/,/^ \*$/{s/^ \*	\([a-z]*\)	.*/\1/p}' base/base.h | tail -n +2)
declare -A height
for i in "${!wings[@]}"; do height[${wings[$i]}]=$((${#wings[@]} - i)); done

failures=0
complain() {
    echo "include-direction: $*" >&2
    failures=$((failures + 1))
}

[ "${#wings[@]}" -gt 1 ] || complain "base/base.h has no table of wings"
for folder in */; do
    [ -n "${height[${folder%/}]:-}" ] || complain "$folder is not in the table of base/base.h"
done

checked=0
while IFS=: read -r file line text; do
    path=${text#*\"}
    path=${path%%\"*}
    wing=${path%%/*}
    if [ "$wing" = "$path" ] || [ -z "${height[$wing]:-}" ]; then
        # A header of PostgreSQL's, unless the extension has a file of that name.
        [ "$wing" != "$path" ] || [ -z "$(find . -name "$path" -print -quit)" ] ||
            complain "$file:$line: write \"folder/$path\""
        continue
    fi
    checked=$((checked + 1))
    [ -e "$path" ] || complain "$file:$line: there is no $path"
    from=${file%%/*}
    if [ "$from" = "$wing" ]; then continue; fi
    [ "$path" = "$wing/$wing.h" ] || complain "$file:$line: $path is private to the wing $wing, whose public header is $wing/$wing.h"
    # onetrip.c stands above all wings.
    if [ "$from" = "$file" ]; then continue; fi
    [ "${height[$wing]}" -lt "${height[$from]:-0}" ] || complain "$file:$line: $from is below $wing and may not include $path"
done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]+"' --include='*.[ch]' . | sed 's|^\./||')

# Declaring another file's function in a .c file would evade the check.
while IFS= read -r line; do
    complain "$line: declared in a .c file; include the header"
done < <(grep -rnE '^extern ' --include='*.c' . | sed 's|^\./||')

# A wall clock that is set back would put a deadline hours away: those are made of ot_now() (base/base.h).
while IFS= read -r line; do
    complain "$line: a deadline by the wall clock; use ot_now()"
done < <(grep -rnE 'Milliseconds\(GetCurrentTimestamp|GetCurrentTimestamp\(\) *[<>]|[<>]=? *GetCurrentTimestamp' --include='*.[ch]' . |
    sed 's|^\./||')

[ "$checked" -gt 0 ] || complain "$sources has no includes"
[ "$failures" = 0 ] || exit 1
echo "include-direction: ${#wings[@]} wings, $checked includes, all pointing down"
