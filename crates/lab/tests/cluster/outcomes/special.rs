//! Cells that need more than one fault, or that check something else.

use std::time::Duration;

use super::cell::{is_logged, How, Point, Stop, Told};
use super::Matrix;
use crate::lab::{number, text, until, Session, SOON};

impl Matrix {
    pub async fn special(&mut self) {
        let began = std::time::Instant::now();
        self.refused_by_a_stopping_node_after_it_was_proposed().await;
        for cancel in [false, true] {
            self.an_error_while_proposing_again(cancel).await;
        }
        for point in ["verdict-received", "turn-held"] {
            // More than once, so that it is tried with and without log messages (see `Held::start`).
            for _ in 0..3 {
                self.an_error_of_the_server_after_the_verdict(point).await;
            }
        }
        self.an_error_when_other_tables_were_written().await;
        for _ in 0..3 {
            self.ended_before_its_turn().await;
        }
        self.ended_before_its_turn_when_other_tables_were_written().await;
        self.the_answer_is_there_before_the_end().await;
        self.a_busy_session_is_ended().await;
        self.a_busy_procedure_is_ended().await;
        self.a_standby_is_away().await;
        self.given_up_while_the_node_was_away().await;
        self.the_client_went_before_commit().await;
        self.settled_while_its_region_is_down().await;
        self.whoever_writes_it_early_fails().await;
        self.ledger.judge(&self.lab).await;
        println!("outcomes: special cells in {:.1} s; {}", began.elapsed().as_secs_f64(), self.ledger.summary());
    }

    /// A large transaction is written in another region while it arrives there.  The process that does so fails or is
    /// killed, and its server with it, at each point of its way: the transaction is there all the same.
    async fn whoever_writes_it_early_fails(&mut self) {
        let (region, worker, rows) = (1, "onetrip arrival worker", 40_000);
        let session = self.lab.session(0).await;
        session.must("create table large (who int, id int, v text, primary key (who, id))").await;
        self.lab.everywhere().await;
        let noise = "(select string_agg(md5((g * 10 + i)::text), '') from generate_series(1, 8) i)";
        let mut who = 0;
        for point in ["arrival-rows", "arrival-written", "arrival-decided", "arrival-committed"] {
            for fault in ["error", "die"] {
                let order = if point == "arrival-rows" { format!("{fault} after 60") } else { fault.into() };
                let stop = Stop::at_backend(&self.lab, region, worker, point, &order);
                who += 1;
                session
                    .must(&format!("insert into large select {who}, g, {noise} from generate_series(1, {rows}) g"))
                    .await;
                stop.reached().await;
                drop(stop);
                self.serves(region).await;
                // It connects again, unseen.
                tokio::time::sleep(Duration::from_millis(500)).await;
                self.lab.shows("select count(*) from large", &(who * rows).to_string()).await;
            }
        }
        println!("outcomes: written early, and failed at each point: {who} large transactions");
    }

    /// A node refuses a proposal, and cannot know that it proposed the same transaction before its restart: the client
    /// must not be told that nothing was committed.
    async fn refused_by_a_stopping_node_after_it_was_proposed(&mut self) {
        let region = 1;
        let mut held = self.hold(region, Point::Certified, How::Noted, "3s").await;
        let refuse = Stop::at_node(&self.lab, region, "refuse", "");
        self.lab.node(region).kill9().expect("kill the node");
        held.release();
        self.lab.node(region).start().unwrap_or_else(|e| panic!("{e:#}"));
        let told = held.told().await;
        drop(refuse);
        self.serves(region).await;
        self.ledger.note("refused when proposed again", &held, told, &[Told::Unknown(String::new())], Some(true));
    }

