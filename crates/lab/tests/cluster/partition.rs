//! Links between regions are cut and restored under load: regions that form a majority go on, and nothing that was
//! acknowledged is lost.

use crate::lab::{builder, start_from, until, Lab, SOON};
use crate::load::Load;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_links_lose_nothing() {
    let lab = start_from(
        "partition",
        "regions cut off in turn, then single links: a majority goes on, the rest comes back, nothing is lost",
        // With certificates, as outside of a lab.
        builder().init_arg("--tls").postgres_setting("onetrip.commit_timeout", "2s"),
    )
    .await;
    let load = Load::start(&lab).await;
    load.progress(&lab, &[0, 1, 2], "at the start").await;
    for victim in [0, 1, 2, 0] {
        cut_off(&lab, victim, true).await;
        let open = load.open(victim);
        load.others_progress(&lab, victim, "a cut of all links").await;
        // Wait until COMMITs in the region that is alone end without a known outcome.
        until("COMMIT without a majority ends", SOON, || async { Ok(load.open(victim) > open) }).await.unwrap();
        load.others_progress(&lab, victim, "a long cut of all links").await;
        cut_off(&lab, victim, false).await;
        load.progress(&lab, &[0, 1, 2], &format!("after region {victim} is reached again")).await;
    }
    // One link only: the third region reaches both others, so a majority with one leader must form, and last.
    for (x, y, third) in [(0, 1, 2), (1, 2, 0), (0, 2, 1)] {
        lab.cut_link(x, y, true).await.unwrap_or_else(|e| panic!("{e:#}"));
        load.progress(&lab, &[third], &format!("without the link between {x} and {y}")).await;
        lab.cut_link(x, y, false).await.unwrap_or_else(|e| panic!("{e:#}"));
        load.progress(&lab, &[0, 1, 2], &format!("with the link between {x} and {y} again")).await;
    }
    // Blips that end before any node can have noticed.
    for round in 0..10 {
        cut_off(&lab, round % 3, true).await;
        cut_off(&lab, round % 3, false).await;
    }
    load.progress(&lab, &[0, 1, 2], "after ten blips").await;
    load.finish(&lab).await;
}

async fn cut_off(lab: &Lab, victim: usize, cut: bool) {
    for other in (0..3).filter(|r| *r != victim) {
        lab.cut_link(victim, other, cut).await.unwrap_or_else(|e| panic!("{e:#}"));
    }
}
