//! Functions that the generator must not call, and why.

/// The beginning of a function's name, or all of it if it ends with `$`, and why the function is left out.
const DENIED: [(&str, &str); 79] = [
    ("st_fromflatgeobuf", "PostGIS crashes the server on a row type that is not a table's"),
    ("postgis_index_extent", "PostGIS crashes the server on an index of another kind"),
    ("st_buffer", "PostGIS crashes the server on a radius that is no number"),
    ("st_samealignment", "PostGIS crashed the server on a raster that other functions had made"),
    ("st_combinebbox", "PostGIS leaves a part of the box that it returns as the memory was"),
    ("pg_sleep", "waits"),
    ("pg_terminate_backend$", "ends another session"),
    ("pg_cancel_backend$", "ends a statement of another session"),
    ("pg_reload_conf$", "changes the server"),
    ("pg_rotate_logfile", "changes the server"),
    ("pg_logfile_rotate$", "changes the server"),
    ("pg_promote$", "changes the server"),
    ("pg_switch_wal$", "changes the server"),
    ("pg_backup_", "changes the server"),
    ("pg_start_backup", "changes the server"),
    ("pg_stop_backup", "changes the server"),
    ("pg_create_", "makes slots and restore points of the server"),
    ("pg_drop_", "drops slots of the server"),
    ("pg_copy_", "copies slots of the server"),
    ("pg_replication_", "slots and origins of the server"),
    ("pg_logical_", "slots and messages of the server"),
    ("pg_wal_replay_", "recovery of the server"),
    ("pg_advance_", "slots of the server"),
    ("pg_read_", "reads files of the server, and may read very much"),
    ("pg_file_", "writes files of the server"),
    ("pg_ls_", "reads folders of the server"),
    ("pg_stat_file", "reads files of the server"),
    ("pg_logdir_ls", "reads folders of the server"),
    ("pg_log_", "writes into the log of the server"),
    ("pg_stat_reset", "changes the server"),
    ("pg_stat_statements_reset", "changes the server"),
    ("pg_stat_force_next_flush", "changes the session"),
    ("pg_stat_clear_snapshot", "changes the session"),
    ("pg_advisory_", "a lock that outlives the statement, and may wait"),
    ("pg_try_advisory_", "a lock that outlives the statement"),
    ("pg_export_snapshot", "changes the session"),
    ("pg_notify", "tells other sessions"),
    ("pg_import_system_collations", "changes catalogs in one region"),
    ("pg_extension_config_dump", "changes catalogs in one region"),
    ("pg_nextoid", "changes catalogs in one region"),
    ("pg_prewarm", "loads whole tables"),
    ("pg_truncate_visibility_map", "damages a table"),
    ("pg_read_binary", "reads files of the server"),
    ("pg_surgery", "damages a table"),
    ("heap_force_", "damages a table"),
    ("binary_upgrade_", "for pg_upgrade alone"),
    ("brin_summarize_", "changes an index in one region"),
    ("brin_desummarize_", "changes an index in one region"),
    ("gin_clean_", "changes an index in one region"),
    ("set_config$", "changes the session; settings are drawn elsewhere"),
    ("setseed$", "changes the session"),
    ("set_limit$", "changes the session"),
    ("currval", "a sequence's state"),
    ("nextval", "a sequence's state"),
    ("setval", "a sequence's state"),
    ("lastval", "a sequence's state"),
    ("lo_", "changes large objects"),
    ("lo$", "changes large objects"),
    ("loread", "changes large objects"),
    ("lowrite", "changes large objects"),
    ("dblink", "reaches other servers"),
    ("postgres_fdw_", "reaches other servers"),
    ("database_to_xml", "the whole database as a value"),
    ("schema_to_xml", "a whole schema as a value"),
    ("table_to_xml", "a whole table as a value"),
    ("query_to_xml", "runs its argument"),
    ("cursor_to_xml", "needs a cursor"),
    ("ts_stat$", "runs its argument"),
    ("ts_rewrite$", "runs its argument"),
    ("ts_debug", "runs for very long"),
    ("connectby", "runs its argument"),
    ("crosstab", "runs its argument"),
    ("normal_rand", "as many rows as its argument says"),
    ("generate_series", "as many rows as its argument says"),
    ("show_all_", "all of the server's settings"),
    ("satisfies_hash_partition", "locks what it names"),
    ("bt_index_", "locks what it names"),
    ("pgstat", "reads whole tables"),
    ("verify_heapam", "reads whole tables"),
];

/// Schemas whose functions are left out.
const SCHEMAS: [(&str, &str); 4] = [
    ("onetrip", "asks the node, or makes entries"),
    ("topology", "makes schemas and tables"),
    ("tiger", "reads and makes tables"),
    ("made", "the generator's own"),
];

/// Functions of PostGIS that run DDL.
const DDL: [&str; 12] = [
    "addgeometrycolumn",
    "dropgeometrycolumn",
    "dropgeometrytable",
    "updategeometrysrid",
    "populate_geometry_columns",
    "addrasterconstraints",
    "droprasterconstraints",
    "addoverviewconstraints",
    "dropoverviewconstraints",
    "st_createoverview",
    "postgis_extensions_upgrade",
    "enablelongtransactions",
];

/// Why a function is left out; `None` if it is not.  `qualified` is its name with its schema.
pub fn reason(function: &str, qualified: &str) -> Option<&'static str> {
    let schema = qualified.split_once('.').map_or("", |(schema, _)| schema);
    if let Some((_, why)) = SCHEMAS.iter().find(|(name, _)| *name == schema) {
        return Some(why);
    }
    let function = function.trim_start_matches('_');
    if DDL.contains(&function) || function.starts_with("lockrow") || function.starts_with("unlockrow") {
        return Some("runs DDL, or makes tables of its own");
    }
    let matches = |pattern: &str| match pattern.strip_suffix('$') {
        Some(name) => function == name,
        None => function.starts_with(pattern),
    };
    DENIED.iter().find(|(pattern, _)| matches(pattern)).map(|(_, why)| *why)
}
