//! Which sequences are short, from their definitions, and what they give: every definition of a grid, made, altered
//! into the next one, and drawn from in three regions in turn.  And draws that no call of `nextval()` shows.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::lab::{apart, bounded, builder, number, start, start_from, subjects, text, told, Lab, Session};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_sequences_are_what_their_definitions_say() {
    let lab = start("short_sequences", "a grid of definitions of sequences, made, altered, and drawn from").await;
    subjects!(lab, 0;
        the_grid,
        identity_columns_draw_without_a_call,
        like_copies_the_right_column,
        columns_that_are_added,
        values_that_a_session_had_cached,
        what_becomes_logged,
        statements_that_keep_what_they_draw,
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draws_from_two_short_sequences_do_not_deadlock() {
    let lab =
        start_from("short_crosswise", "two short sequences, drawn from in both orders", builder().topology(apart(40)))
            .await;
    subjects!(lab, 0; crosswise);
}

// ---- the model ----

#[derive(Clone, Copy, Debug, PartialEq)]
struct Definition {
    kind: &'static str,
    increment: i64,
    minimum: i64,
    maximum: i64,
    start: i64,
    cycle: bool,
    cache: i64,
}

impl Definition {
    fn options(&self) -> String {
        format!(
            "as {} increment {} minvalue {} maxvalue {} start {} {} cache {}",
            self.kind,
            self.increment,
            self.minimum,
            self.maximum,
            self.start,
            if self.cycle { "cycle" } else { "no cycle" },
            self.cache
        )
    }

    /// The value after `value`, as in PostgreSQL; `None`: there is none.
    fn next(&self, value: i64) -> Option<i64> {
        let next = i128::from(value) + i128::from(self.increment);
        let fits = (i128::from(self.minimum)..=i128::from(self.maximum)).contains(&next);
        match (fits, self.cycle) {
            (true, _) => Some(next as i64),
            (false, true) => Some(if self.increment > 0 { self.minimum } else { self.maximum }),
            (false, false) => None,
        }
    }

    /// Counts, instead of computing: is there a value from the start on for each of the places?
    fn is_short(&self, places: i64) -> bool {
        let once = Definition { cycle: false, ..*self };
        let last = (1..places).try_fold(self.start, |value, _| once.next(value));
        last.is_none()
            || self.increment.unsigned_abs().checked_mul(places as u64).is_none_or(|step| step > i64::MAX as u64)
    }
}

fn grid() -> Vec<Definition> {
    let mut grid = Vec::new();
    let kinds = [
        ("smallint", i64::from(i16::MIN), i64::from(i16::MAX)),
        ("int", i64::from(i32::MIN), i64::from(i32::MAX)),
        ("bigint", i64::MIN, i64::MAX),
    ];
    for (kind, least, most) in kinds {
        for increment in [1, 3, 1000, 1 << 60, i64::MAX, -1, -2, -(1 << 60), i64::MIN] {
            let bounds =
                [(1, 3), (1, 7), (1, 8), (1, 9), (-4, 3), (0, 21), (least, most), (most - 7, most), (least, least + 7)];
            for (minimum, maximum) in bounds {
                let middle = ((i128::from(minimum) + i128::from(maximum)) / 2) as i64;
                for start in [minimum, middle, maximum] {
                    let number = grid.len();
                    let cache = if number % 3 == 0 { 20 } else { 1 };
                    grid.push(Definition { kind, increment, minimum, maximum, start, cycle: number % 2 == 0, cache });
                }
            }
        }
    }
    grid
}

// ---- the grid ----

const ROUNDS: usize = 10;

/// Draws once from each of these, in one transaction.
async fn draw(session: &Session, numbers: &[usize]) -> BTreeMap<usize, i64> {
    let mut drawn = BTreeMap::new();
    for some in numbers.chunks(500) {
        let calls: Vec<String> = some.iter().map(|n| format!("nextval('grid.s{n}')")).collect();
        let values = text(session, &format!("select array_to_string(array[{}], ' ')", calls.join(", "))).await;
        let values = values.unwrap_or_else(|e| panic!("{e:#}"));
        drawn.extend(some.iter().copied().zip(values.split(' ').map(|value| value.parse::<i64>().expect("a value"))));
    }
    drawn
}

async fn the_grid(lab: &Lab) {
    let grid = grid();
    let b = lab.session(1).await;
    let places = number(&b, "show onetrip.sequence_stride").await.unwrap();
    let create: Vec<String> =
        grid.iter().enumerate().map(|(n, d)| format!("create sequence grid.s{n} {}", d.options())).collect();
    b.must(&format!("create schema grid; {}", create.join("; "))).await;
    follows(lab, &grid, places).await;

    // Each becomes what another one was: short ones long, long ones short, up ones down.
    let altered: Vec<Definition> = (0..grid.len()).map(|n| grid[(n + 100) % grid.len()]).collect();
    let changes = [(true, false), (false, true), (true, true), (false, false)];
    for change in changes {
        let meets = |(from, to): (&Definition, &Definition)| (from.is_short(places), to.is_short(places)) == change;
        assert!(grid.iter().zip(&altered).any(meets), "none goes from {} to {} (is it short)", change.0, change.1);
    }
    let alter: Vec<String> =
        altered.iter().enumerate().map(|(n, d)| format!("alter sequence grid.s{n} {} restart", d.options())).collect();
    lab.session(2).await.must(&alter.join("; ")).await;
    follows(lab, &altered, places).await;
    lab.session(0).await.must("set client_min_messages = warning; drop schema grid cascade").await;
    lab.everywhere().await;
}

/// The sequences are short or not, are shown, and give values as their definitions say.
async fn follows(lab: &Lab, definitions: &[Definition], places: i64) {
    lab.everywhere().await;
    let sessions = lab.sessions().await;
    for session in &sessions {
        let shares = "select substr(s.relname, 2)::int, d.seqincrement, d.seqstart, d.seqmin, d.seqmax, d.seqcycle,
             d.seqcache, onetrip.sequence_share_here(s.oid, 'increment') from pg_class s
             join pg_sequence d on d.seqrelid = s.oid where s.relnamespace = 'grid'::regnamespace";
        let rows = session.query(shares, &[]).await.expect("the definitions");
        assert_eq!(rows.len(), definitions.len());
        for row in rows {
            let written = definitions[row.get::<_, i32>(0) as usize];
            let shown = Definition {
                increment: row.get(1),
                start: row.get(2),
                minimum: row.get(3),
                maximum: row.get(4),
                cycle: row.get(5),
                cache: row.get(6),
                ..written
            };
            assert_eq!(shown, written);
            let is_short = row.get::<_, i64>(7) == written.increment;
            assert_eq!(is_short, written.is_short(places), "{written:?}: short");
        }
    }

    let all: Vec<usize> = (0..definitions.len()).collect();
    let (short, long): (Vec<usize>, Vec<usize>) = all.into_iter().partition(|n| definitions[*n].is_short(places));
    assert!(short.len() > 100 && long.len() > 50, "{} short, {} long", short.len(), long.len());
    // One value for each region, in the order of the places, so that nobody is beyond the others.
    for (region, session) in sessions.iter().enumerate() {
        let place = number(session, "show onetrip.sequence_slot").await.unwrap();
        for (n, value) in draw(session, &long).await {
            let written = definitions[n];
            let expected = i128::from(written.start) + i128::from(written.increment) * i128::from(place);
            assert_eq!(i128::from(value), expected, "{written:?} in region {region}");
        }
    }
    lab.everywhere().await;
    // The next value, whoever draws.
    let mut last: BTreeMap<usize, i64> = BTreeMap::new();
    let mut used_up = Vec::new();
    for round in 0..ROUNDS {
        let mut expected = BTreeMap::new();
        for n in &short {
            let next = match last.get(n) {
                None => Some(definitions[*n].start),
                Some(value) => definitions[*n].next(*value),
            };
            match next {
                Some(value) => _ = expected.insert(*n, value),
                None if !used_up.contains(n) => used_up.push(*n),
                None => {}
            }
        }
        let region = [0, 2, 1, 1][round % 4];
        let drawn = draw(&sessions[region], &expected.keys().copied().collect::<Vec<_>>()).await;
        for (n, value) in &drawn {
            assert_eq!(*value, expected[n], "{:?}, round {round}, region {region}", definitions[*n]);
        }
        last.extend(drawn);
        lab.everywhere().await;
    }
    // Those that are used up are so everywhere; each try is a savepoint that is rolled back.
    assert!(used_up.len() > 20, "{} are used up", used_up.len());
    let used_up: Vec<String> = used_up.iter().map(|n| format!("grid.s{n}")).collect();
    for session in &sessions {
        let tries = format!(
            "do $$ declare s regclass; begin
                 foreach s in array '{{{}}}'::regclass[] loop
                     begin
                         perform nextval(s);
                         raise 'sequence % gave another value', s;
                     exception when sequence_generator_limit_exceeded then
                     end;
                 end loop;
             end $$",
            used_up.join(",")
        );
        session.must(&tries).await;
        // A try takes the sequence's key also where it is rolled back.
        lab.everywhere().await;
    }
    let names: Vec<String> = short.iter().map(|n| format!("s{n}")).collect();
    let positions = format!(
        "select md5(string_agg(sequencename || ' ' || last_value, ',' order by sequencename))
         from pg_sequences where schemaname = 'grid' and sequencename = any ('{{{}}}')",
        names.join(",")
    );
    lab.shows_alike(&positions).await;
}

// ---- draws that no call shows ----

/// An identity column is filled without a call of `nextval()`.  Its values are certified too where the transaction has
/// changed nothing else that travels.
async fn identity_columns_draw_without_a_call(lab: &Lab) {
    let b = lab.session(1).await;
    b.must(
        "create table swallowed (id smallint generated always as identity (maxvalue 6), who int);
         create function swallow() returns trigger language plpgsql as 'begin return null; end';
         create trigger swallow before insert on swallowed for each row execute function swallow();
         create table beside (id smallint generated always as identity (maxvalue 6), who int) using heap",
    )
    .await;
    lab.everywhere().await;
    for (round, region) in [0, 1, 2, 1, 0].into_iter().enumerate() {
        let session = lab.session(region).await;
        session.must("insert into swallowed (who) values (1)").await;
        let last = format!("select currval('swallowed_id_seq'), {round}");
        assert_eq!(number(&session, &last).await.unwrap(), round as i64 + 1, "in region {region}");
        let insert = "insert into beside (who) values (1) returning id";
        assert_eq!(number(&session, insert).await.unwrap(), round as i64 + 1, "in region {region}");
        // Who only looks does not need the other regions.
        session.must("set onetrip.max_trips = 0").await;
        assert_eq!(number(&session, "select lastval()").await.unwrap(), round as i64 + 1);
        assert_eq!(number(&session, "select currval('beside_id_seq')").await.unwrap(), round as i64 + 1);
        let refused = session.refused("insert into beside (who) values (1)").await;
        assert_eq!(refused.code().code(), "53400", "{refused:?}");
        lab.everywhere().await;
    }
    b.must("drop table swallowed, beside").await;
    lab.everywhere().await;
}

/// Two identity columns whose sequences look the same in one region, and not in the others.
async fn like_copies_the_right_column(lab: &Lab) {
    let b = lab.session(1).await;
    let places = number(&b, "show onetrip.sequence_stride").await.unwrap();
    b.must(&format!(
        "create table twins (a int generated always as identity (maxvalue 20), s serial,
             b int generated always as identity (increment {places} maxvalue 20));
         create table of_twins (like twins including identity including defaults)"
    ))
    .await;
    let defined = "select string_agg(c.relname || ' ' || seqincrement || ' ' ||
             (onetrip.sequence_share_here(seqrelid, 'increment') = seqincrement), ', ' order by 1)
         from pg_sequence join pg_class c on c.oid = seqrelid where relname like 'of_twins%'";
    lab.shows(defined, &format!("of_twins_a_seq 1 false, of_twins_b_seq {places} true")).await;
    b.must("drop table of_twins, twins").await;
    lab.everywhere().await;
}

