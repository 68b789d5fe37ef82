//! What a row costs in CPU: at its origin, and in the apply worker of another region, compared with plain heap.
//!
//! Tables of 1, 10 and 100 columns, one with a jsonb and one with a TOASTed text; INSERT ... SELECT, UPDATE of one
//! column and of all, DELETE.  Each statement is a transaction of many rows.  CPU time is how long the two processes
//! ran according to the kernel (/proc/PID/schedstat); other processes on the machine disturb it less than they
//! disturb the elapsed time.  In the same rounds each statement also runs on a heap table with the same rows, where
//! nothing is captured.
//!
//! `cargo bench -p onetrip-lab --bench rows -- --out docs/measurements/DATE-rows` (or `make bench-rows`) writes
//! README.md and raw.tsv there; without `--out` the table goes to standard output.  `--rounds` sets the number of
//! rounds, 7 unless given; one more comes before them and is not counted.
//!
//! To measure another build, set ONETRIP_BIN (its `onetrip-lab`) and ONETRIP_POSTGRES_BIN (the programs of the
//! PostgreSQL that has its extension); `--build TEXT` says in the README which one it was.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use onetrip_lab::machine::{commit, load_averages, repository, Machine};
use onetrip_lab::{Cluster, Topology};

/// The columns that the tables of 10 and 100 columns have in turn after their key: type, value of row `i`, and the
/// value that an UPDATE of all columns gives.
const MIX: [(&str, &str, &str); 7] = [
    ("int", "(i * 7 + $n) % 1000000", "$c + 1"),
    ("text", "left(md5(i || '-' || $n), 20)", "reverse($c)"),
    ("bigint", "i * 1000003 + $n", "$c + 1"),
    ("timestamptz", "timestamptz '2026-01-01 00:00Z' + i * interval '1.5 s'", "$c + interval '1 s'"),
    ("numeric", "(i * 1.37 + $n)::numeric(12,2)", "$c + 0.01"),
    ("bool", "(i + $n) % 2 = 0", "not $c"),
    ("uuid", "md5($n || '-' || i)::uuid", "md5($c::text)::uuid"),
];

struct Table {
    name: &'static str,
    rows: u64,
    columns: String,
    values: String,
    /// SET lists; a table with only a key has no column to update alone.
    one: Option<String>,
    all: String,
}

fn mixed(name: &'static str, columns: usize, rows: u64) -> Table {
    let mut table = Table {
        name,
        rows,
        columns: "id bigint primary key".into(),
        values: "i".into(),
        one: Some("c1 = c1 + 1".into()),
        all: String::new(),
    };
    for n in 1..columns {
        let (kind, value, changed) = MIX[(n - 1) % MIX.len()];
        let column = format!("c{n}");
        let _ = write!(table.columns, ", {column} {kind}");
        let _ = write!(table.values, ", {}", value.replace("$n", &n.to_string()));
        let comma = if n == 1 { "" } else { ", " };
        let _ = write!(table.all, "{comma}{column} = {}", changed.replace("$c", &column));
    }
    table
}

fn tables() -> Vec<Table> {
    let jsonb =
        "jsonb_build_object('name', left(md5('n' || i), 20), 'tags', jsonb_build_array('red', 'green', 'blue', i), \
                 'address', jsonb_build_object('street', md5('s' || i), 'city', md5('c' || i), 'zip', i % 100000), \
                 'active', i % 2 = 0, 'score', i * 1.5, 'note', repeat(md5('t' || i), 6))";
    // 466 hashes, each of 43 characters in base64: 20,038 bytes that no compression makes smaller.
    let large = "(select string_agg(translate(encode(sha256((i || '-' || g)::text::bytea), 'base64'), '=', ''), '') \
                 from generate_series(1, 466) g)";
    vec![
        Table {
            name: "1 column",
            rows: 100_000,
            columns: "id bigint primary key".into(),
            values: "i".into(),
            one: None,
            all: "id = id + 1000000".into(),
        },
        mixed("10 columns", 10, 40_000),
        mixed("100 columns", 100, 5_000),
        Table {
            name: "jsonb of 500 bytes",
            rows: 20_000,
            columns: "id bigint primary key, n int, doc jsonb".into(),
            values: format!("i, i, {jsonb}"),
            one: Some("n = n + 1".into()),
            all: "n = n + 1, doc = doc || '{\"seen\": true}'".into(),
        },
        Table {
            name: "text of 20 kB, TOASTed",
            rows: 1_000,
            columns: "id bigint primary key, n int, body text".into(),
            values: format!("i, i, {large}"),
            one: Some("n = n + 1".into()),
            all: "n = n + 1, body = reverse(body)".into(),
        },
    ]
}

