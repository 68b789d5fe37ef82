//! DDL of several sessions of one region: none waits for another one's transaction, and what depends on the order in
//! which they commit loses, so that all regions come out alike.

use std::time::Duration;

use onetrip_lab::Topology;
use tokio_postgres::error::SqlState;

use crate::jobs::hold_worker_of;
use crate::lab::{builder, is, number, start, start_from, subjects, told, until, Lab, Session, SOON};

/// A statement that waits for longer has waited for the other session's transaction.
const NO_WAIT: &str = "set lock_timeout = '10s'; set onetrip.statement_retries = 0";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ddl_of_two_sessions_is_carried_out_side_by_side() {
    let lab = start("side_by_side", "DDL of sessions of one region, side by side").await;
    subjects!(lab, 3; migrations, every_statement, what_depends, run_again, those_that_wait, parents, sequences, savepoints, unanswered);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn large_ddl_of_several_sessions_is_carried_out_side_by_side() {
    let lab = start("side_by_side_long", "slow indexes, many rows, many clients, other regions").await;
    lab.session(0).await.must("create schema first").await;
    subjects!(lab, 3; all_behind, with_rows, other_regions, many_at_once);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn each_kind_of_ddl_is_carried_out_beside_each_other_one() {
    let lab = start("side_by_side_each", "each kind of DDL beside each other one").await;
    subjects!(lab, 3; each_beside_each);
}

async fn two(lab: &Lab) -> (Session, Session) {
    let (one, other) = (lab.session(0).await, lab.session(0).await);
    until("all members' releases are known to suit", SOON, || async {
        Ok(number(&one, "select current_setting('onetrip.format_level')::int").await? == 1)
    })
    .await
    .unwrap();
    one.must(NO_WAIT).await;
    other.must(NO_WAIT).await;
    (one, other)
}

async fn equal(lab: &Lab) {
    lab.everywhere().await;
    let (code, output) = lab.check(&[]).await;
    assert_eq!(code, Some(0), "{output}");
}

/// Each is a transaction that stays open while the other one does its work and commits.
async fn migrations(lab: &Lab) {
    let (one, other) = two(lab).await;
    // The first DDL after a server's start has the lock for itself.
    one.must("create schema first").await;
    one.must(
        "begin; create table orders (id serial primary key, note text unique, at timestamptz default now());
         create index on orders (at); insert into orders (note) select g::text from generate_series(1, 50) g",
    )
    .await;
    other.must("create table people (id int generated always as identity primary key, name text not null)").await;
    other.must("begin; alter table people add column born date; create index on people (born)").await;
    one.must("alter table orders add check (id > 0), add column person int").await;
    one.must("commit").await;
    other.must("create view grown as select * from people where born < '2000-01-01'; commit").await;
    equal(lab).await;
}

/// What the kinds of statements are about, in a schema of its own; what they call is in `public`.
const WORKED: &str = "create table worked (id int primary key, a int, b text, c int not null default 1, at timestamptz,
         ident int generated always as identity);
     create table ruled (id int); create rule ask as on delete to ruled do also notify never;
     create table parts (id int, n int) partition by range (id); create index by_n on only parts (n, lower(n::text));
     create table part_2 (id int, n int check (n > 0)); create index part_2_n on part_2 (n, lower(n::text));
     create index parts_id on parts (id) where n is not null";

/// Each kind of statement that shares the lock, one after the other.
const KINDS: &[&str] = &[
    "create table made (id serial, n int references worked, check (n > 0), unique (n), exclude (id with =))",
    "create table made_too (like made including all)",
    "create table parts_1 partition of parts for values from (0) to (10)",
    "create table rest partition of parts default",
    "create table child () inherits (worked)",
    "create table as_query as select g, g::text as t from generate_series(1, 20) g",
    "create unlogged table quick (id int primary key)",
    "alter table worked alter column c type bigint using c + 1, alter column c set default 3, alter column c drop not null",
    "alter table worked alter column at type timestamptz(3), alter column c set not null",
    "create index on worked (a)",
    "create unique index by_b on worked (b, a) include (c)",
    "create index on worked (b collate \"C\" desc, a) include (c)",
    "create index on parts (id, n)",
    "create index on worked (lower(b))",
    "create unique index on worked ((a + c), lower(b))",
    "create unique index on worked (a, b) where at is null",
    "create index on worked (a) where at > '2020-01-01 00:00+00' and b in ('x', 'y')",
    "create index on worked using gin (to_tsvector('english', b))",
    "create table deferred (id int primary key deferrable, u int unique deferrable, exclude (id with =) deferrable)",
    "alter table worked add column d int default 5, add column e timestamptz, add column s serial",
    "alter table worked add column since timestamptz not null default now(), add column low text default lower('X')",
    "alter table worked add column token uuid default gen_random_uuid(), add column mine int default side_random()",
    "alter table worked alter column e set default clock_timestamp()",
    "alter table worked alter column b set default 'x', alter column c drop not null, alter column a set (n_distinct = 9)",
    "alter table worked alter column ident set generated by default set cache 5 set cycle",
    "alter table worked add column twice int generated always as (a * 2) stored, add column high text generated always as (upper(b)) stored",
    "alter table worked add constraint positive check (a > 0) not valid",
    "alter table worked add constraint itself foreign key (a) references worked (id) not valid",
    "alter table worked validate constraint positive, validate constraint itself",
    "alter table worked add foreign key (a) references worked (id)",
    "comment on constraint positive on worked is 'more than nothing'",
    "alter table worked drop column d, drop constraint positive",
    "alter table worked enable row level security, set (fillfactor = 70)",
    "alter index by_b set (fillfactor = 80)",
    "alter table worked alter column b set statistics 200, alter column b set storage external",
    "alter table worked rename column e to f",
    "alter table worked rename constraint worked_pkey to worked_key",
    "alter index by_b rename to by_ba",
    "comment on index by_ba is 'by both'",
    "create view seen as select id, b from worked where a > 1",
    "create or replace view seen as select id, b, c from worked where a > 2",
    "alter view seen alter column b set default 'y'",
    "create rule quiet as on delete to seen do instead nothing",
    "alter rule quiet on seen rename to silent",
    "alter table ruled disable rule ask",
    "alter table ruled enable always rule ask",
    "create trigger watch before insert on worked for each row when (new.a > 5) execute function side_nothing()",
    "alter table worked disable trigger watch",
    "alter trigger watch on worked rename to watcher",
    "comment on trigger watcher on worked is 'watches'",
    "create policy readers on worked to side_reader using (a > 0) with check (a > 1)",
    "alter policy readers on worked using (a > 3)",
    "alter policy readers on worked to public",
    "alter policy readers on worked rename to all_readers",
    "comment on policy all_readers on worked is 'may read'",
    "create statistics together on a, c from worked",
    "alter statistics together set statistics 50",
    "comment on table worked is 'is worked on'",
    "comment on column worked.a is 'a column'",
    "grant select (a, b), insert on worked to side_reader",
    "revoke insert on worked from side_reader",
    "create sequence counted increment 5 minvalue 5 cache 3",
    "alter sequence counted maxvalue 50000 cycle",
    "alter sequence counted as int cache 1 start 10",
    "alter sequence counted owned by worked.a",
    "comment on sequence counted is 'counts'",
    "grant usage on sequence counted to side_reader",
    "alter sequence counted rename to counter",
    "alter table parts attach partition part_2 for values from (20) to (30)",
    "alter index by_n attach partition part_2_n",
    "alter table parts detach partition part_2",
    "alter table parts detach partition parts_1",
    "drop sequence counter",
    "drop trigger watcher on worked",
    "drop policy all_readers on worked",
    "drop rule silent on seen",
    "drop statistics together",
    "drop view seen",
    "drop index by_ba",
    "alter table made rename to made_first",
    "drop table made_too, child",
    "drop table if exists never_there",
];

async fn what_kinds_call(session: &Session) {
    session
        .must(
            "create function side_nothing() returns trigger language plpgsql as 'begin return new; end';
             create function side_random() returns int volatile language sql as 'select (random() * 1000)::int';
             create role side_reader",
        )
        .await;
}

/// One session has DDL open all the time; in the other one each statement succeeds, in a transaction of its own.
async fn every_statement(lab: &Lab) {
    let (one, other) = two(lab).await;
    what_kinds_call(&one).await;
    one.must("create table held (id int); create schema every").await;
    other.must(&format!("set search_path = every, public; {WORKED}")).await;
    other
        .must("insert into worked select g, g, g::text, g from generate_series(1, 20) g; update worked set at = now()")
        .await;
    one.must("begin; alter table held add column open int").await;
    for statement in KINDS {
        other.must(statement).await;
    }
    one.must("commit").await;
    equal(lab).await;
}

/// These name nothing that there is, or change nothing (the index is attached with its table), so that it does not
/// matter what there is.
const INDEPENDENT: &[&str] = &[
    "create table as_query as select g, g::text as t from generate_series(1, 20) g",
    "create unlogged table quick (id int primary key)",
    "create table deferred (id int primary key deferrable, u int unique deferrable, exclude (id with =) deferrable)",
    "create sequence counted increment 5 minvalue 5 cache 3",
    "alter index by_n attach partition part_2_n",
    "drop table if exists never_there",
];

/// Each kind of statement is carried out beside itself and all before it.  Before that, it is carried out while another
/// session makes something of each name that it may use: what it is about becomes something else, and it loses.
async fn each_beside_each(lab: &Lab) {
    let (one, other) = two(lab).await;
    what_kinds_call(&one).await;
    one.must(&format!("create schema home; set search_path = home, public; {WORKED}")).await;
    let mut wrong = Vec::new();
    for (at, kind) in KINDS.iter().enumerate() {
        one.must(&format!("create schema hides_{at}; create schema beside_{at}")).await;

        // This makes what it names, in the first schema.  `TYPE` would wait: something may come to hide its table.
        if !kind.starts_with("create or replace") && !kind.contains(" type ") {
            one.must(&format!("begin; set local search_path = hides_{at}, home, public; {kind}")).await;
            let before = KINDS[..at].join("; ");
            other.must(&format!("set search_path = hides_{at}, public; begin; {WORKED}; {before}; commit")).await;
            match one.run("commit").await {
                Ok(()) if !INDEPENDENT.contains(kind) => wrong.push(format!("{kind}: was committed")),
                Err(error) if INDEPENDENT.contains(kind) || !is(&error, &SqlState::T_R_SERIALIZATION_FAILURE) => {
                    wrong.push(format!("{kind}: {}", told(&error)));
                }
                _ => {}
            }
            // The next DDL of a session that has lost shares with nobody.
            one.must(&format!("rollback; create table hides_{at}.next ()")).await;
        }

        one.must(&format!("begin; {kind}")).await;
        let until = KINDS[..=at].join("; ");
        other.must(&format!("set search_path = beside_{at}, public; begin; {WORKED}; {until}; commit")).await;
        if let Err(error) = one.run("commit").await {
            wrong.push(format!("{kind}, beside the others: {}", told(&error)));
            one.must(&format!("rollback; {kind}")).await;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The first session's statements, those that another one commits in between, and whether the first one loses then.
/// `{}` stands for a schema of its own.
const DEPENDENT: &[(&str, &str, bool)] = &[
    // names that are made up of those of a table and its columns
    ("create table {}.a (b_c int references {}.held)", "create table {}.a_b (c int references {}.keyed)", true),
    ("create table {}.a (b_c int, check (b_c > 0))", "create table {}.a_b (c int, check (c > 0))", true),
    ("create index on {}.held (id)", "create table {}.held_id_idx1 (i int)", false),
    // a name that is looked up comes to mean something else
    ("set search_path = {}, public; alter table found add column x int", "create table {}.found (i int)", true),
    ("set search_path = {}, public; drop table if exists found", "create table {}.found (i int)", true),
    ("set search_path = {}, public; drop table if exists {}.later; create table t2 (i int)", "create table {}.later ()", true),
    ("set search_path = {}, public; create view v as select * from found", "create table {}.found (i int)", true),
    ("set search_path = {}, public; create table t (f found)", "create table {}.found (i int)", true),
    ("set search_path = {}, public; create table t (id int, r text default 'found'::regclass::text)",
     "create table {}.found (i int)", true),
    ("set search_path = {}, public; comment on table found is 'which?'", "create table {}.found (i int)", true),
    // what fails where it means something else
    ("set search_path = {}, public; comment on column found.i is 'which?'", "create table {}.found (j int)", true),
    ("set search_path = {}, public; grant select on found to side_other", "create table {}.found (i int)", true),
    ("set search_path = {}, public; create table t () inherits (found)", "create table {}.found (i int)", true),
    ("set search_path = {}, public; alter table {}.held add foreign key (id) references found_key",
     "create table {}.found_key (id int primary key)", true),
    ("set search_path = {}, public; create trigger g before insert on found for each row execute function side_nothing()",
     "create table {}.found (i int)", true),
    ("set search_path = {}, public; create index on found (i)", "create table {}.found (i int)", true),
    ("set search_path = {}, public; alter table found rename to lost", "create table {}.found (i int)", true),
    // what is there, or not
    ("create table if not exists {}.held (id int)", "drop table {}.held", true),
    ("create table if not exists {}.held (id int)", "alter table {}.held rename to moved", true),
    ("alter table if exists {}.later add column x int; create table {}.y ()", "create table {}.later ()", true),
    ("alter table {}.held add column if not exists x int", "create table {}.held_x (x int)", false),
    // what is written into a definition
    ("set search_path = {}, public; create table t (like found including all)",
     "create table {}.found (i int default 6, constraint found_i_check check (i > 6))", true),
    ("create or replace rule side as on delete to found_rules do also notify never", "create table {}.found (i int)", false),
    ("set search_path = {}, public; create or replace trigger side before insert on found for each row when (new.i > 2)
      execute function side_nothing()",
     "create table {}.found (i int); create trigger side before insert on {}.found for each row when (new.i > 1)
      execute function side_nothing()", true),
    ("set search_path = {}, public; alter table {}.held alter column id set default length('found'::regclass::text)",
     "create table {}.found (i int)", true),
    ("set search_path = {}, public; create table t (r regclass[] default '{found}'::regclass[])",
     "create table {}.found (i int)", true),
    ("set search_path = {}, public; create table t (r regclass) partition by list (r);
      create table t_1 partition of t for values in ('found')",
     "create table {}.found (i int)", true),
    // settings that the trial does not have
    ("set timezone = 'Europe/Berlin'; set datestyle = 'German'; set bytea_output = escape;
      create table {}.a (t timestamptz default '2026-07-01', n int references found_key) partition by range (t);
      create table {}.a_1 partition of {}.a for values from ('2026-01-01') to ('2027-01-01')",
     "create table {}.b (i int)", false),
    ("create temporary view side_view as select * from found; create table {}.a (like found including all)",
     "create table {}.b (i int)", false),
    // the order in which PostgreSQL goes through what there is
    ("create index one_way on {}.spare (i)", "create index other_way on {}.spare (i desc)", true),
    ("create unique index one_way on {}.spare (i, j)", "create unique index other_way on {}.spare (j, i)", true),
    ("create index on {}.spare (i)", "create index on {}.spare (j)", false),
    ("create index one_way on {}.spare (abs(i))", "create index other_way on {}.spare (abs(j))", true),
    ("create index on {}.spare (abs(i))", "create index on {}.spare ((j + 1))", false),
    // indexes and columns that other regions compute
    ("set search_path = {}, public; create index on found (abs(i)) where i > 0", "create table {}.found (i int)", true),
    ("create index on {}.held (abs(id)) where id > 0", "create table {}.held_abs_idx1 (i int)", false),
    ("set search_path = {}, public; alter table found add column t timestamptz default now()",
     "create table {}.found (i int)", true),
    ("alter table {}.held add column t timestamptz default now()", "create table {}.other (i int)", false),
    ("set search_path = {}, public; alter table found add column g int generated always as (i + 1) stored",
     "create table {}.found (i int)", true),
    ("alter table {}.held add column g int generated always as (id + 1) stored", "create table {}.other (i int)", false),
    ("alter table {}.held alter column id type bigint using abs(id)", "create table {}.other (i int)", false),
    ("set search_path = {}, public; alter table found_valid validate constraint positive",
     "create table {}.found_valid (i int); alter table {}.found_valid add constraint positive check (i > 0) not valid", true),
    // policies, sequences, partitions
    ("set search_path = {}, public; alter policy side on found using (i > 8)",
     "create table {}.found (i int); create policy side on {}.found using (i > 7)", true),
    ("set search_path = {}, public; alter policy side on found rename to aside",
     "create table {}.found (i int); create policy side on {}.found using (i > 7)", true),
    ("alter policy side on found using (i > 9)", "create table {}.other (i int)", false),
    ("set search_path = {}, public; alter sequence found_s maxvalue 1000", "create sequence {}.found_s", true),
    ("set search_path = {}, public; alter sequence found_s owned by found.i",
     "create table {}.found (i int); create sequence {}.found_s", true),
    ("set search_path = {}, public; drop sequence if exists found_s", "create sequence {}.found_s", true),
    ("set search_path = {}, public; grant usage on sequence found_s to side_other", "create sequence {}.found_s", true),
    ("create sequence if not exists {}.spare_s; create table {}.a ()", "drop sequence {}.spare_s", true),
    ("alter sequence if exists {}.later cache 7; create table {}.a ()", "create sequence {}.later", true),
    ("alter sequence {}.spare_s cache 7 maxvalue 70000", "create sequence {}.other_s", false),
    ("set search_path = {}, public; alter table found_parts attach partition found_part for values in (1)",
     "create table {}.found_part (i int)", true),
    ("set search_path = {}, public; alter table found_parts attach partition found_part for values in (1)",
     "create table {}.found_parts (i int) partition by list (i)", true),
    ("set search_path = {}, public; alter table found_parts detach partition found_in",
     "create table {}.found_parts (i int) partition by list (i); create table {}.found_in partition of {}.found_parts for values in (7)",
     true),
    // what cancels out by its text
    ("alter index if exists {}.first rename to third; alter index if exists {}.second rename to first;
      alter index if exists {}.third rename to second",
     "create table {}.indexed (a int, b int); create index first on {}.indexed (a); create index second on {}.indexed (b)", true),
    ("set search_path = \"side_RI_ConstraintTrigger_a_1\", \"side_RI_ConstraintTrigger_a_2\"; create view {}.v as select * from twin",
     "create table \"side_RI_ConstraintTrigger_a_1\".twin (i int)", true),
    // nothing to do with each other
    ("alter table {}.held add column x int default 5", "create table {}.other (x serial unique)", false),
    ("alter table {}.held add column x serial", "create table {}.other (x serial unique)", false),
    ("create table {}.a (i int)", "drop table {}.spare", false),
    ("create temporary table side_temporary (i int default 3, check (i > 2)); create table {}.a (i int)",
     "create table {}.b (i int)", false),
    ("create table {}.a (i int primary key deferrable, u int unique deferrable)", "create table {}.b (i int)", false),
    ("cluster {}.held using held_pkey; create table {}.a (i int)", "create table {}.b (i int)", false),
    ("set role side_other; select lo_create(0); reset role; create table {}.a (i int)", "create table {}.b (i int)", false),
];

async fn what_depends(lab: &Lab) {
    let (one, other) = two(lab).await;
    // Those of other regions' sessions are hidden while statements are carried out there.
    let mut hidden = Vec::new();
    for far in [1, 2] {
        let far = lab.session(far).await;
        far.must("create temporary table side_hidden (i int); create function side_hidden(side_hidden) returns int language sql as 'select 1'").await;
        hidden.push(far);
    }
    one.must(
        "create schema \"side_RI_ConstraintTrigger_a_1\"; create schema \"side_RI_ConstraintTrigger_a_2\";
         create table \"side_RI_ConstraintTrigger_a_2\".twin (i int);
         create role side_other; create table found_key (id int primary key);
         create table found (i int default 5, check (i > 5)); create policy side on found using (i > 7);
         create sequence found_s; create table found_parts (i int) partition by list (i); create index on found_parts (abs(i));
         create table found_in partition of found_parts for values in (7); create table found_part (i int);
         create table found_valid (i int); alter table found_valid add constraint positive check (i > 0) not valid;
         create table found_rules (i int); create rule side as on delete to found_rules do also notify never;
         create trigger side before insert on found for each row when (new.i > 1) execute function side_nothing()",
    )
    .await;
    let mut wrong = Vec::new();
    for (at, (first, second, loses)) in DEPENDENT.iter().enumerate() {
        let schema = format!("depends_{at}");
        let make = format!("create schema {schema}; create table {schema}.held (id int primary key); create table {schema}.keyed (id int primary key); create table {schema}.spare (i int, j int, k int primary key); create sequence {schema}.spare_s");
        one.must(&make).await;
        one.must(&format!("begin; {}", first.replace("{}", &schema))).await;
        if let Err(error) = other.run(&second.replace("{}", &schema)).await {
            wrong.push(format!("{second}: {}", told(&error)));
        }
        match one.run("commit").await {
            Ok(()) if *loses => wrong.push(format!("{first} / {second}: both were committed")),
            Err(error) if !*loses || !is(&error, &SqlState::T_R_SERIALIZATION_FAILURE) => {
                wrong.push(format!("{first} / {second}: {}", told(&error)));
            }
            _ => {}
        }
        one.must("rollback; reset search_path; reset timezone; reset datestyle; reset bytea_output; discard temp")
            .await;
        // The next DDL of a session that has lost shares with nobody.
        one.must(&format!("create table {schema}.next ()")).await;
    }
    equal(lab).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A statement that loses for what it has met is run again, for itself, and a transaction that is repeated is too.
async fn run_again(lab: &Lab) {
    let (one, other) = two(lab).await;
    one.must("create table again (i int); create schema again_in").await;
    other.must("begin; create table again_other (i int)").await;
    one.must("begin; set local search_path = again_in, public; alter table again add column x int").await;
    other.must("create table again_in.again (i int); commit").await;
    let error = one.refused("commit").await;
    assert_eq!(error.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{error}");
    assert!(error.message().contains("depends on other DDL"), "{error}");
    other.must("begin; alter table again_other add column y int").await;
    one.must("set lock_timeout = '100ms'; begin; set local search_path = again_in, public").await;
    let error = one.refused("alter table again add column x int").await;
    assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE, "it waits for the other one now: {error}");
    other.must("commit").await;
    one.must("rollback; begin; set local search_path = again_in, public; alter table again add column x int; commit")
        .await;
    equal(lab).await;
}

/// Statements that change what others compute wait, as ever, and others wait for them.
async fn those_that_wait(lab: &Lab) {
    let (one, other) = two(lab).await;
    one.must("create table waits (i int); create table first_one (i int, s int generated always as identity); create index by_s on first_one (s);
              alter table first_one add constraint positive check (i > 0) not valid;
              create type waits_enum as enum ('(1)');
              create function waits_cast(waits_enum) returns int immutable language sql as 'select 1';
              create cast (waits_enum as int) with function waits_cast(waits_enum) as implicit;
              create table waits_keyed (id int primary key); create table waits_excluded (v int, e int, exclude (e with =));
              create table waits_refers (e waits_enum, v int references waits_keyed);
              alter table waits_refers add constraint cast_key foreign key (e) references waits_keyed not valid;
              create schema waits_before;
              create function waits_of(int) returns int immutable language plpgsql as 'begin return $1; end';
              create domain waits_domain as int check (waits_of(value) > 0);
              create table waits_parts (i int) partition by list (waits_of(i)); create table waits_part (i int);
              create table waits_rest partition of waits_parts default;
              create table waits_indexed (i int, v int) partition by list (i); create index on waits_indexed (waits_of(i));
              create table waits_below (i int) partition by list (i);
              create table waits_above (i int) partition by list (waits_of(i));
              alter table waits_above attach partition waits_below for values in (1);
              alter table first_one add constraint called check (waits_of(i) > 0) not valid, add column v int, add column w int, add column e waits_enum;
              create index on first_one (abs(w));
              create table waits_policies (id int primary key, to_id int); alter table waits_policies enable row level security;
              alter table waits_policies add constraint seen foreign key (to_id) references waits_policies not valid;
              create type waits_range as range (subtype = int);
              create table waits_ranged (v int, r waits_range); create index on waits_ranged using gist (r);
              create function waits_json(waits_enum) returns json immutable language sql as 'select to_json(1)';
              create cast (waits_enum as json) with function waits_json(waits_enum);
              create table waits_casts (e waits_enum references waits_keyed) partition by list (e); create table waits_cast (e waits_enum);
              create table waits_sees (i int, to_id int references waits_policies) partition by list (i);
              create table waits_see (i int, to_id int);
              create table waits_hides (i int, v int references waits_keyed) partition by list (i);
              create table waits_hide (i int, v int); alter table waits_hide enable row level security").await;
    one.must("begin; alter table waits add column x int").await;
    other.must("set lock_timeout = '200ms'").await;
    for statement in [
        "create function waits_for() returns int language sql as 'select 1'",
        "create type waits_type as (i int)",
        "create schema waits_schema",
        "create role waits_role",
        "grant select on all tables in schema public to public",
        "drop table held cascade",
        // TYPE: likewise, and what a CHECK, an index, a foreign key or a sequence is about, and names that may hide
        "alter table first_one alter column v type int using waits_of(v)",
        "alter table first_one alter column v type waits_domain",
        "alter table first_one alter column v type waits_enum using null::text::waits_domain::text::waits_enum",
        "alter table if exists not_yet_there alter column v type int using v + 1",
        "alter table waits_ranged alter column v type bigint",
        "create index on waits_ranged using gist (r)",
        "alter table waits_policies validate constraint seen",
        "alter table first_one alter column e type int",
        "alter table first_one alter column e type int using e::int",
        "alter table first_one alter column i type int using i + 1",
        "alter table first_one alter column w type bigint",
        "alter table first_one alter column s type bigint",
        "alter table first_one alter column v type bigint, drop column w",
        "alter table waits_indexed alter column v type bigint",
        "alter table waits_refers alter column v type bigint",
        "alter table waits_keyed alter column id type bigint",
        "alter table waits_excluded alter column v type bigint",
        "set search_path = waits_before, public; alter table first_one alter column v type bigint",
        "set search_path = public, pg_catalog; alter table first_one alter column v type bigint",
        "set search_path = waits_before, public; alter table public.first_one alter column v type int using ('(1)'::waits_enum is null)::int",
        "alter table first_one alter column s restart",
        "alter sequence first_one_s_seq restart",
        "alter sequence first_one_s_seq increment 3 restart with 1000",
        "alter table first_one add column t int default waits_of(1)",
        "alter table first_one add column t waits_domain",
        "alter table first_one add column if not exists v int default waits_of(1)",
        "set search_path = waits_before, public; alter table first_one add column t text default '(1)'::waits_enum",
        // a user's cast that JSON is made with
        "alter table first_one add column j json default to_json('(1)'::waits_enum)",
        "alter table first_one add column j jsonb default jsonb_build_array(array['(1)'::waits_enum])",
        "alter table first_one alter column e type json using to_json(e)",
        // generated columns: a function of a user's, a domain, a cast, what is not there yet, indexes built anew
        "alter table first_one add column g int generated always as (waits_of(v)) stored",
        "alter table first_one add column g waits_domain generated always as (v) stored",
        "alter table first_one add column g int generated always as (v::waits_domain + 1) stored",
        "alter table first_one add column g int generated always as (e) stored",
        "alter table first_one add column n int, add column g int generated always as (n + 1) stored",
        "alter table first_one alter column v type bigint, add column g int generated always as (s + 1) stored",
        "alter table waits_indexed add column g int generated always as (v + 1) stored",
        "alter table waits_excluded add column g int generated always as (v + 1) stored",
        "create index on first_one (abs(waits_of(i)))",
        "create unique index on first_one ((i + waits_of(i)))",
        "create index on first_one (s) where waits_of(i) > 1",
        "create index on first_one (((i::waits_domain) + 1))",
        "alter table waits_parts attach partition waits_part for values in (1)",
        "alter table waits_indexed attach partition waits_part for values in (1)",
        "alter table waits_below attach partition waits_part for values in (1)",
        "create table waits_new partition of waits_parts for values in (2)",
        "alter table waits_casts attach partition waits_cast for values in ('(1)')",
        "alter table waits_sees attach partition waits_see for values in (1)",
        "alter table waits_hides attach partition waits_hide for values in (1)",
        "alter table first_one add column r text default 'first_one'::regclass",
        "alter table first_one set (toast.autovacuum_enabled = off)",
        "alter table first_one validate constraint called",
        "alter table first_one validate constraint positive, validate constraint called",
        "alter table first_one add constraint more check (v > 0) not valid, validate constraint more",
        "alter table waits_refers validate constraint cast_key",
        "alter table first_one cluster on by_s",
        "alter table first_one set unlogged",
        "create materialized view waits_view as select 1 as x",
        "create extension hstore",
    ] {
        let error = other.refused(statement).await;
        assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE, "{statement}: {error}");
    }
    // These do not: it is not the table.
    for statement in [
        "alter table first_one add column g int generated always as (v + 1) stored",
        "alter table first_one alter column v type bigint using abs(v)",
        "alter table first_one add column if not exists v int default 1",
        "alter table first_one add column j json default to_json(array[1, 2])",
        "set search_path = waits_before, public; alter table first_one add column t timestamptz default now(), add column u uuid default gen_random_uuid(), add column f waits_enum default '(1)'",
        "set search_path = waits_before, public; alter table public.first_one alter column v type bigint",
        "alter table first_one validate constraint positive",
    ] {
        other.must(&format!("begin; {statement}; rollback")).await;
    }
    one.must("commit; begin; create schema waits_schema").await;
    let error = other.refused("create table waits_too (i int)").await;
    assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE, "{error}");
    one.must("commit").await;

    // It shares, and then wants all of it: it waits for those that share.
    one.must("begin; create table waits_first (i int)").await;
    other.must("begin; create table waits_second (i int)").await;
    one.must("set lock_timeout = '200ms'; savepoint s").await;
    let error = one.refused("create schema waits_third").await;
    assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE, "{error}");
    other.must("commit").await;
    one.must("rollback to s; create schema waits_third; create table waits_third.t (i int); commit").await;
    equal(lab).await;
}

/// The parent of a new partition is what its name means once the statement has the lock on it.
async fn parents(lab: &Lab) {
    let (one, other) = two(lab).await;
    let third = lab.session(0).await;
    one.must(
        "create function parents_of(int) returns int immutable language plpgsql as 'begin return $1; end';
         create table parents (i int) partition by list (i); create table parents_rest partition of parents default;
         create table parents_next (i int) partition by list (parents_of(i));
         create table parents_next_rest partition of parents_next default",
    )
    .await;
    third.must("begin; create table parents_open (i int)").await;
    one.must("begin; alter table parents rename to parents_before; alter table parents_next rename to parents").await;
    other.must("set lock_timeout = '3s'").await;
    let pid = other.pid().await.unwrap();
    let waits =
        tokio::spawn(
            async move { other.refused("create table parents_1 partition of parents for values in (1)").await },
        );
    let waiting = format!("select count(*) from pg_locks where pid = {pid} and locktype = 'relation' and not granted");
    until("the statement to wait", SOON, || async { Ok(number(&one, &waiting).await? == 1) }).await.unwrap();
    one.must("commit").await;
    let error = waits.await.unwrap();
    assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE, "{error}");
    third.must("commit").await;
    equal(lab).await;
}

/// What a statement about sequences looks up and locks comes after the lock that it waits for here.
async fn sequences(lab: &Lab) {
    let (mut one, other) = two(lab).await;
    let third = lab.session(0).await;
    one.must(
        "create schema sequences_first; create table copied (id int generated always as identity);
         create sequence drawn; create sequence looked_up cache 3; create role sequences_role",
    )
    .await;
    for (meanwhile, statement) in [
        ("alter table copied alter id set start 2 restart", "create table copy (like copied including identity)"),
        ("comment on role sequences_role is 'none'", "alter sequence drawn cache 7"),
        (
            "create schema sequences_other; create sequence sequences_first.looked_up",
            "set search_path = sequences_first, public; alter sequence looked_up increment 5 restart",
        ),
    ] {
        other.must(&format!("begin; {meanwhile}")).await;
        let pid = one.pid().await.unwrap();
        let waits = tokio::spawn(async move {
            one.must(statement).await;
            one
        });
        let waiting = format!("select count(*) from pg_locks where pid = {pid} and not granted");
        until("the statement to wait", SOON, || async { Ok(number(&third, &waiting).await? == 1) }).await.unwrap();
        third.must("set lock_timeout = '1s'; select nextval('drawn')").await;
        other.must("commit").await;
        one = waits.await.unwrap();
    }
    for (sequence, definition) in [("public.copy_id_seq", "2 1"), ("sequences_first.looked_up", "1 5")] {
        let query = format!(
            "select start_value || ' ' || increment from onetrip.sequences
             where schema_name || '.' || sequence_name = '{sequence}' and increment_here = 8 * increment"
        );
        lab.shows(&query, definition).await;
    }
    equal(lab).await;
}

/// All wait for an answer together, and for a minute no other session does.
async fn unanswered(lab: &Lab) {
    let (open, other) = two(lab).await;
    open.must("begin; create table unanswered_open (i int)").await;
    let mut commits = Vec::new();
    for at in 0..5 {
        let session = lab.session(0).await;
        session.must(&format!("begin; create table unanswered_{at} (i int)")).await;
        // No other region is done as soon as that.
        session.must("set onetrip.rehearse_timeout = '1ms'").await;
        commits.push(tokio::spawn(async move { session.run("commit").await.expect_err("nobody answers") }));
    }
    for commit in commits {
        let error = tokio::time::timeout(Duration::from_secs(10), commit).await.expect("none waits anew").unwrap();
        assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{}", told(&error));
    }
    other.must("set lock_timeout = '200ms'").await;
    let error = other.refused("create table unanswered_too (i int)").await;
    assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE, "{error}");
    open.must("commit").await;
    other.must("create table unanswered_too (i int)").await;
    equal(lab).await;
}

/// What a savepoint takes back is not shared any more, and does not count.
async fn savepoints(lab: &Lab) {
    let (one, other) = two(lab).await;
    one.must("begin; savepoint s; create table taken_back (i int); rollback to s").await;
    other.must("set lock_timeout = '2s'; create schema taken").await;
    one.must("create table taken.kept (i int)").await;
    other.must("create table taken.kept_too (i int)").await;
    one.must("savepoint s; alter table taken.kept add column x int; rollback to s; commit").await;

    // It has the lock for itself for a while, and shares it again then.
    let make = "create type side_mood as enum ('a')";
    one.must(make).await;
    one.must(&format!(
        "begin; create table taken.mine (i int); do $$ begin {make}; exception when duplicate_object then null; end $$;
         drop table if exists later"
    ))
    .await;
    other.must("create table later (i int); insert into later values (1)").await;
    let error = one.refused("commit").await;
    assert_eq!(error.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{error}");
    lab.shows("select count(*) from later", "1").await;
    equal(lab).await;
}

/// No other region shows what was committed before: COMMIT waits for the first that does.
async fn all_behind(lab: &Lab) {
    let (one, other) = two(lab).await;
    let [_, b, c] = lab.sessions().await;
    one.must("begin; create table behind_one (i int)").await;
    for far in [&b, &c] {
        hold_worker_of(far, "onetrip apply worker", true).await;
    }
    other.must("create table behind_other (i int)").await;
    let waiting = tokio::spawn(async move { one.run("commit").await });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!waiting.is_finished(), "it has to wait for a region that shows the other one's table");
    hold_worker_of(&c, "onetrip apply worker", false).await;
    waiting.await.unwrap().unwrap_or_else(|error| panic!("{}", told(&error)));
    hold_worker_of(&b, "onetrip apply worker", false).await;
    equal(lab).await;
}

/// Rows are written before, between and after the statements, more than other regions try.
async fn with_rows(lab: &Lab) {
    let (one, other) = two(lab).await;
    one.must("create table filled (id int primary key, v text)").await;
    one.must(
        "begin; insert into filled select g, repeat(md5(g::text), 10) from generate_series(1, 30000) g;
         alter table filled add column w int; update filled set w = id; alter table filled alter w set not null;
         create table copied as select * from filled",
    )
    .await;
    other.must("create table beside (id int primary key); insert into beside values (1)").await;
    one.must("insert into filled values (0, '', 0); commit").await;
    equal(lab).await;
}

/// DDL of another region comes first: who shares loses against it, as any DDL does.
async fn other_regions(lab: &Lab) {
    let (one, other) = two(lab).await;
    let far = lab.session(1).await;
    one.must("begin; create table near_one (i int)").await;
    other.must("begin; create table near_other (i int)").await;
    far.must("create table far (i int)").await;
    // Idle sessions that are in the way are ended.
    for near in [&one, &other] {
        near.run("commit").await.expect_err("it has lost against the other region");
    }
    lab.everywhere().await;
    lab.session(0).await.must("create table near_one (i int)").await;
    equal(lab).await;
}

/// Ten clients of one region and one of each other one, all at once, each about tables of its own.
async fn many_at_once(lab: &Lab) {
    let mut clients = Vec::new();
    for client in 0..12 {
        let session = lab.session(if client < 10 { 0 } else { client - 9 }).await;
        clients.push(tokio::spawn(async move {
            session.must("set onetrip.statement_retries = 50").await;
            for round in 0..4 {
                let name = format!("crowd_{client}_{round}");
                session.must(&format!("create table {name} (id serial primary key, v int unique)")).await;
                session.must(&format!("alter table {name} add column w int references {name} (v)")).await;
                session.must(&format!("create index on {name} (w)")).await;
                if round % 2 == 0 {
                    session.must(&format!("drop table {name}")).await;
                }
            }
        }));
    }
    for client in clients {
        client.await.expect("a client failed");
    }
    equal(lab).await;
}

/// Where sequences are dense, their own definitions are what the owner wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dense_sequences_show_where_they_start() {
    let lab = start_from(
        "side_by_side_dense",
        "DDL of two sessions, dense sequences",
        builder().init_arg("--dense-sequences"),
    )
    .await;
    let (one, other) = two(&lab).await;
    one.must("create schema first; create table found (i int generated always as identity)").await;
    one.must("begin; set local search_path = first, public; create table t (like found including identity)").await;
    other.must("create table first.found (i int generated always as identity (start 100))").await;
    let error = one.refused("commit").await;
    assert_eq!(error.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{error}");
    one.must("rollback; create sequence found_s; create table alone ()").await;
    one.must("begin; set local search_path = first, public; alter sequence found_s start 7").await;
    other.must("create sequence first.found_s").await;
    let error = one.refused("commit").await;
    assert_eq!(error.code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{error}");
    equal(&lab).await;
}

/// Where nobody else can say how it comes out, DDL waits as ever, and nothing is lost for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ddl_of_a_cluster_of_one_region_waits() {
    let one = Topology::parse("preferred_leader = \"a\"\n[[region]]\nname = \"a\"\n").expect("this is a topology");
    let lab =
        start_from("one_region_waits", "DDL of two sessions where there is one region", builder().topology(one)).await;
    let (one, other) = two(&lab).await;
    one.must("begin; create table one (i int)").await;
    other.must("set lock_timeout = '200ms'").await;
    let error = other.refused("create table other (i int)").await;
    assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE, "{error}");
    one.must("commit").await;
    other.must("create table other (i int)").await;
    assert_eq!(number(&one, "select count(*) from pg_class where relname in ('one', 'other')").await.unwrap(), 2);
}