/// Both wait for a third one, and must then not wait for each other.
async fn crosswise(lab: &Lab) {
    lab.session(0).await.must("create sequence one maxvalue 7 cycle; create sequence two maxvalue 7 cycle").await;
    lab.everywhere().await;
    let (first, then, last) = (lab.session(1).await, lab.session(1).await, lab.session(1).await);
    for (one, two) in [("one", "two"), ("two", "one")] {
        first.must(&format!("begin; select nextval('{one}')")).await;
        then.must(&format!("begin; select nextval('{one}'), nextval('{two}')")).await;
        last.must(&format!("begin; select nextval('{two}'), nextval('{one}')")).await;
        let after = async |session: &Session, ms| {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            session.run("commit").await
        };
        let said =
            bounded("three commits", async { tokio::join!(after(&first, 0), after(&then, 8), after(&last, 16)) }).await;
        for said in [said.0, said.1, said.2] {
            said.unwrap_or_else(|e| panic!("{}", told(&e)));
        }
    }
    lab.session(0).await.must("drop sequence one, two").await;
    lab.everywhere().await;
}

/// `value` of the query in each region in turn, which shows what was committed before.
async fn in_turn(lab: &Lab, order: &[usize], query: &str) -> Vec<i64> {
    let mut values = Vec::new();
    for region in order {
        let session = lab.session(*region).await;
        values.push(number(&session, query).await.unwrap_or_else(|e| panic!("{query}: {e:#}")));
        lab.everywhere().await;
    }
    values
}

