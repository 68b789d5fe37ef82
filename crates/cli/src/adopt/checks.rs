//! What in a database does not work in a cluster, or works differently: one query for each kind, which names what it
//! found.  The same queries run on a server that takes connections and, in single-user mode, on one that does not.

/// What follows for whom it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The database cannot be adopted as it is.
    Stops,
    /// What is named will end with an error.
    Fails,
    Differs,
}

impl Level {
    pub fn heading(self) -> &'static str {
        match self {
            Level::Stops => "has to be changed first:",
            Level::Fails => "will fail:",
            Level::Differs => "will be different:",
        }
    }
}

pub struct Check {
    pub level: Level,
    /// What is found, in front of the list of names.
    pub what: &'static str,
    pub todo: &'static str,
    /// Of the server and its machine, which stay behind where only the rows are copied.
    pub of_server: bool,
    /// Gives one column of type text, a row for each name.
    pub sql: String,
}

/// Members of these extensions keep rows of their own in each region: their code changes them as if they were catalogs.
pub const LOCAL_EXTENSIONS: &str = "'pg_cron'";

/// Which of `pg_class c` become replicated tables.  `local` are tables that their owner wants to keep local.
pub fn converted(local: &[String]) -> String {
    let mut condition = format!(
        "c.relkind IN ('r', 'm', 'p') AND c.relpersistence IN ('p', 'u') AND c.oid >= 16384 \
         AND c.relam = (SELECT oid FROM pg_am WHERE amname = 'heap') \
         AND c.relnamespace::regnamespace::text NOT IN ('onetrip', 'pg_catalog', 'information_schema', 'pg_toast') \
         AND NOT EXISTS (SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid \
           WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.refclassid = 'pg_extension'::regclass \
           AND d.deptype = 'e' AND e.extname IN ({LOCAL_EXTENSIONS}))"
    );
    if !local.is_empty() {
        let names: Vec<String> = local.iter().map(|name| literal(name)).collect();
        condition += &format!(" AND c.oid NOT IN (SELECT x::regclass FROM unnest(ARRAY[{}]) x)", names.join(", "));
    }
    condition
}

/// Functions about transactions and snapshots, and columns of a row's version, in PostgreSQL's regular expressions.
const TRANSACTION_IDS: &str = "\\m(pg_current_xact_id(_if_assigned)?|pg_current_snapshot|pg_xact_status|\
    pg_visible_in_snapshot|pg_snapshot_x(ip|max|min)|pg_xact_commit_timestamp|txid_current(_if_assigned|_snapshot)?|\
    txid_status|txid_visible_in_snapshot|txid_snapshot_x(ip|max|min)|xmin|xmax)\\M";
const OIDS: &str = "::oid\\M|\\mtableoid\\M|\\mhash(enum|oid)(extended)?\\(";

/// Expressions of which values are kept, or of which it depends whether a row is let in: `name` and `words`.
const KEPT_EXPRESSIONS: &str = "\
    SELECT 'column ' || adrelid::regclass || '.' || quote_ident(attname) AS name, pg_get_expr(adbin, adrelid) AS words \
    FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum \
    UNION ALL SELECT 'index ' || indexrelid::regclass, concat_ws(' ', pg_get_expr(indexprs, indrelid), \
    pg_get_expr(indpred, indrelid)) FROM pg_index WHERE indrelid >= 16384 \
    UNION ALL SELECT 'table ' || partrelid::regclass, pg_get_expr(partexprs, partrelid) FROM pg_partitioned_table \
    UNION ALL SELECT 'constraint ' || quote_ident(conname), pg_get_constraintdef(oid) FROM pg_constraint \
    WHERE contype = 'c' AND oid >= 16384 \
    UNION ALL SELECT 'domain ' || oid::regtype, pg_get_expr(typdefaultbin, 0) FROM pg_type \
    WHERE typtype = 'd' AND oid >= 16384";

/// Everything else that computes.
const OTHER_CODE: &str = "\
    SELECT 'view ' || oid::regclass, pg_get_viewdef(oid) FROM pg_class WHERE relkind IN ('v', 'm') AND oid >= 16384 \
    UNION ALL SELECT 'policy ' || quote_ident(polname) || ' on ' || polrelid::regclass, \
    concat_ws(' ', pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid)) FROM pg_policy \
    UNION ALL SELECT 'trigger ' || quote_ident(tgname) || ' on ' || tgrelid::regclass, pg_get_triggerdef(oid) \
    FROM pg_trigger WHERE tgqual IS NOT NULL \
    UNION ALL SELECT 'function ' || oid::regprocedure, coalesce(pg_get_function_sqlbody(oid), prosrc) FROM pg_proc p \
    WHERE oid >= 16384 AND NOT EXISTS \
    (SELECT FROM pg_depend WHERE classid = 'pg_proc'::regclass AND objid = p.oid AND deptype = 'e')";

pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// `stride`: of the cluster's sequences.
pub fn all(stride: u32, local: &[String]) -> Vec<Check> {
    use Level::{Differs, Fails, Stops};
    let check = |level, what, todo, sql: &str| Check { level, what, todo, of_server: false, sql: sql.to_string() };
    let server = |level, what, todo, sql: &str| Check { of_server: true, ..check(level, what, todo, sql) };
    let converted = converted(local);
    let mut checks = vec![
        check(
            Stops,
            "the name of the database, which every server has one of",
            "rename it (ALTER DATABASE ... RENAME TO ...), and create an empty one in its place",
            "SELECT current_database()::text WHERE current_database() IN ('postgres', 'template0', 'template1')",
        ),
        check(
            Stops,
            "the database's encoding is not UTF8",
            "dump it and load it into a database with ENCODING 'UTF8' TEMPLATE template0",
            "SELECT pg_encoding_to_char(encoding)::text FROM pg_database \
             WHERE datname = current_database() AND pg_encoding_to_char(encoding) <> 'UTF8'",
        ),
        server(
            Stops,
            "PostgreSQL is older than 15",
            "upgrade it first (pg_upgrade)",
            "SELECT current_setting('server_version') WHERE current_setting('server_version_num')::int < 150000",
        ),
        server(
            Stops,
            "it is a standby",
            "promote it (SELECT pg_promote()), or adopt its primary",
            "SELECT 'in recovery' WHERE pg_is_in_recovery()",
        ),
        check(
            Stops,
            "a name that Onetrip needs is in use",
            "rename or drop it; if it is a node's database already, there is nothing to adopt",
            "SELECT 'schema onetrip' FROM pg_namespace WHERE nspname = 'onetrip' \
             UNION ALL SELECT 'access method onetrip' FROM pg_am WHERE amname = 'onetrip' \
             UNION ALL SELECT 'replication origin onetrip' FROM pg_replication_origin WHERE roname = 'onetrip'",
        ),
        server(
            Stops,
            "the extension is not installed on this machine",
            "install it for this PostgreSQL; no restart is needed",
            "SELECT 'onetrip' WHERE NOT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'onetrip')",
        ),
        server(
            Stops,
            "the role with which a node connects to its own server is missing, or is not a superuser that may log in",
            "CREATE ROLE postgres SUPERUSER LOGIN, or ALTER ROLE postgres SUPERUSER LOGIN",
            "SELECT 'postgres' WHERE NOT EXISTS \
             (SELECT FROM pg_roles WHERE rolname = 'postgres' AND rolsuper AND rolcanlogin)",
        ),
        check(
            Stops,
            "prepared transactions",
            "COMMIT PREPARED or ROLLBACK PREPARED each of them, in its database",
            "SELECT quote_literal(gid) || ' in ' || database FROM pg_prepared_xacts",
        ),
        check(
            Stops,
            "subscriptions",
            "once they have caught up: ALTER SUBSCRIPTION ... DISABLE, then DROP SUBSCRIPTION",
            "SELECT quote_ident(subname) FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid \
             WHERE d.datname = current_database()",
        ),
        server(
            Differs,
            "subscriptions of other databases go on in this region; the servers of others are copies, which have them disabled",
            "nothing; if this server is lost, ALTER SUBSCRIPTION ... ENABLE in one of those",
            "SELECT quote_ident(subname) || ' in ' || quote_ident(datname) FROM pg_subscription s \
             JOIN pg_database d ON d.oid = s.subdbid WHERE subenabled AND datname <> current_database()",
        ),
        check(
            Stops,
            "extensions that keep tables in ways of their own",
            "drop them, or leave this database as it is",
            "SELECT quote_ident(extname) FROM pg_extension WHERE extname IN \
             ('timescaledb', 'citus', 'pglogical', 'spock', 'bdr', 'pgactive', 'pg_squeeze', 'orioledb')",
        ),
        Check {
            level: Differs,
            what: "sequences with too few values for the regions to share: what draws from them takes a round trip, and may \
                   get 40001",
            todo: "nothing, or ALTER SEQUENCE ... MAXVALUE (or MINVALUE), a smaller INCREMENT, or a smaller --stride",
            of_server: false,
            sql: format!(
                "SELECT seqrelid::regclass::text FROM pg_sequence JOIN pg_class c ON c.oid = seqrelid \
                 WHERE {stride} > 1 AND c.relpersistence <> 't' AND (seqincrement::numeric * {stride} \
                 NOT BETWEEN -9223372036854775807 AND 9223372036854775807 OR \
                 seqstart::numeric + seqincrement::numeric * ({stride} - 1) NOT BETWEEN seqmin AND seqmax)"
            ),
        },
        Check {
            level: Fails,
            what: "every write to tables partitioned by values that contain OIDs",
            todo: "partition them by LIST or by another column",
            of_server: false,
            sql: String::from(
                "SELECT DISTINCT c.oid::regclass::text FROM pg_partitioned_table p JOIN pg_class c ON c.oid = p.partrelid \
                 JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (p.partattrs::int2[]) \
                 JOIN pg_type t ON t.oid = a.atttypid WHERE partstrat IN ('h', 'r') \
                 AND (typname ~ '^reg' AND typnamespace = 'pg_catalog'::regnamespace OR typtype = 'e' AND partstrat = 'h')"
            ),
        },
        Check {
            level: Fails,
            what: "every row with such a value: columns of types whose values mean something on one server only",
            todo: "keep the text of the value in a column of type text",
            of_server: false,
            sql: format!(
                "SELECT c.oid::regclass || '.' || quote_ident(attname) FROM pg_attribute a \
                 JOIN pg_class c ON c.oid = attrelid JOIN pg_type t ON t.oid = atttypid \
                 WHERE attnum > 0 AND NOT attisdropped AND {converted} AND t.typnamespace = 'pg_catalog'::regnamespace \
                 AND typname IN ('pg_node_tree', 'pg_mcv_list', 'pg_ndistinct', 'pg_dependencies')"
            ),
        },
    ];
    checks.extend([
        Check {
            level: Differs,
            what: "tables without a key: UPDATE and DELETE send and look for the whole row, which costs more",
            todo: "ALTER TABLE ... ADD PRIMARY KEY, now or later",
            of_server: false,
            sql: format!(
                "SELECT c.oid::regclass::text FROM pg_class c WHERE {converted} AND c.relkind = 'r' \
                 AND c.relpersistence = 'p' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid \
                 AND indisunique AND indimmediate AND indisvalid AND indpred IS NULL AND indexprs IS NULL AND NOT EXISTS \
                 (SELECT FROM unnest(indkey[0:indnkeyatts - 1]) k JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k \
                 WHERE NOT attnotnull))"
            ),
        },
        Check {
            level: Differs,
            what: "transactions of two regions that write these tables at once: one of them gets 40001, whatever the rows \
                   (exclusion constraints, unique indexes under nondeterministic collations)",
            todo: "nothing, if applications run such transactions again",
            of_server: false,
            sql: format!(
                "SELECT DISTINCT c.oid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid \
                 WHERE {converted} AND (indisexclusion OR indisunique AND EXISTS \
                 (SELECT FROM unnest(indcollation) x JOIN pg_collation l ON l.oid = x WHERE NOT collisdeterministic))"
            ),
        },
        Check {
            level: Differs,
            what: "tables whose rows stay in their region: unlogged, foreign, of another access method, or named with --local",
            todo: "ALTER TABLE ... SET LOGGED, or SET ACCESS METHOD heap, before, if the rows shall be everywhere",
            of_server: false,
            sql: format!(
                "SELECT c.oid::regclass::text FROM pg_class c WHERE c.oid >= 16384 AND c.relpersistence <> 't' \
                 AND c.relnamespace::regnamespace::text NOT IN ('pg_catalog', 'information_schema', 'pg_toast') \
                 AND (relkind = 'f' OR relkind IN ('r', 'm') AND (relpersistence = 'u' OR NOT ({converted})))"
            ),
        },
        check(
            Differs,
            "sequences: regions give values in turn, so there are gaps, and the highest value is reached sooner; more than \
             four fifths of the values of these are used",
            "ALTER SEQUENCE ... AS bigint, and the column with it, before the values run out",
            "SELECT quote_ident(schemaname) || '.' || quote_ident(sequencename) FROM pg_sequences WHERE last_value IS NOT NULL \
             AND CASE WHEN increment_by > 0 THEN max_value - last_value::numeric ELSE last_value::numeric - min_value END \
             < (max_value::numeric - min_value) / 5",
        ),
        check(
            Differs,
            "triggers ENABLE ALWAYS or ENABLE REPLICA: they fire where a statement runs, and not for rows of other regions",
            "nothing: what they write travels",
            "SELECT quote_ident(tgname) || ' on ' || tgrelid::regclass FROM pg_trigger \
             WHERE tgenabled IN ('A', 'R') AND NOT tgisinternal",
        ),
        check(
            Differs,
            "event triggers fire in the region where a statement runs",
            "nothing: what they do travels",
            "SELECT quote_ident(evtname) FROM pg_event_trigger WHERE evtenabled <> 'D'",
        ),
        Check {
            level: Differs,
            what: "transaction ids and snapshots, and xmin and xmax of rows, are each server's own: they say nothing about \
                   those of another region",
            todo: "compare what the rows carry: a sequence's value, now(), or a version that each UPDATE raises",
            of_server: false,
            sql: format!(
                "SELECT name FROM ({KEPT_EXPRESSIONS} UNION ALL {OTHER_CODE}) d WHERE words ~* '{TRANSACTION_IDS}'"
            ),
        },
        Check {
            level: Differs,
            what: "definitions that compute with OIDs: each server gives its objects others",
            todo: "use the names of objects (::regclass::text), or numbers of your own",
            of_server: false,
            sql: format!("SELECT name FROM ({KEPT_EXPRESSIONS}) d WHERE words ~* '{OIDS}'"),
        },
        check(
            Differs,
            "indexes that are not valid",
            "REINDEX INDEX CONCURRENTLY, or DROP INDEX",
            "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid AND indexrelid >= 16384",
        ),
        check(
            Differs,
            "extensions: every server needs the same versions of them",
            "install them on each machine before it joins",
            "SELECT quote_ident(extname) || ' ' || extversion FROM pg_extension WHERE extname NOT IN ('plpgsql', 'onetrip')",
        ),
        check(
            Differs,
            "scheduled jobs run in every region, and their tables are each region's own",
            "schedule them in one region",
            "SELECT quote_ident(extname) FROM pg_extension WHERE extname IN ('pg_cron', 'pg_timetable', 'pgagent')",
        ),
        check(
            Differs,
            "libraries of functions in C: every server needs them",
            "install them on each machine before it joins",
            "SELECT DISTINCT probin FROM pg_proc p WHERE probin IS NOT NULL AND oid >= 16384 AND NOT EXISTS \
             (SELECT FROM pg_depend WHERE classid = 'pg_proc'::regclass AND objid = p.oid AND deptype = 'e')",
        ),
        server(
            Differs,
            "libraries in shared_preload_libraries: every server needs them",
            "install them on each machine before it joins",
            "SELECT setting FROM pg_file_settings WHERE name = 'shared_preload_libraries' AND setting NOT IN ('', 'onetrip') \
             ORDER BY seqno DESC LIMIT 1",
        ),
        server(
            Differs,
            "tablespaces: their folders must exist, and be empty, on every machine before it joins",
            "make them, or move everything to pg_default (ALTER TABLE ALL IN TABLESPACE ... SET TABLESPACE pg_default)",
            "SELECT quote_ident(spcname) || ' in ' || pg_tablespace_location(oid) FROM pg_tablespace WHERE oid >= 16384",
        ),
        server(
            Differs,
            "other databases of the server are not replicated; each region that joins gets a copy of its own",
            "drop them, or move them elsewhere",
            "SELECT quote_ident(datname) FROM pg_database \
             WHERE datname NOT IN (current_database(), 'postgres', 'template0', 'template1')",
        ),
        check(
            Differs,
            "locales: every server needs them, in the same version",
            "install them on each machine before it joins, from the same release of the system; then `onetrip check --indexes`",
            "SELECT 'database ' || CASE datlocprovider WHEN 'i' THEN 'ICU ' ELSE '' END || datcollate || ' ' \
             || coalesce(datcollversion, '') FROM pg_database WHERE datname = current_database() \
             AND (datlocprovider = 'i' OR datcollate NOT IN ('C', 'POSIX', 'C.UTF-8'))",
        ),
        check(
            Differs,
            "collations whose version is not that of this machine any more: their indexes may be wrong already",
            "REINDEX what uses them, then ALTER COLLATION (or DATABASE) ... REFRESH (COLLATION) VERSION",
            "SELECT 'database ' || datname FROM pg_database WHERE datname = current_database() \
             AND datcollversion <> pg_database_collation_actual_version(oid) \
             UNION ALL SELECT 'collation ' || quote_ident(collname) FROM pg_collation \
             WHERE collversion <> pg_collation_actual_version(oid)",
        ),
        server(
            Differs,
            "replication slots hold WAL on this server, and are not copied to others",
            "SELECT pg_drop_replication_slot(...), once nobody needs them",
            "SELECT quote_ident(slot_name) FROM pg_replication_slots",
        ),
        server(
            Differs,
            "data checksums are off: a damaged page is not noticed when it is read",
            "pg_checksums --enable, while the server is stopped (it reads every file)",
            "SELECT 'data_checksums' WHERE current_setting('data_checksums') = 'off'",
        ),
        server(
            Differs,
            "files that settings name: every server needs them at the same place",
            "copy them to each machine before it joins, or put them into the data folder",
            "SELECT DISTINCT name || ' = ' || setting FROM pg_file_settings WHERE setting LIKE '/%' AND name NOT IN \
             ('data_directory', 'hba_file', 'ident_file', 'external_pid_file', 'unix_socket_directories') \
             AND name !~ '^(archive|restore|recovery|primary)_'",
        ),
    ]);
    checks.sort_by_key(|check| check.level);
    checks
}
