//! A short run of `make poison`: random statements from three regions at once come out alike, and no region stands still.

use std::time::Duration;

use crate::lab::turn;

const LIMIT: Duration = Duration::from_secs(300);

#[tokio::test]
async fn random_statements_from_three_regions_come_out_alike() {
    let _turn = turn("poison", "a short run of the generator of statements").await;
    let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_poison"))
        // One seed at each change; other ones by `make poison`.
        .args(["--seed", "11", "--seconds", &crate::lab::duration(30).as_secs().to_string()])
        .env("ONETRIP_BIN", crate::lab::binary())
        .kill_on_drop(true)
        .output();
    let output =
        tokio::time::timeout(LIMIT, run).await.expect("the generator does not end").expect("start the generator");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success(), "{}", output.status);
}
