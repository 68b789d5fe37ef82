//! How long an append to the Raft log takes until it is durable: records of one entry, one after another, over several
//! segments.
//!
//! `cargo bench -p onetrip-node --bench log_append -- [--records 12000] [--bytes 16000] [--folder DIR]` prints a line
//! of Markdown; the folder decides which disk is measured.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{bail, Context, Result};
use bytes::Bytes;
use hdrhistogram::Histogram;
use onetrip_node::disk::RaftLog;
use raft::eraftpb::Entry;

fn main() -> Result<()> {
    let (mut records, mut bytes, mut folder) = (12_000_u64, 16_000_usize, std::env::temp_dir());
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(name) = args.next() {
        let value = args.next().with_context(|| format!("{name} has no value"))?;
        match name.as_str() {
            "--records" => records = value.parse()?,
            "--bytes" => bytes = value.parse()?,
            "--folder" => folder = PathBuf::from(value),
            _ => bail!("unknown option {name}"),
        }
    }
    let dir = tempfile::tempdir_in(folder)?;
    let mut log = RaftLog::open(&dir.path().join("log"))?;
    let data = Bytes::from(vec![7; bytes]);
    let mut took = Histogram::<u64>::new(3)?;
    let begin = Instant::now();
    for index in 1..=records {
        let entry = Entry { index, term: 1, data: data.clone(), ..Default::default() };
        let start = Instant::now();
        log.append(&[entry], None, true)?;
        took.record(start.elapsed().as_micros() as u64)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let ms = |us: u64| us as f64 / 1e3;
    println!("| records | bytes | mean ms | p50 ms | p99 ms | p99.9 ms | max ms | records/s |");
    println!("|---|---|---|---|---|---|---|---|");
    println!(
        "| {records} | {bytes} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} |",
        took.mean() / 1e3,
        ms(took.value_at_quantile(0.5)),
        ms(took.value_at_quantile(0.99)),
        ms(took.value_at_quantile(0.999)),
        ms(took.max()),
        records as f64 / seconds
    );
    Ok(())
}