    /// An error while a proposal is put together once more, for example because memory runs out; perhaps just after a
    /// cancel.
    async fn an_error_while_proposing_again(&mut self, cancel: bool) {
        let region = 1;
        // Logging the error serves interrupts.
        while cancel && !is_logged(self.ledger.rows + 1) {
            self.ledger.next_row();
        }
        let mut held = self.hold(region, Point::Certified, How::Unnoted, "30s").await;
        let program = format!("cell{}", held.row);
        let pause = Stop::at_backend(&self.lab, region, &program, "propose-again", "wait");
        let error = Stop::at_backend(&self.lab, region, &program, "propose-half", "error");
        self.lab.node(region).kill9().expect("kill the node");
        held.release();
        self.lab.node(region).start().unwrap_or_else(|e| panic!("{e:#}"));
        pause.reached().await;
        if cancel {
            self.lab.session(region).await.must(&format!("select pg_cancel_backend({})", held.pid)).await;
        }
        drop(pause);
        let told = held.told().await;
        drop(error);
        self.serves(region).await;
        self.ledger.note("error when proposed again", &held, told, &[Told::Unknown(String::new())], Some(true));
    }

    /// After an error such as a full disk, COMMIT says that the transaction is committed, and the session goes on.
    async fn an_error_of_the_server_after_the_verdict(&mut self, point: &str) {
        let region = 1;
        let mut held = self.hold(region, Point::BeforePropose, How::Unnoted, "30s").await;
        let error = Stop::at_backend(&self.lab, region, &format!("cell{}", held.row), point, "error");
        held.release();
        let told = held.told().await;
        drop(error);
        assert!(held.alive, "the session ended: {}", held.message);
        assert!(held.message.starts_with("ERROR 08007 "), "{}", held.message);
        self.ledger.note("error after the verdict", &held, told, &[Told::SaysCommitted(String::new())], Some(true));
    }

    /// The log does not contain what the transaction wrote to a table that only this server has: the client is told
    /// that it is lost.
    async fn an_error_when_other_tables_were_written(&mut self) {
        let region = 1;
        let mut held = self.hold(region, Point::BeforePropose, How::BothTables, "30s").await;
        let error = Stop::at_backend(&self.lab, region, &format!("cell{}", held.row), "turn-held", "error");
        held.release();
        let told = held.told().await;
        drop(error);
        assert!(
            held.message.contains("those of other tables and definitions, which this server alone has, are lost"),
            "{}",
            held.message
        );
        assert_eq!(self.rows_here(region, held.row).await, 0);
        self.ledger.note("error, two tables", &held, told, &[Told::SaysCommitted(String::new())], Some(true));
    }

    /// The session is ended while another one before it holds the turn: it is told, with a SQLSTATE, that its
    /// transaction is committed, and then its session ends.
    async fn ended_before_its_turn(&mut self) {
        let region = 1;
        let mut first = self.hold(region, Point::TurnHeld, How::Unnoted, "30s").await;
        let mut held = self.hold(region, Point::TurnWaiting, How::Noted, "30s").await;
        self.lab.session(region).await.must(&format!("select pg_terminate_backend({})", held.pid)).await;
        held.release();
        let told = held.told().await;
        assert!(held.message.starts_with("ERROR 08007 "), "{}", held.message);
        assert!(!held.alive, "the session goes on");
        self.ledger.note("ended before its turn", &held, told, &[Told::SaysCommitted(String::new())], Some(true));
        first.release();
        let told = first.told().await;
        self.ledger.note("before one that ended", &first, told, &[Told::Committed], Some(true));
    }

    /// Here the ended session still waits for its turn, so that what it wrote is in both tables, or in neither.
    async fn ended_before_its_turn_when_other_tables_were_written(&mut self) {
        let region = 1;
        let mut first = self.hold(region, Point::TurnHeld, How::Unnoted, "30s").await;
        let mut held = self.hold(region, Point::TurnWaiting, How::BothTables, "30s").await;
        self.lab.session(region).await.must(&format!("select pg_terminate_backend({})", held.pid)).await;
        held.release();
        let session = self.lab.session(region).await;
        let waits =
            format!("select count(*) from pg_stat_activity where pid = {} and wait_event = 'Extension'", held.pid);
        until("it waits for its turn", SOON, || async { Ok(number(&session, &waits).await? == 1) })
            .await
            .unwrap_or_else(|e| panic!("{e:#}"));
        first.release();
        let told = first.told().await;
        self.ledger.note("before one that ended", &first, told, &[Told::Committed], Some(true));
        let told = held.told().await;
        assert_eq!(self.rows_here(region, held.row).await, 1, "told {told:?} {}", held.message);
        self.ledger.note("ended, two tables", &held, told, &[Told::Committed], Some(true));
    }