/// What one statement cost, per row.
struct Cost {
    table: usize,
    statement: &'static str,
    round: usize,
    origin_us: f64,
    heap_us: f64,
    apply_us: f64,
    bytes: f64,
}

/// Nanoseconds that a process of one thread has run.
fn cpu_ns(pid: i32) -> Result<u64> {
    let path = format!("/proc/{pid}/schedstat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let first = text.split_whitespace().next().context("an empty schedstat")?;
    first.parse().with_context(|| format!("{path} says {text:?}"))
}

async fn backend_pid(client: &tokio_postgres::Client) -> Result<i32> {
    Ok(client.query_one("select pg_backend_pid()", &[]).await?.get(0))
}

async fn worker_pid(client: &tokio_postgres::Client) -> Result<i32> {
    let worker = "select pid from pg_stat_activity where backend_type = 'onetrip apply worker'";
    Ok(client.query_one(worker, &[]).await.context("find the apply worker")?.get(0))
}

struct Servers {
    cluster: Cluster,
    origin: tokio_postgres::Client,
    origin_pid: i32,
    other: tokio_postgres::Client,
    worker_pid: i32,
}

impl Servers {
    async fn start(binary: &Path) -> Result<Servers> {
        let topology = Topology::load(&repository().join("topologies/flat.toml"))?;
        let cluster = Cluster::builder()
            .topology(topology)
            .binary(binary)
            // Autovacuum and timed checkpoints would slow some statements and not others.
            .postgres_setting("autovacuum", "off")
            .postgres_setting("checkpoint_timeout", "1h")
            .postgres_setting("max_wal_size", "8GB")
            .start()
            .await?;
        let leader = cluster.settled().await?;
        let origin = cluster.connect(leader).await?;
        let other = cluster.connect((leader + 1) % cluster.nodes().len()).await?;
        // A worker of a parallel query is a process of its own, whose CPU time would not be counted.
        origin.batch_execute("set max_parallel_workers_per_gather = 0; set jit = off; set timezone = 'UTC'").await?;
        let (origin_pid, worker_pid) = (backend_pid(&origin).await?, worker_pid(&other).await?);
        Ok(Servers { cluster, origin, origin_pid, other, worker_pid })
    }

    /// Runs a statement on `rows` rows as a transaction of its own; returns the CPU time per row of the origin, in
    /// microseconds, and the bytes per row that COMMIT sends.
    async fn measure(&self, statement: &str, rows: u64) -> Result<(f64, f64)> {
        let before = cpu_ns(self.origin_pid)?;
        self.origin.batch_execute("begin").await?;
        let done = self.origin.execute(statement, &[]).await.with_context(|| statement.to_string())?;
        ensure!(done == rows, "{statement}: {done} rows, not {rows}");
        let bytes: i64 = self.origin.query_one("select onetrip.pending_bytes()", &[]).await?.get(0);
        self.origin.batch_execute("commit").await?;
        let ns = cpu_ns(self.origin_pid)? - before;
        Ok((ns as f64 / 1e3 / rows as f64, bytes as f64 / rows as f64))
    }

    async fn round(&self, number: usize, table: usize, t: &Table, costs: &mut Vec<Cost>) -> Result<()> {
        self.origin.batch_execute("truncate rows; truncate plain").await?;
        self.cluster.converge().await?;
        let mut statements = vec![("INSERT", "insert into $t select * from source".to_string())];
        if let Some(one) = &t.one {
            statements.push(("UPDATE of one column", format!("update $t set {one}")));
        }
        statements.push(("UPDATE of all columns", format!("update $t set {}", t.all)));
        statements.push(("DELETE", "delete from $t".to_string()));
        for (statement, sql) in statements {
            // The one that runs first warms the caches for the other.
            let (heap_us, (origin_us, apply_us, bytes)) = if number % 2 == 0 {
                let heap = self.on_heap(&sql, t).await?;
                (heap, self.replicated(&sql, t).await?)
            } else {
                let replicated = self.replicated(&sql, t).await?;
                (self.on_heap(&sql, t).await?, replicated)
            };
            costs.push(Cost { table, statement, round: number, origin_us, heap_us, apply_us, bytes });
        }
        Ok(())
    }

    async fn on_heap(&self, sql: &str, t: &Table) -> Result<f64> {
        let (us, bytes) = self.measure(&sql.replace("$t", "plain"), t.rows).await?;
        ensure!(bytes == 0.0, "a heap table is captured");
        Ok(us)
    }

    /// CPU time per row at the origin and in the apply worker, in microseconds, and bytes per row.
    async fn replicated(&self, sql: &str, t: &Table) -> Result<(f64, f64, f64)> {
        let before = cpu_ns(self.worker_pid)?;
        let (origin_us, bytes) = self.measure(&sql.replace("$t", "rows"), t.rows).await?;
        self.cluster.converge().await?;
        ensure!(worker_pid(&self.other).await? == self.worker_pid, "the apply worker has ended meanwhile");
        let apply_us = (cpu_ns(self.worker_pid)? - before) as f64 / 1e3 / t.rows as f64;
        Ok((origin_us, apply_us, bytes))
    }

    /// Checks that rows arrive: both regions must show the same.
    async fn check_alike(&self, t: &Table) -> Result<()> {
        self.origin.batch_execute("insert into rows select * from source").await?;
        self.cluster.converge().await?;
        let digest = "select count(*) || ' ' || coalesce(sum(hashtextextended(r::text, 0)::numeric), 0) from rows r";
        self.other.batch_execute("set timezone = 'UTC'").await?;
        let here: String = self.origin.query_one(digest, &[]).await?.get(0);
        let there: String = self.other.query_one(digest, &[]).await?.get(0);
        ensure!(here == there && here.starts_with(&format!("{} ", t.rows)), "{}: {here} here, {there} there", t.name);
        Ok(())
    }

    async fn table(&self, table: usize, t: &Table, rounds: usize, costs: &mut Vec<Cost>) -> Result<()> {
        // The source is the same for both tables, so that reading it costs the same in both figures.
        self.origin
            .batch_execute(&format!(
                "create table source ({columns}) using heap;
                 create table plain ({columns}) using heap;
                 create table rows ({columns});
                 insert into source select {values} from generate_series(1, {rows}::bigint) i",
                columns = t.columns,
                values = t.values,
                rows = t.rows,
            ))
            .await
            .with_context(|| t.name)?;
        self.origin.batch_execute("vacuum analyze source").await?;
        if t.name.contains("TOASTed") {
            let stored = "select min(pg_column_size(body)), min(octet_length(body)) from source";
            let stored = self.origin.query_one(stored, &[]).await?;
            let (stored, bytes): (i32, i32) = (stored.get(0), stored.get(1));
            ensure!(stored == bytes && bytes > 19_000, "{bytes} bytes are stored as {stored}");
        }
        for number in 0..=rounds {
            let mut of_round = Vec::new();
            self.round(number, table, t, &mut of_round).await.with_context(|| t.name)?;
            // The first round fills caches.
            if number > 0 {
                costs.extend(of_round);
            }
        }
        self.check_alike(t).await?;
        self.origin.batch_execute("drop table source, plain, rows").await?;
        eprintln!("rows: {} measured", t.name);
        Ok(())
    }
}

struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
    Spread { min: at(0), median: at(values.len() / 2), max: at(values.len().saturating_sub(1)) }
}

