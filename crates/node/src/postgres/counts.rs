//! What this node's PostgreSQL has counted since it started, asked in a session of its own whenever somebody wants to
//! see it.  Nothing that commits waits for this.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_postgres::NoTls;

use super::SEARCH_PATH;
use crate::config::NodeConfig;

/// A server that takes longer is busy with something else.
const PATIENCE: Duration = Duration::from_millis(600);
/// Within this time the same answer is given again.
const GOOD_FOR: Duration = Duration::from_millis(500);
/// The tables that most was lost over.
const TABLES: usize = 10;
/// Transactions that lost last.
const LOSERS: usize = 10;
/// Jobs that are not done.
const JOBS: usize = 20;

/// Keys of conflicts and errors of jobs are left out: they contain values of rows, and whoever reads this may have no
/// right to see those.
fn query() -> String {
    let finite = |name: &str| format!("CASE WHEN {name} < 'Infinity' THEN {name} END");
    format!(
        "SELECT json_build_object(
             'version', current_setting('server_version'),
             'extension', (SELECT extversion FROM pg_extension WHERE extname = 'onetrip'),
             'level_known', (SELECT coalesce(max(max_val::integer), 0) FROM pg_settings
                              WHERE name = 'onetrip.format_level' AND vartype = 'integer'),
             'up_s', extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8,
             'sessions', (SELECT count(*) FROM pg_stat_activity
                           WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()),
             'ids_age', (SELECT max(greatest(age(datfrozenxid), mxid_age(datminmxid))) FROM pg_database),
             'sessions_max', current_setting('max_connections')::integer,
             'wal_bytes', (SELECT coalesce(sum(size), 0)::bigint FROM pg_ls_waldir()),
             'rollbacks', d.xact_rollback, 'deadlocks', d.deadlocks,
             'proposals', s.proposals, 'evictions', s.evictions, 'handovers', s.handovers,
             'applied_entries', s.applied_entries, 'apply_transactions', s.apply_transactions,
             'failing', s.failing,
             'lost', (SELECT json_build_object('lost_at_commit', coalesce(sum(lost_at_commit), 0)::bigint,
                                 'too_old', coalesce(sum(too_old), 0)::bigint,
                                 'evicted', coalesce(sum(evicted), 0)::bigint,
                                 'reserved', coalesce(sum(reserved), 0)::bigint)
                        FROM onetrip.conflicts_by_table),
             'tables', (SELECT coalesce(json_agg(t), '[]') FROM (
                            SELECT \"table\", commits, lost_at_commit, too_old, evicted, reserved, lost_share
                              FROM onetrip.conflicts_by_table
                             WHERE lost_at_commit + too_old + evicted + reserved > 0
                             ORDER BY lost_at_commit + too_old + evicted + reserved DESC LIMIT {TABLES}) AS t),
             'losers', (SELECT coalesce(json_agg(l), '[]') FROM (
                            SELECT extract(epoch FROM ago)::float8 AS ago_s, kind, \"table\", application,
                                   lost_to_region, lost_to_entry
                              FROM onetrip.conflicts ORDER BY at DESC LIMIT {LOSERS}) AS l),
             'commits', (SELECT coalesce(json_agg(json_build_object('part', part, 'count', count,
                                    'mean_ms', mean_ms, 'p50_ms', {p50}, 'p95_ms', {p95}, 'p99_ms', {p99},
                                    'max_ms', {max})), '[]')
                           FROM onetrip.commits),
             'histogram', (SELECT coalesce(json_agg(json_build_object('up_to_ms', {up_to}, 'count', count)
                                                    ORDER BY up_to_ms), '[]')
                             FROM onetrip.commit_histogram WHERE part = 'whole'),
             'histogram_sum_ms', (SELECT coalesce(max(part_sum_ms), 0) FROM onetrip.commit_histogram
                                   WHERE part = 'whole'),
             'crossings', (SELECT coalesce(json_object_agg(cause, count), '{{}}') FROM onetrip.crossings),
             'jobs', (SELECT coalesce(json_agg(j), '[]') FROM (
                          SELECT statement, \"table\", index, state, progress, attempts
                            FROM onetrip.jobs
                           WHERE state <> 'done' AND node_id = current_setting('onetrip.node_id')::integer
                           ORDER BY since LIMIT {JOBS}) AS j))::text
           FROM onetrip.status AS s, pg_stat_database AS d
          WHERE d.datname = current_database()",
        p50 = finite("p50_ms"),
        p95 = finite("p95_ms"),
        p99 = finite("p99_ms"),
        max = finite("max_ms"),
        up_to = finite("up_to_ms"),
    )
}

/// The counts, or why the server does not tell them.
pub type Told = Result<Value, String>;

/// Asks the server, at most once at a time.
pub struct Counts {
    socket: PathBuf,
    database: String,
    last: Mutex<Option<(Instant, Arc<Told>)>>,
}

impl Counts {
    /// `None`: the node has no PostgreSQL.
    pub fn of(config: &NodeConfig) -> Option<Counts> {
        let postgres = config.postgres.as_ref()?;
        let socket = config.data_dir.join(format!(".s.PGSQL.{}", postgres.port));
        Some(Counts { socket, database: postgres.database.clone(), last: Mutex::default() })
    }

    pub async fn now(&self) -> Arc<Told> {
        let mut last = self.last.lock().await;
        if let Some((_, told)) = last.as_ref().filter(|(at, _)| at.elapsed() < GOOD_FOR) {
            return told.clone();
        }
        let asked = tokio::time::timeout(PATIENCE, self.ask()).await;
        let told = Arc::new(asked.unwrap_or_else(|_| Err("it takes too long to answer".into())));
        *last = Some((Instant::now(), told.clone()));
        told
    }

    async fn ask(&self) -> Told {
        let client = own_session(&self.socket, &self.database, "onetrip status").await?;
        let row = client.query_one(&query(), &[]).await.map_err(why)?;
        let text: &str = row.try_get(0).map_err(why)?;
        serde_json::from_str(text).map_err(|e| e.to_string())
    }
}

pub(super) fn why(e: tokio_postgres::Error) -> String {
    match e.as_db_error() {
        Some(said) => said.message().to_string(),
        None => e.to_string(),
    }
}

/// A session of the node's own with its server, which reads only.  No ALTER ROLE or ALTER DATABASE makes it wait for
/// other regions, or run on after nobody waits for it.
pub(crate) async fn own_session(
    socket: &Path,
    database: &str,
    application_name: &str,
) -> Result<tokio_postgres::Client, String> {
    let stream = UnixStream::connect(socket).await.map_err(|_| "it takes no connections".to_string())?;
    let mut config = tokio_postgres::Config::new();
    config.user("postgres").dbname(database).application_name(application_name).options(format!(
        "-c statement_timeout=1000 -c lock_timeout=100 -c default_transaction_isolation=read\\ committed \
         -c default_transaction_read_only=on -c role=none -c search_path={SEARCH_PATH} \
         -c session_preload_libraries= -c local_preload_libraries= -c onetrip.read=local \
         -c onetrip.max_staleness=-1 -c onetrip.max_trips=-1 -c log_min_error_statement=panic \
         -c client_min_messages=error",
    ));
    let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(why)?;
    // The task ends when the client is dropped.
    tokio::spawn(connection);
    Ok(client)
}