/// The rows that a table has already are numbered once, not in each region.
async fn columns_that_are_added(lab: &Lab) {
    let b = lab.session(1).await;
    b.must("create table grows (v int primary key); insert into grows select generate_series(1, 3)").await;
    lab.session(2).await.must("select 1").await;
    lab.everywhere().await;
    b.must("alter table grows add column id smallint generated always as identity (maxvalue 7)").await;
    assert_eq!(lab.shows_alike("select string_agg(v || ' ' || id, ', ' order by v) from grows").await, "1 1, 2 2, 3 3");
    let insert = "insert into grows select max(v) + 1 from grows returning id";
    assert_eq!(in_turn(lab, &[0, 2, 1], insert).await, [4, 5, 6]);
    // As a table that is emptied, and one whose column gets another type.
    lab.session(2).await.must("truncate grows restart identity").await;
    lab.everywhere().await;
    assert_eq!(in_turn(lab, &[1, 0], "insert into grows select count(*) from grows returning id").await, [1, 2]);
    lab.session(0).await.must("alter table grows alter column id type bigint").await;
    lab.everywhere().await;
    assert_eq!(in_turn(lab, &[1, 0], "insert into grows select count(*) from grows returning id").await, [3, 4]);
    lab.session(0).await.must("alter table grows alter column id set maxvalue 8 set start 2 restart").await;
    lab.everywhere().await;
    assert_eq!(in_turn(lab, &[2, 1], "insert into grows select count(*) from grows returning id").await, [2, 3]);
    b.must("drop table grows").await;
    lab.everywhere().await;
}