fn markdown(tables: &[Table], costs: &[Cost]) -> String {
    let mut medians = String::from(
        "| table | statement | heap | origin | × heap | apply | × heap | bytes in the log |\n|---|---|---|---|---|---|---|---|\n",
    );
    let mut spreads = String::from("| table | statement | heap | origin | apply |\n|---|---|---|---|---|\n");
    let mut order: Vec<(usize, &str)> = Vec::new();
    let mut groups: BTreeMap<(usize, &str), Vec<&Cost>> = BTreeMap::new();
    for cost in costs {
        let key = (cost.table, cost.statement);
        if !groups.contains_key(&key) {
            order.push(key);
        }
        groups.entry(key).or_default().push(cost);
    }
    for key in order {
        let of = |value: fn(&Cost) -> f64| spread(groups[&key].iter().map(|c| value(c)).collect());
        let (heap, origin, apply) = (of(|c| c.heap_us), of(|c| c.origin_us), of(|c| c.apply_us));
        // Ratios within a round, since whatever slows the machine slows both.
        let (dearer, applied) = (of(|c| c.origin_us / c.heap_us), of(|c| c.apply_us / c.heap_us));
        let named = format!("| {} | {}", tables[key.0].name, key.1);
        let _ = writeln!(
            medians,
            "{named} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} |",
            heap.median,
            origin.median,
            dearer.median,
            apply.median,
            applied.median,
            of(|c| c.bytes).median
        );
        let shown = |s: &Spread| format!("{:.2}–{:.2}", s.min, s.max);
        let _ = writeln!(spreads, "{named} | {} | {} | {} |", shown(&heap), shown(&origin), shown(&apply));
    }
    format!("Medians:\n\n{medians}\nLeast and greatest round:\n\n{spreads}")
}

