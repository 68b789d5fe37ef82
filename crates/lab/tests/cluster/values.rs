//! A short run of `make values`: values made by functions and stored in every way, in three regions at once, are the
//! same in every region.

use std::time::Duration;

use crate::lab::{duration, program, turn};

const LIMIT: Duration = Duration::from_secs(400);

#[tokio::test]
#[ignore = "long"]
async fn values_made_by_functions_come_out_alike_in_every_region() {
    let _turn = turn("values", "a short run of the generator of values").await;
    let seconds = (2 * duration(30).as_secs()).to_string();
    // Always this seed; `make values` tries others.
    program(env!("CARGO_BIN_EXE_values"), &["--seed", "595872822", "--seconds", &seconds], LIMIT).await;
}
