#!/bin/bash
# Checks that each place of the extension where PostgreSQL may call a function of a user, other than for the user's own statement,
# is one that somebody has looked at.  To read the expressions of an index, or the key of a partitioned table, is enough: they
# are simplified for it.  Who runs there must be the role whose statement it is, or another one with ot_user_enter(); never the
# superuser as whom a process of ours, a command, or a rehearsal has logged in.
#
#   scripts/users-code.sh [SOURCES]     SOURCES: another extension/src
set -euo pipefail
cd "$(realpath "${1:-$(dirname "$0")/../extension/src}")"

# To look at a stored expression and call nothing: SysCacheGetAttr() and stringToNode(), as ddl_alike.c does.  To print one
# (pg_get_expr() and the like) calls the output functions of types alone, which are the server's or a superuser's.
names='RelationGetIndex(Expressions|Predicate)|RelationGetPartition(Key|Qual|Desc)|BuildIndexInfo|FormIndexDatum|'
names+='CreatePartitionDirectory|ExecFindPartition|get_partition_qual_relid|'
names+='eval_const_expressions|expression_planner\w*|estimate_expression_value|evaluate_expr|'
names+='Exec(Prepare|Init)(Expr|ExprList|Qual|Check)|ExecOpenIndices|OT_INSERT_INDEX_TUPLES|ExecConstraints|'
names+='ExecPartitionCheck|ExecComputeStoredGenerated|build_column_default|domain_check|CompareIndexInfo|'
names+='index_create|index_concurrently_\w+|validate_index|\w*reindex_(index|relation)|OT_REINDEX_\w+|\w*DefineIndex|OT_DEFINE_INDEX_\w+|'
names+='table_index_(build|validate)_scan|transformPartitionBound|pg_plan_quer(y|ies)|standard_planner|ot_rel_info'

# FILE: why it may use them.
allowed='
apply/apply_row.c: as the role that wrote the row, after ot_user_enter()
base/compat.h: names of versions
capture/capture.c: as whoever writes the row; values of indexes after ot_user_enter()
capture/describe_key.c: as whoever has written the row
capture/index_check.c: as the owner, after ot_user_enter()
capture/reads.c: as whoever reads the row
capture/rel_info.c: as the caller of ot_rel_info(), which is one of these names
capture/rel_info.h: declares it
capture/row_text.c: as the owner, after ot_user_enter()
commit/retry.c: plans the statement of the session anew, as its role
ddl/ddl_alike.c: what calls nothing but what is built in
ddl/ddl_apply.c: as the role of the statement
ddl/ddl_bounds.c: as the role of the statement, as PostgreSQL does next
ddl/ddl_detach.c: as whoever runs the statement, as PostgreSQL does next
ddl/ddl_detach_entry.c: as the role of the statement, as PostgreSQL does
ddl/ddl_index.c: as the owner: after ot_user_enter(), or in PostgreSQL
ddl/ddl_reindex.c: as the owner, after ot_user_enter()
sequence/sequence.c: what PostgreSQL plans, for whom it plans it
'

failures=0
complain() {
    echo "users-code: $*" >&2
    failures=$((failures + 1))
}

# Comments do not count.
used=$(find . -name '*.[ch]' -printf '%P\n' | sort | xargs perl -0ne '
    s{/\*.*?\*/}{my $c = $&; $c =~ tr/\n//cd; $c}gse;
    my $n = 0;
    for my $line (split /\n/) { $n++; print "$ARGV:$n:$1\n" while $line =~ /\b('"$names"')\b/g }')
[ -n "$used" ] || complain "none of the names is found"
while IFS=: read -r file line name; do
    grep -q "^$file: " <<<"$allowed" ||
        complain "$file:$line: $name may call a function of a user: as whom?  If that is right, add the file to the list of $0"
done <<<"$used"
while IFS=: read -r file _; do
    [ -z "$file" ] || grep -q "^$file:" <<<"$used" || complain "$file is in the list, and uses none of the names"
done <<<"$allowed"

[ "$failures" = 0 ] || exit 1
echo "users-code: $(wc -l <<<"$used") places in $(cut -d: -f1 <<<"$used" | sort -u | wc -l) files"
