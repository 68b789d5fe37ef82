//! What read leases cost commits: the same updates in each region while no region holds a lease, a near one, the far
//! one, and all.  And for how long a holder that hangs stops commits.

use std::time::Duration;

use anyhow::{Context, Result};
use onetrip_lab::page::{self, paragraph};
use onetrip_lab::Topology;

use crate::figure::{self, Figure};
use crate::stand::{self, Load, Stand};
use crate::{Bench, Section};

/// Of topologies/us.toml: the leader's place, which is between the others, and the region that is far from both.
const LEADER: usize = 1;
const FAR: usize = 2;
/// For each of these, regions that hold leases.
const HOLDERS: [&[usize]; 4] = [&[], &[0], &[FAR], &[0, LEADER, FAR]];
/// The holder that hangs does so after the clients have run for this long.
const HANGS_AFTER: Duration = Duration::from_secs(1);

/// A commit is acknowledged once each holder has said that it has it: from its origin to the leader, on to the holder,
/// and back to the origin.
fn limit_ms(topology: &Topology, origin: usize, holders: &[usize], majority_ms: f64) -> f64 {
    let way = |holder: usize| {
        let links = [(origin, LEADER), (LEADER, holder), (holder, origin)];
        links.map(|(from, to)| topology.rtt_ms(from, to)).iter().sum::<f64>() / 2.0
    };
    holders.iter().map(|holder| way(*holder)).fold(majority_ms, f64::max)
}

fn names(stand: &Stand, holders: &[usize]) -> String {
    match holders.len() {
        0 => "none".into(),
        n if n == stand.cluster.nodes().len() => "all".into(),
        _ => holders.iter().map(|holder| stand.region_name(*holder)).collect::<Vec<_>>().join(", "),
    }
}

/// Updates in one region, while the node of the far one, which holds a lease, is stopped.
async fn holder_hangs(bench: &Bench, stand: &Stand) -> Result<Figure> {
    stand.hold_leases(&bench.binary, &[FAR]).await?;
    let seconds = bench.seconds.max(5);
    let load = Load { region: 0, case: "the holder hangs".into(), clients: 1, seconds, script: stand::one_row() };
    let hang = async {
        tokio::time::sleep(HANGS_AFTER).await;
        stand.cluster.node(FAR).pause()?;
        tokio::time::sleep(Duration::from_secs(seconds) - HANGS_AFTER).await;
        stand.cluster.node(FAR).resume()
    };
    let (measured, hung) = tokio::join!(stand.measure_onetrip(&load), hang);
    hung?;
    measured
}

pub async fn section(bench: &Bench) -> Result<Section> {
    let stand = Stand::start(&bench.binary, stand::topology("us.toml")?, LEADER, false).await?;
    stand.run_sql(&stand::table()).await?;
    let head = ["leases in", "clients in", "limit", "mean ms", "p50", "p99", "mean / without"];
    let (mut lines, mut figures, mut without) = (vec![head.map(String::from).to_vec()], Vec::new(), Vec::new());
    for holders in HOLDERS {
        stand.hold_leases(&bench.binary, holders).await?;
        for region in 0..stand.cluster.nodes().len() {
            let case = format!("leases: {}", names(&stand, holders));
            let load = Load { region, case, clients: 1, seconds: bench.seconds, script: stand::one_row() };
            let mut figure = stand.measure_onetrip(&load).await.with_context(|| format!("measure {}", load.case))?;
            figure.limit_ms = limit_ms(stand.cluster.topology(), region, holders, figure.limit_ms);
            let m = &figure.measured;
            if holders.is_empty() {
                without.push(m.mean_ms);
            }
            let mut line = vec![names(&stand, holders), figure.region.clone(), format!("{:.0}", figure.limit_ms)];
            line.extend([m.mean_ms, m.p50_ms, m.p99_ms].map(|ms| format!("{ms:.1}")));
            line.push(format!("{:.2}", m.mean_ms / without[region]));
            lines.push(line);
            figures.push(figure);
        }
    }
    let hung = holder_hangs(bench, &stand).await?;
    let about = paragraph(&format!(
        "One client updates one row at random, in each region in turn, with the leader in {}; which regions hold read \
         leases changes. *limit* is the longer of two: the round trip to the nearest majority, and the way from the \
         client's region to the leader, on to a region with a lease, and back. Leases cost nothing where that way is no \
         longer, and the whole distance where it is.",
        stand.region_name(LEADER)
    ));
    let hang = paragraph(&format!(
        "The node of {}, the one with a lease, is stopped (SIGSTOP) {} s after the client in {} has begun, and stays so: \
         the slowest commit took {:.0} ms, until the lease had run out, and p50 of the {} s is {:.1} ms.",
        stand.region_name(FAR),
        HANGS_AFTER.as_secs(),
        hung.region,
        hung.measured.max_ms,
        bench.seconds.max(5),
        hung.measured.p50_ms
    ));
    stand.stop().await?;
    figures.push(hung);
    let columns = [figure::REGION, figure::LIMIT, figure::MIN, figure::P999, figure::MAX, figure::CPU, figure::BYTES];
    let text = format!(
        "{about}\n{}\n{hang}\nMore of the same measurements, in the same order:\n\n{}",
        page::table(&lines),
        figure::table(&columns, &figures)
    );
    Ok(Section { heading: "What read leases cost commits", text, shown: String::new(), figures, files: vec![] })
}