    /// In the extended protocol the server checks whether it is to end the session between the execution of COMMIT and
    /// the final reply; if it ended there, clients would take the COMMIT for failed.
    async fn the_answer_is_there_before_the_end(&mut self) {
        let region = 1;
        let row = self.ledger.next_row();
        let stop = Stop::at_backend(&self.lab, region, "extended", "turn-held", "wait");
        let session = self.lab.session(region).await;
        session.must(&format!("set application_name = extended; begin; insert into t values ({row}, '')")).await;
        let ending = async {
            stop.reached().await;
            let end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'extended'";
            self.lab.session(region).await.must(end).await;
            drop(stop);
        };
        let (told, ()) = tokio::join!(session.execute("commit", &[]), ending);
        told.unwrap_or_else(|e| panic!("COMMIT of a session that was told to end: {}", crate::lab::told(&e)));
        self.lab.shows(&format!("select count(*) from t where id = {row}"), "1").await;
    }

    /// A session is told to end during a COMMIT, and is in the next one by the time that it would have ended.
    async fn a_busy_session_is_ended(&mut self) {
        let (row, never) = (self.ledger.next_row(), self.ledger.next_row());
        let session = self.lab.session(1).await;
        session.must("set application_name = busy").await;
        let late = Stop::at_backend(&self.lab, 1, "busy", "verdict-received", "wait after 1");
        self.end_during(&session, &format!("insert into t values ({row}, '')")).await.expect("it is committed");
        let insert = format!("insert into t values ({never}, '')");
        let (told, ()) = tokio::join!(session.run(&insert), let_go_later(late));
        self.has_ended(told, row, never).await;
    }

    /// The same within one statement.
    async fn a_busy_procedure_is_ended(&mut self) {
        let rows = [self.ledger.next_row(), self.ledger.next_row(), self.ledger.next_row()];
        let session = self.lab.session(1).await;
        session.must("set application_name = busy").await;
        let late = Stop::at_backend(&self.lab, 1, "busy", "verdict-received", "wait after 1");
        let call = format!("call write_and_commit_all(array{rows:?})");
        let (told, ()) = tokio::join!(self.end_during(&session, &call), let_go_later(late));
        self.has_ended(told, rows[0], rows[2]).await;
    }

    /// Runs a statement of session "busy", which is told to end during its first COMMIT.
    async fn end_during(&self, session: &Session, statement: &str) -> Result<(), tokio_postgres::Error> {
        let stop = Stop::at_backend(&self.lab, 1, "busy", "turn-held", "wait");
        let ending = async {
            stop.reached().await;
            let end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'busy'";
            self.lab.session(1).await.must(end).await;
            drop(stop);
        };
        tokio::join!(session.run(statement), ending).0
    }

    async fn has_ended(&self, told: Result<(), tokio_postgres::Error>, row: u32, never: u32) {
        let error = told.expect_err("a session that was told to end goes on");
        assert!(error.as_db_error().is_none_or(|db| db.code().code() == "57P01"), "{}", crate::lab::told(&error));
        self.lab
            .shows(&format!("select string_agg(id::text, ',') from t where id in ({row}, {never})"), &row.to_string())
            .await;
    }