/// A sequence that becomes short while sessions of several regions have values of it in their caches.
async fn values_that_a_session_had_cached(lab: &Lab) {
    let sessions = lab.sessions().await;
    sessions[1].must("create sequence cached cache 20").await;
    lab.everywhere().await;
    for session in &sessions {
        session.must("select nextval('cached'), nextval('cached')").await;
    }
    sessions[0].must("alter sequence cached maxvalue 1004 start 1000 restart").await;
    lab.everywhere().await;
    for (expected, region) in (1000..).zip([2, 0, 1, 1, 2]) {
        assert_eq!(
            number(&sessions[region], "select nextval('cached')").await.unwrap(),
            expected,
            "in region {region}"
        );
        lab.everywhere().await;
    }
    sessions[1].must("drop sequence cached").await;
    lab.everywhere().await;
}

/// As long as they are unlogged, each region has all values; then they have them together.
async fn what_becomes_logged(lab: &Lab) {
    let b = lab.session(1).await;
    b.must("create unlogged table apart (id smallint generated always as identity (maxvalue 6), v int primary key)")
        .await;
    lab.everywhere().await;
    b.must("insert into apart (v) values (1), (2)").await;
    b.must("alter table apart set logged").await;
    lab.everywhere().await;
    lab.shows("select string_agg(id || ' ' || v, ', ' order by v) from apart", "1 1, 2 2").await;
    let insert = "insert into apart (v) select max(v) + 1 from apart returning id";
    assert_eq!(in_turn(lab, &[0, 1, 2], insert).await, [3, 4, 5]);
    b.must("drop table apart").await;
    lab.everywhere().await;
}

/// Statements that run in every region, and draw in the one where they are given.
async fn statements_that_keep_what_they_draw(lab: &Lab) {
    let b = lab.session(1).await;
    b.must("create sequence kept maxvalue 7; create materialized view drawn as select nextval('kept') as n").await;
    lab.everywhere().await;
    lab.shows("select n from drawn", "1").await;
    lab.session(2).await.must("refresh materialized view drawn").await;
    lab.shows("select n from drawn", "2").await;
    lab.session(0).await.must("create table drawn_too as select nextval('kept') as n from generate_series(1, 2)").await;
    lab.shows("select string_agg(n::text, ' ' order by n) from drawn_too", "3 4").await;
    // What is prepared holds the sequence, and keeps its value.
    b.must("begin; select nextval('kept'); prepare transaction 'draws'").await;
    b.must("commit prepared 'draws'").await;
    lab.everywhere().await;
    // An exception takes the change back, not the draw.
    let caught = "do $$ begin
            begin perform nextval('kept'); raise 'no'; exception when raise_exception then end;
        end $$";
    lab.session(2).await.must(caught).await;
    lab.everywhere().await;
    assert_eq!(in_turn(lab, &[0], "select nextval('kept')").await, [7]);
    b.must("drop table drawn_too; drop materialized view drawn; drop sequence kept").await;
    lab.everywhere().await;
}
