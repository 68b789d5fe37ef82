# Goal: objects of an earlier version that are updated are those of a new extension: functions, views, tables, their rights
# and comments.  Method: two databases of the server, and every member of the extension with all that defines it.
on() { # on DATABASE STATEMENT
    "$bin_dir/psql" -h 127.0.0.1 -p "$port" -U postgres -d "$1" -X -q -A -t -v ON_ERROR_STOP=1 -c "$2"
}
# A table's own parts (constraints, indexes) belong to it, so its definition has them.
members="SELECT i.type, i.identity, obj_description(d.objid, c.relname), p.proacl, pg_get_functiondef(p.oid),
    r.relkind, r.relpersistence, r.relacl, (SELECT amname FROM pg_am WHERE oid = r.relam),
    CASE r.relkind WHEN 'v' THEN pg_get_viewdef(r.oid) END,
    (SELECT string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull, attstorage, attcollation::regcollation,
                                 pg_get_expr(adbin, adrelid)), ', ' ORDER BY attnum)
       FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
      WHERE attrelid = r.oid AND attnum > 0),
    (SELECT string_agg(pg_get_constraintdef(oid), ', ' ORDER BY conname) FROM pg_constraint WHERE conrelid = r.oid),
    (SELECT string_agg(pg_get_indexdef(indexrelid), ', ' ORDER BY indexrelid::regclass::text) FROM pg_index WHERE indrelid = r.oid),
    (SELECT string_agg(pg_get_triggerdef(oid), ', ' ORDER BY tgname) FROM pg_trigger WHERE tgrelid = r.oid)
  FROM pg_depend d
  JOIN pg_class c ON c.oid = d.classid
 CROSS JOIN pg_identify_object(d.classid, d.objid, 0) i
  LEFT JOIN pg_proc p ON p.oid = d.objid AND d.classid = 'pg_proc'::regclass
  LEFT JOIN pg_class r ON r.oid = d.objid AND d.classid = 'pg_class'::regclass
 WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
   AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'onetrip')
 ORDER BY 1, 2"
for database in made updated; do
    query "CREATE DATABASE extension_$database ENCODING 'UTF8' TEMPLATE template0"
done
on extension_made "CREATE EXTENSION onetrip"
on extension_updated "CREATE EXTENSION onetrip VERSION '0.1'"
on extension_made "$members" >"$work/made"
on extension_updated "$members" >"$work/earlier"
on extension_updated "ALTER EXTENSION onetrip UPDATE"
on extension_updated "$members" >"$work/updated"
[ "$(grep -c . "$work/made")" -gt 60 ] || wrong="only these members were found: $(cat "$work/made")
"
cmp -s "$work/made" "$work/earlier" && wrong="${wrong}the earlier version is no other one
"
diff "$work/made" "$work/updated" || wrong="${wrong}the updated objects differ from the new ones
"
for database in made updated; do
    query "DROP DATABASE extension_$database"
done
# In the replicated database the update is recorded, with the version.
version=$(on onetrip "SELECT extversion FROM pg_extension WHERE extname = 'onetrip'")
default=$(sed -n "s/^default_version = '\(.*\)'/\1/p" ../onetrip.control)
[ "$version" = "$default" ] || wrong="${wrong}a new cluster has the version $version, and $default is the newest
"
