//! Cells that need more than one fault, or another question.

use std::time::Duration;

use super::cell::{How, Point, Stop, Told};
use super::Matrix;
use crate::lab::{number, text, until, SOON};

impl Matrix {
    pub async fn special(&mut self) {
        let began = std::time::Instant::now();
        self.refused_by_a_stopping_node_after_it_was_proposed().await;
        self.an_error_while_proposing_again().await;
        for point in ["verdict-received", "turn-held"] {
            // With and without a log of it.
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
        self.given_up_while_the_node_was_away().await;
        self.the_client_went_before_commit().await;
        self.settled_while_its_region_is_down().await;
        self.ledger.judge(&self.lab).await;
        println!("outcomes: special cells in {:.1} s; {}", began.elapsed().as_secs_f64(), self.ledger.summary());
    }

    /// A node refuses what it does not propose.  It cannot know of what an earlier life of it has proposed: the
    /// client may not be told that nothing was committed.
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

    /// Memory may run out when a proposal is put together once more, say.
    async fn an_error_while_proposing_again(&mut self) {
        let region = 1;
        let mut held = self.hold(region, Point::Certified, How::Unnoted, "30s").await;
        let error = Stop::at_backend(&self.lab, region, &format!("cell{}", held.row), "propose-again", "error");
        self.lab.node(region).kill9().expect("kill the node");
        held.release();
        self.lab.node(region).start().unwrap_or_else(|e| panic!("{e:#}"));
        let told = held.told().await;
        drop(error);
        self.serves(region).await;
        self.ledger.note("error when proposed again", &held, told, &[Told::Unknown(String::new())], Some(true));
    }

    /// A full disk, say: COMMIT says that the transaction is committed, and the session goes on.
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

    /// The log cannot give back what the transaction wrote into a table of this server alone: the client is told so.
    async fn an_error_when_other_tables_were_written(&mut self) {
        let region = 1;
        let mut held = self.hold(region, Point::BeforePropose, How::BothTables, "30s").await;
        let error = Stop::at_backend(&self.lab, region, &format!("cell{}", held.row), "turn-held", "error");
        held.release();
        let told = held.told().await;
        drop(error);
        assert!(
            held.message.contains("those of other tables, which this server alone has, are lost"),
            "{}",
            held.message
        );
        assert_eq!(self.rows_here(region, held.row).await, 0);
        self.ledger.note("error, two tables", &held, told, &[Told::SaysCommitted(String::new())], Some(true));
    }

    /// Somebody before it does not come to an end: it is told that it is committed, with a SQLSTATE, and then that
    /// its session is over.
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

    /// It waits for its turn: what it wrote is in both tables, or in none.
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

    /// In the extended protocol the server looks for a termination between COMMIT's answer and its end, at which
    /// clients take it for failed.
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

    async fn rows_here(&self, region: usize, row: u32) -> i64 {
        let session = self.lab.session(region).await;
        number(&session, &format!("select count(*) from here where id = {row}")).await.expect("count")
    }

    /// The node that had the proposal is gone, and so is everybody who knew of it: PostgreSQL has it decided.
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

    /// It had noted its id, and asks in another region.
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

    /// Its node and its server are gone: another region settles it, and it stays so when they are back.
    async fn settled_while_its_region_is_down(&mut self) {
        let region = 1;
        let mut held = self.hold(region, Point::Received, How::Noted, "30s").await;
        self.lab.node(region).kill9().expect("kill the node");
        self.kill9_postgres(region);
        held.release();
        let id = held.id.clone().expect("it was noted");
        let (first, second) = (self.lab.session(2).await, self.lab.session(0).await);
        let ask = format!("select onetrip.outcome('{id}')");
        // Nobody is there to decide it, so it stays open for as long as one looks.
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
