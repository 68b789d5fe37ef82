//! A short run of `make torture`, with every workload and as many faults as there is time for: all its checks pass.

use std::time::Duration;

use crate::lab::{duration, program, turn};

const LIMIT: Duration = Duration::from_secs(400);

#[tokio::test]
async fn faults_at_random_lose_nothing() {
    let _turn = turn("torture", "a short run of the torture: overlapping faults, and everything holds").await;
    let seconds = duration(30).as_secs().max(5).to_string();
    program(env!("CARGO_BIN_EXE_torture"), &["--no-calm", "--seconds", &seconds], LIMIT).await;
}
