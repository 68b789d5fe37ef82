//! Traces of COMMITs (`[traces]` in `node.toml`), as a collector of OpenTelemetry gets them.

use crate::lab::{apart, builder, start_prepared, text, until, SOON};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::Router;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What an attribute says, as text.
fn attribute(all: &[KeyValue], key: &str) -> Option<String> {
    let value = all.iter().find(|a| a.key == key)?.value.as_ref()?.value.as_ref()?;
    match value {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A collector on this machine.
#[derive(Default)]
struct Collector {
    /// With the region of the node that has sent it.
    spans: Mutex<Vec<(String, Span)>>,
    refuses: AtomicBool,
}

async fn take(State(collector): State<Arc<Collector>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if collector.refuses.load(Ordering::Relaxed) {
        return StatusCode::BAD_REQUEST;
    }
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let request = ExportTraceServiceRequest::decode(body).expect("a request of OTLP");
    for of_node in request.resource_spans {
        let resource = of_node.resource.expect("what the spans are of");
        assert_eq!(attribute(&resource.attributes, "service.name").as_deref(), Some("onetrip"));
        let region = attribute(&resource.attributes, "onetrip.region").expect("a region");
        let spans = of_node.scope_spans.into_iter().flat_map(|scope| scope.spans);
        collector.spans.lock().unwrap().extend(spans.map(|span| (region.clone(), span)));
    }
    StatusCode::OK
}

impl Collector {
    async fn start() -> (Arc<Collector>, String) {
        let collector = Arc::new(Collector::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new().route("/v1/traces", post(take)).with_state(collector.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (collector, endpoint)
    }

    /// The spans of this transaction by their names, and the region that has sent them.
    fn trace(&self, txn: &str) -> Option<(String, BTreeMap<String, Span>)> {
        let spans = self.spans.lock().unwrap();
        let is_root = |span: &Span| attribute(&span.attributes, "onetrip.transaction").as_deref() == Some(txn);
        let (region, root) = spans.iter().find(|(_, span)| is_root(span))?;
        let own = spans.iter().filter(|(_, span)| span.trace_id == root.trace_id);
        Some((region.clone(), own.map(|(_, span)| (span.name.clone(), span.clone())).collect()))
    }
}

fn ms(span: &Span) -> f64 {
    (span.end_time_unix_nano - span.start_time_unix_nano) as f64 / 1e6
}

/// Goal: each COMMIT of a region is one trace, whose parts take as long as the session was told, follow each other and
/// lie within what they are parts of; one that loses is an error; and without a collector everything works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn a_commit_is_a_trace_of_its_parts() {
    let (collector, endpoint) = Collector::start().await;
    let traces = format!("\n[traces]\nendpoint = \"{endpoint}/\"\nsample = 1\n");
    let about = "traces of COMMITs: parts, times, conflicts, no collector";
    // The third region makes none.
    let lab = start_prepared("traces", about, builder().topology(apart(20)), |cluster| {
        for node in &cluster.nodes()[..2] {
            let file = node.folder().join("node.toml");
            std::fs::write(&file, std::fs::read_to_string(&file)? + &traces)?;
        }
        Ok(())
    })
    .await;
    let off = lab.session(2).await;
    assert_eq!(text(&off, "show onetrip.trace_every").await.unwrap(), "0");
    off.must("create table t (id int primary key, n int); insert into t values (1, 0), (2, 0)").await;
    lab.everywhere().await;

    let b = lab.session(1).await;
    b.must("set application_name = 'shop'").await;
    b.must("set onetrip.ack = applied_everywhere").await;
    let mut told = BTreeMap::new();
    for n in 0..5 {
        b.must(&format!("insert into t values ({}, 0)", 10 + n)).await;
        let query = "select transaction_id || ' ' || entry || ' ' || verdict_ms || ' ' || everywhere_ms from onetrip.last_commit()";
        let cost = text(&b, query).await.unwrap();
        let cost: Vec<&str> = cost.split(' ').collect();
        let number = |at: usize| cost[at].parse::<f64>().unwrap();
        told.insert(cost[0].to_string(), (cost[1].to_string(), number(2), number(3)));
    }
    for (txn, (entry, verdict_ms, everywhere_ms)) in &told {
        until("the trace", SOON, || async { Ok(collector.trace(txn).is_some()) }).await.unwrap();
        let (region, spans) = collector.trace(txn).unwrap();
        let names: BTreeSet<&str> = spans.keys().map(String::as_str).collect();
        let parts = ["certify", "everywhere", "local", "prepare", "propose", "replicate", "turn", "verdict"];
        assert_eq!((region.as_str(), names), ("b", BTreeSet::from_iter(parts.into_iter().chain(["COMMIT"]))));
        let root = &spans["COMMIT"];
        assert!(root.parent_span_id.is_empty());
        for (key, value) in [
            ("onetrip.entry", entry.as_str()),
            ("onetrip.outcome", "committed"),
            ("onetrip.application", "shop"),
            ("onetrip.role", "postgres"),
            ("db.namespace", "onetrip"),
        ] {
            assert_eq!(attribute(&root.attributes, key).as_deref(), Some(value), "{key}");
        }
        for (name, parent) in
            parts.map(|part| (part, if "certify propose replicate".contains(part) { "verdict" } else { "COMMIT" }))
        {
            let (span, parent) = (&spans[name], &spans[parent]);
            assert_eq!(span.parent_span_id, parent.span_id, "{name}");
            // The server notes microseconds.
            let near = 10_000;
            assert!(
                span.start_time_unix_nano + near >= parent.start_time_unix_nano
                    && span.end_time_unix_nano <= parent.end_time_unix_nano + near,
                "{name} is not within its parent: {spans:?}"
            );
        }
        for chain in [&["prepare", "verdict", "turn", "local", "everywhere"][..], &["propose", "replicate", "certify"]]
        {
            for two in chain.windows(2) {
                assert!(spans[two[0]].end_time_unix_nano <= spans[two[1]].start_time_unix_nano + 10_000, "{two:?}");
            }
        }
        for (part, told_ms) in [("verdict", verdict_ms), ("everywhere", everywhere_ms)] {
            assert!((ms(&spans[part]) - told_ms).abs() < 0.01, "{part}: {} ms, {told_ms} were told", ms(&spans[part]));
        }
        assert!(ms(&spans["replicate"]) > 19.0, "one round trip: {spans:?}");
    }

    // One that loses in the log has no part of the server.
    let a = lab.session(0).await;
    for session in [&a, &b] {
        session.must("set onetrip.statement_retries = 0; set onetrip.ack = quorum").await;
        session.must("begin; update t set n = n + 1 where id = 1").await;
    }
    let (first, second) = tokio::join!(a.client.batch_execute("commit"), b.client.batch_execute("commit"));
    assert!(first.is_ok() != second.is_ok(), "one of two wins: {first:?}, {second:?}");
    until("the one that lost", SOON, || async {
        let spans = collector.spans.lock().unwrap();
        let lost =
            spans.iter().find(|(_, s)| attribute(&s.attributes, "onetrip.outcome").as_deref() == Some("conflict"));
        Ok(lost.is_some_and(|(_, span)| {
            attribute(&span.attributes, "db.response.status_code").as_deref() == Some("40001")
                && span.status.as_ref().is_some_and(|status| status.code == 2)
        }))
    })
    .await
    .unwrap();

    let loser = if first.is_ok() { &b } else { &a };
    assert_eq!(text(loser, "select lost from onetrip.roles where role = 'postgres'").await.unwrap(), "1");

    // Whoever refuses traces, or is not there, holds up nobody.
    collector.refuses.store(true, Ordering::Relaxed);
    let log = || std::fs::read_to_string(lab.node(1).folder().join("node.log")).unwrap();
    b.must("update t set n = n + 1 where id = 2").await;
    until("the log to say so", SOON, || async { Ok(log().contains("does not take them")) }).await.unwrap();
    collector.refuses.store(false, Ordering::Relaxed);
    b.must("update t set n = n + 1 where id = 2").await;
    let txn = text(&b, "select transaction_id from onetrip.last_commit()").await.unwrap();
    until("traces to come again", SOON, || async { Ok(collector.trace(&txn).is_some()) }).await.unwrap();
    // What the server has noted outlives its node, and a server that starts anew begins anew.
    lab.node(1).stop().await.unwrap();
    lab.node(1).restart().await.unwrap();
    lab.wait_ready().await.unwrap();
    let b = lab.session(1).await;
    b.must("update t set n = n + 1 where id = 2").await;
    let txn = text(&b, "select transaction_id from onetrip.last_commit()").await.unwrap();
    until("traces after a restart", SOON, || async { Ok(collector.trace(&txn).is_some()) }).await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let ids: Vec<_> = collector.spans.lock().unwrap().iter().map(|(_, s)| s.span_id.clone()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "no span comes twice");
    assert!(collector.spans.lock().unwrap().iter().all(|(region, _)| region != "c"));
    lab.check_equal(1).await;
}
