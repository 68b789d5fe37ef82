//! One measurement of one system, and the columns from which tables of measurements are made.

use onetrip_lab::page;
use onetrip_lab::pgbench::{Commit, Measurement};

#[derive(Clone)]
pub struct Figure {
    /// The region that the clients are in.
    pub region: String,
    /// What distinguishes it from the other figures of its table, apart from region, clients and system.
    pub case: String,
    pub system: String,
    pub clients: usize,
    /// Round trip from the clients' region to the nearest majority of all regions.
    pub limit_ms: f64,
    pub measured: Measurement,
    pub commits: Vec<Commit>,
    /// CPU time of all processes of the system, for each commit.
    pub cpu_us: f64,
    /// What the system's servers send each other, for each commit.
    pub bytes: f64,
    pub packets: f64,
    /// Those of the direction between two servers that has the most.
    pub busiest: f64,
    /// Where Onetrip's leader is; "a, then b" if it moved meanwhile.
    pub leader: String,
    /// Commits a second and CPU, divided by those of the replicated PostgreSQL that was measured beside it.
    pub beside: Option<(f64, f64)>,
}

impl Figure {
    pub fn to_limit(&self, ms: f64) -> String {
        if self.limit_ms > 0.0 {
            format!("{:.2}", ms / self.limit_ms)
        } else {
            String::new()
        }
    }
}

pub type Column = (&'static str, fn(&Figure) -> String);

pub const REGION: Column = ("clients in", |f| f.region.clone());
pub const CLIENTS: Column = ("clients", |f| f.clients.to_string());
pub const SYSTEM: Column = ("", |f| f.system.clone());
pub const LEADER: Column = ("leader", |f| f.leader.clone());
pub const LIMIT: Column = ("limit ms", |f| format!("{:.0}", f.limit_ms));
pub const COMMITS: Column = ("commits/s", |f| match f.measured.failed {
    0 => commits(f.measured.tps),
    failed => format!("{} ({failed} failed)", commits(f.measured.tps)),
});
pub const MIN: Column = ("min ms", |f| ms(f.measured.min_ms));
pub const MEAN: Column = ("mean ms", |f| ms(f.measured.mean_ms));
pub const P50: Column = ("p50 ms", |f| ms(f.measured.p50_ms));
pub const P99: Column = ("p99 ms", |f| ms(f.measured.p99_ms));
pub const P999: Column = ("p99.9 ms", |f| ms(f.measured.p999_ms));
pub const MAX: Column = ("max ms", |f| ms(f.measured.max_ms));
pub const MEAN_TO_LIMIT: Column = ("mean / limit", |f| f.to_limit(f.measured.mean_ms));
pub const P999_TO_LIMIT: Column = ("p99.9 / limit", |f| f.to_limit(f.measured.p999_ms));
pub const CPU: Column = ("CPU µs", |f| format!("{:.0}", f.cpu_us));
pub const BYTES: Column = ("bytes", |f| format!("{:.0}", f.bytes));
pub const PACKETS: Column = ("packets", |f| format!("{:.2}", f.packets));
pub const BUSIEST: Column = ("busiest direction", |f| format!("{:.2}", f.busiest));
pub const COMMITS_BESIDE: Column = ("commits to ANY", |f| ratio(f.beside.map(|(commits, _)| commits)));
pub const CPU_BESIDE: Column = ("CPU to ANY", |f| ratio(f.beside.map(|(_, cpu)| cpu)));

/// With three significant digits.
fn ms(ms: f64) -> String {
    if ms < 10.0 {
        format!("{ms:.2}")
    } else if ms < 100.0 {
        format!("{ms:.1}")
    } else {
        format!("{ms:.0}")
    }
}

fn commits(tps: f64) -> String {
    if tps < 10.0 {
        format!("{tps:.1}")
    } else {
        format!("{tps:.0}")
    }
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"))
}

pub fn table<'a>(columns: &[Column], figures: impl IntoIterator<Item = &'a Figure>) -> String {
    let mut lines = vec![columns.iter().map(|(name, _)| name.to_string()).collect()];
    lines.extend(figures.into_iter().map(|figure| columns.iter().map(|(_, cell)| cell(figure)).collect()));
    page::table(&lines)
}

/// All figures, for programs: a line for each, with fields separated by tabs.
pub fn raw<'a>(figures: impl IntoIterator<Item = (&'static str, &'a Figure)>) -> String {
    let mut text = String::from(
        "part\tregion\tcase\tclients\tsystem\tlimit_ms\ttransactions\tfailed\ttps\tmin_ms\tmean_ms\tp50_ms\tp99_ms\t\
         p999_ms\tmax_ms\tcpu_us\tbytes\tpackets\tbusiest\tleader\n",
    );
    for (part, f) in figures {
        let m = &f.measured;
        text += &format!(
            "{part}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{:.1}\t{:.3}\t{:.3}\t{:.3}\t{:.3}\t{:.3}\t{:.3}\t{:.1}\t{:.1}\t{:.3}\t{:.3}\t{}\n",
            f.region,
            f.case,
            f.clients,
            f.system,
            f.limit_ms,
            m.transactions,
            m.failed,
            m.tps,
            m.min_ms,
            m.mean_ms,
            m.p50_ms,
            m.p99_ms,
            m.p999_ms,
            m.max_ms,
            f.cpu_us,
            f.bytes,
            f.packets,
            f.busiest,
            f.leader
        );
    }
    text
}
