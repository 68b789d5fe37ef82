//! What a statement made at home is what every region gets, also where the same words would make something else there.

use crate::lab::{start, text, Lab};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_statement_made_at_home_is_in_every_region() {
    let lab = start("recipes", "bounds, contents and side effects of DDL that no region could compute again").await;
    bounds_of_partitions(&lab).await;
}

/// Runs it in a region that does not lead; then the query has to give in all regions what it gives there.
async fn alike(lab: &Lab, statements: &str, query: &str) -> String {
    lab.everywhere().await;
    let home = lab.session(1).await;
    home.must(statements).await;
    let made = text(&home, query).await.unwrap_or_else(|e| panic!("{query}: {e:#}"));
    lab.shows(query, &made).await;
    made
}

async fn bounds_of_partitions(lab: &Lab) {
    let bounds = "select string_agg(relname || ' ' || pg_get_expr(relpartbound, oid), '; ' order by relname)
                  from pg_class where relpartbound is not null";
    alike(
        lab,
        "create table drawn (id int, t timestamptz) partition by list (id);
         create table drawn_1 partition of drawn for values in ((random() * 1e6)::int);
         create table drawn_2 partition of drawn for values in (-(random() * 1e6)::int - 1) partition by range (t);
         create table drawn_2_1 partition of drawn_2 for values from (minvalue) to (clock_timestamp());
         set test.bound = '2000001';
         create table drawn_3 (id int, t timestamptz);
         alter table drawn attach partition drawn_3 for values in (current_setting('test.bound')::int + pg_backend_pid())",
        bounds,
    )
    .await;
    let made = alike(
        lab,
        "create table asked (id int) partition by range (id);
         create table asked_log (id serial primary key);
         create function ask(n int) returns int language plpgsql as $$ begin
             insert into asked_log default values;
             create table made_by_ask (id int primary key);
             insert into made_by_ask values (n);
             return n; end $$;
         create table asked_1 partition of asked for values from (1) to (ask(7))",
        "select (select count(*) from asked_log) || ' ' || (select id from made_by_ask) || ' '
             || (select pg_get_expr(relpartbound, oid) from pg_class where relname = 'asked_1')",
    )
    .await;
    assert_eq!(made, "1 7 FOR VALUES FROM (1) TO (7)");
}
