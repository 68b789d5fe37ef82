//! A short run of `make values`: values made by functions, stored in every way in three regions at once, come out alike.

use std::time::Duration;

use crate::lab::turn;

const LIMIT: Duration = Duration::from_secs(400);

#[tokio::test]
async fn values_made_by_functions_come_out_alike_in_every_region() {
    let _turn = turn("values", "a short run of the generator of values").await;
    let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_values"))
        // One seed at each change; other ones by `make values`.
        .args(["--seed", "595872822", "--seconds", &(2 * crate::lab::duration(30).as_secs()).to_string()])
        .env("ONETRIP_BIN", crate::lab::binary())
        .kill_on_drop(true)
        .output();
    let output =
        tokio::time::timeout(LIMIT, run).await.expect("the generator does not end").expect("start the generator");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success(), "{}", output.status);
}
