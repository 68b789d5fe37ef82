//! A short run of `make poison`: random statements from three regions at once have the same effect in every region, and
//! no region gets stuck.

use std::time::Duration;

use crate::lab::{duration, program, turn};

const LIMIT: Duration = Duration::from_secs(400);

#[tokio::test]
#[ignore = "long"]
async fn random_statements_from_three_regions_come_out_alike() {
    let _turn = turn("poison", "a short run of the generator of statements").await;
    let seconds = duration(30).as_secs().to_string();
    // Always this seed; `make poison` tries others.
    program(env!("CARGO_BIN_EXE_poison"), &["--seed", "11", "--seconds", &seconds], LIMIT).await;
}
