//! The page of a whole run in docs/measurements, and the blocks of tables in the README and in docs/comparison.md.
//!
//! Invariant: what people write between the page's marks `seen` is kept when the page is written again.

use std::path::Path;

use anyhow::{Context, Result};
use onetrip_lab::machine::{commit, load_averages, repository, Machine};
use onetrip_lab::page::{self, paragraph};

use crate::{figure, Bench, Section};

/// Sections, each with the name of its part.
type Sections = [(&'static str, Section)];

/// Marks the block of the page in which people say what the figures show.
const SEEN: &str = "seen";
/// Marks the block with the tables in a page that shows them.
const BENCH: &str = "make bench";
/// The pages that show tables of the newest run: relative to the repository's root, the folder from which links in it
/// start, and the parts that it shows; none: all that have something to show.
const SHOWN: [(&str, &str, &[&str]); 2] = [("README.md", "", &["published"]), ("docs/comparison.md", "docs/", &[])];

/// What is noted before the first measurement.
pub struct Before {
    machine: Machine,
    commit: String,
    load: String,
}

impl Before {
    pub fn now() -> Before {
        Before { machine: Machine::here(), commit: commit(), load: load_averages() }
    }
}

fn read(page: &str) -> Result<String> {
    std::fs::read_to_string(repository().join(page)).with_context(|| format!("read {page}"))
}

/// Fails if a page has no place for the tables; to be called before anything is measured.
pub fn check_places() -> Result<()> {
    SHOWN.iter().try_for_each(|(page, ..)| page::with_block(&read(page)?, BENCH, "").map(|_| ()).context(*page))
}

/// `folder`: that of the run's page, relative to the repository's root.
pub fn show(before: &Before, sections: &Sections, folder: &str) -> Result<()> {
    for (page, base, parts) in SHOWN {
        let block = block(before, sections, folder, base, parts);
        let text = page::with_block(&read(page)?, BENCH, &block).context(page)?;
        std::fs::write(repository().join(page), text).with_context(|| format!("write {page}"))?;
    }
    Ok(())
}

fn block(before: &Before, sections: &Sections, folder: &str, base: &str, parts: &[&str]) -> String {
    let mut block = String::from("\n");
    let shown = |part: &str| parts.is_empty() || parts.contains(&part);
    for (_, section) in sections.iter().filter(|(part, section)| shown(part) && !section.shown.is_empty()) {
        block += &format!("{}\n", section.shown.replace(&format!("]({base}"), "]("));
    }
    let folder = folder.strip_prefix(base).unwrap_or(folder);
    block += &paragraph(&format!(
        "`make bench` wrote these tables: {}, commit {}; [all figures and how they were measured]({folder}/README.md).",
        before.machine, before.commit
    ));
    block.push('\n');
    block
}

/// Writes the page, its drawings and its raw figures.
pub fn write_page(bench: &Bench, before: &Before, sections: &Sections, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let path = folder.join("README.md");
    let seen = std::fs::read_to_string(&path).ok().and_then(|text| page::block(&text, SEEN).map(String::from));
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    for (name, svg) in sections.iter().flat_map(|(_, section)| &section.files) {
        write(name, svg)?;
    }
    let figures = sections.iter().flat_map(|(part, section)| section.figures.iter().map(|figure| (*part, figure)));
    write("raw.tsv", &figure::raw(figures))?;
    write("README.md", &text(bench, before, sections, seen.as_deref().unwrap_or_default()))
}

fn text(bench: &Bench, before: &Before, sections: &Sections, seen: &str) -> String {
    let mut text = String::from("# Onetrip beside PostgreSQL: latency, throughput and cost\n\n");
    text += &paragraph(
        "**Question.** How near is a commit to the limit, one round trip to the nearest majority, from every region, \
         with any number of rows, indexes and voters; and what does it cost in CPU, bytes and packets, beside one \
         PostgreSQL, and beside a PostgreSQL that waits for as many synchronous standbys as make a majority with it \
         (`synchronous_standby_names = 'ANY 1 (*)'` for two), which is what one would use today to survive the loss of \
         a region?",
    );
    text.push('\n');
    text += &paragraph(&format!(
        "**Set-up.** One machine: {}, commit {}. Load averages before {}, after {}. `{}`, one run, {} s for each \
         measurement unless it says otherwise; every figure is in [raw.tsv](raw.tsv). The servers of all systems of a \
         table run at the same time and are measured in turn by pgbench on the same machine; only one is busy at a \
         time. Onetrip has a node and a PostgreSQL in each region, and TLS between them; the standbys' connections have \
         none. All have the same disk and \
         `shared_buffers`. A transaction updates one of 100,000 rows at random, in autocommit, unless it says otherwise, and \
         none is retried.",
        before.machine,
        before.commit,
        before.load,
        load_averages(),
        bench.command,
        bench.seconds
    ));
    text.push('\n');
    text += &paragraph(
        "Distances are emulated by threads with precise waits: Onetrip's in its nodes, whose CPU they count to; those \
         of the standbys, and of clients far from the primary, in links of the measuring program, which count to \
         nobody. Where there is no distance there is no link. CPU is that of all processes of a system in all regions, \
         until every region shows every commit, without pgbench. Bytes and packets are what the connections between \
         servers carry in both directions, by the kernel's counters (`ss -i`); a packet is a segment with data, of up \
         to 64 KB on loopback.",
    );
    text += &format!("\n{}", page::marked(SEEN, seen));
    for (_, section) in sections {
        text += &format!("\n## {}\n{}", section.heading, section.text);
    }
    text
}