fn raw(tables: &[Table], costs: &[Cost]) -> String {
    let mut text = String::from("table\tstatement\tround\trows\theap_us\torigin_us\tapply_us\tbytes\n");
    for c in costs {
        let t = &tables[c.table];
        let _ = writeln!(
            text,
            "{}\t{}\t{}\t{}\t{:.3}\t{:.3}\t{:.3}\t{:.1}",
            t.name, c.statement, c.round, t.rows, c.heap_us, c.origin_us, c.apply_us, c.bytes
        );
    }
    text
}

fn report(tables: &[Table], costs: &[Cost], rounds: usize, build: &str) -> String {
    let Machine { cores, processor, postgres } = Machine::here();
    let load = load_averages();
    let rows: Vec<String> = tables.iter().map(|t| format!("- {}: {}", t.name, t.rows)).collect();
    format!(
        "# What a row costs

**Question.** How much CPU time does a row take in the backend that writes it and in another
region's apply worker, compared with the same statement on a heap table, and how many bytes does it
have in the log?

**Set-up.** One machine, {cores} cores ({processor}),
{postgres}, {build}.
Load averages at the end: {load}.
Three regions without distance (topologies/flat.toml) on this machine, one client.
{rounds} rounds were measured after one that is not counted; each is in [raw.tsv](raw.tsv).
Full-page images, checkpoints and autovacuum are avoided as far as settings allow. No figure
includes the costs of the node. Each statement is a transaction over all rows of its table:

{}

**Figures.** Microseconds of CPU per row. The ratios are medians of the ratios within a round.
\"Apply\" is the worker of the second region. An INSERT selects from a heap table, which is part of
what it costs on heap too. The UPDATE of one column changes an int that is in no index. The UPDATE
of all columns does not change the key, except where the key is the only column.

{}",
        rows.join("\n"),
        markdown(tables, costs)
    )
}

async fn measure(binary: &Path, tables: &[Table], rounds: usize) -> Result<Vec<Cost>> {
    let servers = Servers::start(binary).await?;
    let mut costs = Vec::new();
    for (number, table) in tables.iter().enumerate() {
        servers.table(number, table, rounds, &mut costs).await?;
    }
    servers.cluster.stop().await?;
    Ok(costs)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|a| a == name).map(|at| args.get(at + 1).cloned());
    let rounds = match value("--rounds") {
        Some(text) => text.context("--rounds takes a number")?.parse().context("read --rounds")?,
        None => 7,
    };
    ensure!(rounds > 0, "--rounds takes a number above 0");
    let out = value("--out").map(|text| text.context("--out takes a folder")).transpose()?;
    let build = match value("--build") {
        Some(text) => text.context("--build takes a text")?,
        None => format!("commit {}", commit()),
    };
    let binary = std::env::var_os("ONETRIP_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_onetrip-lab").into());
    let tables = tables();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let costs = runtime.block_on(measure(&PathBuf::from(binary), &tables, rounds))?;
    let text = report(&tables, &costs, rounds, &build);
    println!("{text}");
    if let Some(out) = out {
        // cargo runs a bench in its package's folder.
        let folder = repository().join(out);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("README.md"), text)?;
        std::fs::write(folder.join("raw.tsv"), raw(&tables, &costs))?;
    }
    Ok(())
}
