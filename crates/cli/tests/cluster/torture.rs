//! A short run of `make torture`: every workload, a few faults, everything holds.

use std::time::Duration;

use crate::lab::turn;

const LIMIT: Duration = Duration::from_secs(240);

#[tokio::test]
async fn faults_at_random_lose_nothing() {
    let _turn = turn("torture", "a short run of the torture: overlapping faults, and everything holds").await;
    let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_torture"))
        .args(["--seconds", &crate::lab::duration(30).as_secs().max(5).to_string()])
        .env("ONETRIP_BIN", crate::lab::binary())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(LIMIT, run).await.expect("the torture does not end").expect("start the torture");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success(), "{}", output.status);
}
