//! A region that cannot apply an entry stands still, says so, and goes on by itself once that is mended.

use crate::lab::{number, start, text, until, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_cannot_apply_an_entry_says_why_and_goes_on_once_mended() {
    let lab =
        start("stuck_worker", "an index function that fails in one region only: seen in status, mended, gone").await;
    let [a, b, _] = lab.sessions().await;
    // What is in a table of another access method is each region's own.
    a.must(
        "create table mended (here int) using heap;
         create table fragile (id int primary key, v text);
         create function fails(v text) returns text immutable language plpgsql as $$
         begin
             if current_setting('session_replication_role') = 'replica' and not exists (select from public.mended) then
                 raise 'not in this region: %', v;
             end if;
             return v;
         end $$;
         create index on fragile (fails(v))",
    )
    .await;
    lab.everywhere().await;
    lab.session(2).await.must("insert into mended values (1)").await;
    a.must("insert into fragile values (1, 'x')").await;
    until("region b says what is wrong", SOON, || async {
        Ok(number(&b, "select count(*) from onetrip.status where failing > applied and failure like '%not in this region: x (% times)'").await? == 1)
    })
    .await
    .unwrap();
    until("its node does", SOON, || async {
        let status = lab.node(1).status().await?;
        Ok(status["problems"].to_string().contains("comes no further"))
    })
    .await
    .unwrap();
    // The others go on.
    a.must("insert into fragile values (2, 'y')").await;
    let c = lab.session(2).await;
    until("region c goes on", SOON, || async { Ok(number(&c, "select count(*) from fragile").await? == 2) })
        .await
        .unwrap();
    assert_eq!(number(&b, "select count(*) from fragile").await.unwrap(), 0);
    b.must("insert into mended values (1)").await;
    lab.everywhere().await;
    assert_eq!(
        text(&b, "select count(*) || ' ' || count(s.failing) from fragile, onetrip.status s").await.unwrap(),
        "2 0"
    );
    lab.check_equal(1).await;
}