    /// A standby that this server waits for is away: who waits for it does not have the turn.
    async fn a_standby_is_away(&mut self) {
        let region = 1;
        let session = self.lab.session(region).await;
        session.must("alter system set synchronous_standby_names = nobody").await;
        session.must("select pg_reload_conf()").await;
        let waiting = self.lab.session(region).await;
        let waiting = tokio::spawn(async move { waiting.run("insert into here values (0)").await });
        until("the server waits for its standby", SOON, || async {
            Ok(number(&session, "select count(*) from pg_stat_activity where wait_event = 'SyncRep'").await? == 1)
        })
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
        let mut held = self.hold(region, Point::BeforePropose, How::BothTables, "30s").await;
        held.release();
        let told = held.told().await;
        self.ledger.note("no standby", &held, told, &[Told::Committed], Some(true));
        session.must("alter system reset synchronous_standby_names").await;
        session.must("select pg_reload_conf()").await;
        waiting.await.expect("it runs").expect("it is committed");
    }

    async fn rows_here(&self, region: usize, row: u32) -> i64 {
        let session = self.lab.session(region).await;
        number(&session, &format!("select count(*) from here where id = {row}")).await.expect("count")
    }

    /// The node that had the proposal was killed, and the backend has given the transaction up: PostgreSQL still sees
    /// to it that it is decided.
    async fn given_up_while_the_node_was_away(&mut self) {
        let region = 1;
        let mut held = self.hold(region, Point::Received, How::Unnoted, "30s").await;
        self.lab.node(region).kill9().expect("kill the node");
        held.release();
        self.lab.session(region).await.must(&format!("select pg_cancel_backend({})", held.pid)).await;
        let told = held.told().await;
        self.lab.node(region).start().unwrap_or_else(|e| panic!("{e:#}"));
        self.serves(region).await;
        self.ledger.note("given up without the node", &held, told, &[Told::Unknown(String::new())], Some(false));
    }

    /// The client had noted its transaction id, and asks for the outcome in another region.
    async fn the_client_went_before_commit(&mut self) {
        let session = self.lab.session(0).await;
        let row = self.ledger.next_row();
        session.must(&format!("begin; insert into t values ({row}, '')")).await;
        let id = text(&session, "select onetrip.current_transaction_id()").await.unwrap();
        drop(session);
        let other = self.lab.session(2).await;
        until("a transaction that was never committed is aborted", SOON, || async {
            Ok(text(&other, &format!("select onetrip.outcome('{id}')")).await? == "aborted")
        })
        .await
        .unwrap_or_else(|e| panic!("{e:#}"));
    }

    /// Its node and its server are down: another region settles the transaction, and the outcome stays the same when
    /// they are back.
    async fn settled_while_its_region_is_down(&mut self) {
        let region = 1;
        let mut held = self.hold(region, Point::Received, How::Noted, "30s").await;
        self.lab.node(region).kill9().expect("kill the node");
        self.kill9_postgres(region);
        held.release();
        let id = held.id.clone().expect("it was noted");
        let (first, second) = (self.lab.session(2).await, self.lab.session(0).await);
        let ask = format!("select onetrip.outcome('{id}')");
        // No process is left that would have it decided, so its outcome stays unknown.
        for _ in 0..10 {
            assert_eq!(text(&first, &ask).await.unwrap(), "unknown");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let settled = text(&first, &format!("select onetrip.outcome('{id}', settle => true)")).await.unwrap();
        assert_eq!(settled, "aborted");
        until("the other region says the same", SOON, || async { Ok(text(&second, &ask).await? == "aborted") })
            .await
            .unwrap_or_else(|e| panic!("{e:#}"));
        self.lab.node(region).start().unwrap_or_else(|e| panic!("{e:#}"));
        self.serves(region).await;
        let told = held.told().await;
        self.ledger.note("settled elsewhere", &held, told, &[Told::Lost(String::new())], Some(false));
    }
}

/// Long after a session that is told to end would have ended.
async fn let_go_later(stop: Stop) {
    tokio::time::sleep(Duration::from_millis(500)).await;
    drop(stop);
}
