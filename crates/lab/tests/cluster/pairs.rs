//! A short run of `make pairs`: features of PostgreSQL that meet in a transaction, in two, and at once in two regions
//! do what they do in PostgreSQL.

use std::time::Duration;

use crate::lab::{duration, program, turn};

const LIMIT: Duration = Duration::from_secs(400);

#[tokio::test]
#[ignore = "long"]
async fn features_that_meet_do_what_they_do_in_postgresql() {
    let _turn = turn("pairs", "a short run of the generator of pairs").await;
    let seconds = duration(30).as_secs().to_string();
    // Always this seed; `make pairs` tries others.
    program(env!("CARGO_BIN_EXE_pairs"), &["--seed", "11", "--seconds", &seconds], LIMIT).await;
}
