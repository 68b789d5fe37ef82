//! The spans of one COMMIT, from what its server and its node have noted.

use super::{Ended, Timed};
use crate::tls::sha256;
use onetrip_core::LogIndex;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::SpanData;
use std::time::{Duration, SystemTime};

const ROOT: &str = "COMMIT";
const VERDICT: &str = "verdict";

/// The server's part: `docs/functions.md` says what these parts are.
#[derive(Clone, Debug)]
pub(super) struct Noted {
    pub entry: LogIndex,
    pub ended: SystemTime,
    pub prepare: Duration,
    pub verdict: Duration,
    pub turn: Duration,
    pub local: Duration,
    pub everywhere: Option<Duration>,
    pub whole: Duration,
    pub bytes: i64,
    pub role: String,
    pub application: String,
}

/// Where and of what the spans are.
pub(super) struct Maker {
    pub cluster: String,
    pub database: String,
    pub scope: InstrumentationScope,
}

struct Trace<'a> {
    maker: &'a Maker,
    id: TraceId,
    spans: Vec<SpanData>,
}

fn span_id(trace: TraceId, name: &str) -> SpanId {
    let digest = sha256(&[&trace.to_bytes(), name.as_bytes()].concat());
    SpanId::from_bytes(digest[..8].try_into().expect("8 bytes were taken"))
}

impl Trace<'_> {
    /// `parent`: `None` for the root.
    fn add(&mut self, name: &'static str, parent: Option<&str>, from: SystemTime, to: SystemTime) {
        let context =
            SpanContext::new(self.id, span_id(self.id, name), TraceFlags::SAMPLED, false, TraceState::default());
        self.spans.push(SpanData {
            span_context: context,
            parent_span_id: parent.map_or(SpanId::INVALID, |parent| span_id(self.id, parent)),
            parent_span_is_remote: false,
            span_kind: if parent.is_none() { SpanKind::Server } else { SpanKind::Internal },
            name: name.into(),
            start_time: from,
            // Clocks are set now and then.
            end_time: to.max(from),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: Status::Unset,
            instrumentation_scope: self.maker.scope.clone(),
        });
    }

    fn root(&mut self) -> &mut SpanData {
        &mut self.spans[0]
    }
}

impl Maker {
    /// The spans, the root first.  Of the two parts at least one is there.
    pub fn spans(&self, txn: &str, noted: Option<&Noted>, timed: Option<&Timed>) -> Vec<SpanData> {
        let digest = sha256(format!("{}\n{txn}", self.cluster).as_bytes());
        let id = TraceId::from_bytes(digest[..16].try_into().expect("16 bytes were taken"));
        let mut trace = Trace { maker: self, id, spans: Vec::new() };
        let begun = match (noted, timed) {
            (Some(noted), _) => noted.ended - noted.whole,
            (None, Some(timed)) => timed.taken,
            (None, None) => return Vec::new(),
        };
        let mut within = ROOT;
        let mut proposed = begun;
        if let Some(noted) = noted {
            trace.add(ROOT, None, begun, noted.ended);
            proposed = begun + noted.prepare;
            let decided = proposed + noted.verdict;
            let turn = decided + noted.turn;
            trace.add("prepare", Some(ROOT), begun, proposed);
            trace.add(VERDICT, Some(ROOT), proposed, decided);
            trace.add("turn", Some(ROOT), decided, turn);
            trace.add("local", Some(ROOT), turn, turn + noted.local);
            if let Some(everywhere) = noted.everywhere {
                trace.add("everywhere", Some(ROOT), turn + noted.local, turn + noted.local + everywhere);
            }
            within = VERDICT;
        } else if let Some(timed) = timed {
            trace.add(ROOT, None, timed.taken, timed.decided);
        }
        if let Some(timed) = timed {
            if noted.is_some() {
                trace.add("propose", Some(within), proposed, timed.taken);
            }
            trace.add("replicate", Some(within), timed.taken, timed.committed);
            trace.add("certify", Some(within), timed.committed, timed.decided);
        }
        let entry = noted.map(|noted| noted.entry).or(timed.map(|timed| timed.entry)).unwrap_or_default();
        let mut attributes = vec![
            KeyValue::new("db.system.name", "postgresql"),
            KeyValue::new("db.namespace", self.database.clone()),
            KeyValue::new("db.operation.name", "COMMIT"),
            KeyValue::new("onetrip.transaction", txn.to_string()),
            KeyValue::new("onetrip.entry", entry.0 as i64),
        ];
        if let Some(noted) = noted {
            attributes.push(KeyValue::new("onetrip.bytes", noted.bytes));
            attributes.push(KeyValue::new("onetrip.role", noted.role.clone()));
            attributes.push(KeyValue::new("onetrip.application", noted.application.clone()));
        }
        let outcome = match timed.map(|timed| timed.ended) {
            None | Some(Ended::Committed) => "committed",
            Some(Ended::Conflict { other }) => {
                attributes.push(KeyValue::new("onetrip.lost_to_entry", other.0 as i64));
                "conflict"
            }
            Some(Ended::Aborted) => "aborted",
        };
        attributes.push(KeyValue::new("onetrip.outcome", outcome));
        if outcome != "committed" {
            attributes
                .push(KeyValue::new("db.response.status_code", if outcome == "conflict" { "40001" } else { "40000" }));
            trace.root().status = Status::error(outcome);
        }
        trace.root().attributes = attributes;
        trace.spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetrip_core::{NodeId, TxnId};

    fn maker() -> Maker {
        let scope = InstrumentationScope::builder("onetrip").build();
        Maker { cluster: "c".into(), database: "d".into(), scope }
    }

    fn noted() -> Noted {
        let us = Duration::from_micros;
        Noted {
            entry: LogIndex(7),
            ended: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000),
            prepare: us(10),
            verdict: us(80_000),
            turn: us(20),
            local: us(70),
            everywhere: Some(us(900)),
            whole: us(81_000),
            bytes: 99,
            role: "app".into(),
            application: "shop".into(),
        }
    }

    fn timed(begun: SystemTime, ended: Ended) -> Timed {
        let at = |us| begun + Duration::from_micros(us);
        Timed {
            txn: TxnId { node: NodeId(1), incarnation: 2, sequence: 3 },
            entry: LogIndex(7),
            taken: at(60),
            committed: at(79_000),
            decided: at(79_010),
            ended,
        }
    }

    #[test]
    fn the_parts_follow_each_other_within_their_parents() {
        let noted = noted();
        let begun = noted.ended - noted.whole;
        let spans = maker().spans("1-2-3", Some(&noted), Some(&timed(begun, Ended::Committed)));
        let names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
        let expected =
            ["COMMIT", "prepare", "verdict", "turn", "local", "everywhere", "propose", "replicate", "certify"];
        assert_eq!(names, expected);
        for span in &spans[1..] {
            let of = |id| spans.iter().find(|other| other.span_context.span_id() == id);
            let parent = of(span.parent_span_id).expect("its parent");
            assert!(span.start_time >= parent.start_time && span.end_time <= parent.end_time, "{}", span.name);
            assert_eq!(span.span_context.trace_id(), spans[0].span_context.trace_id());
        }
        for parts in [&spans[1..6], &spans[6..9]] {
            assert!(parts.windows(2).all(|two| two[0].end_time == two[1].start_time), "a gap between parts");
        }
        assert_eq!((spans[0].start_time, spans[5].end_time), (begun, spans[0].end_time));
        assert_eq!(spans[0].parent_span_id, SpanId::INVALID);
        // The same transaction has the same ids, another one others, also in another cluster.
        let ids = |cluster: &str, txn: &str| {
            let maker = Maker { cluster: cluster.into(), ..maker() };
            maker.spans(txn, Some(&noted), None)[0].span_context.trace_id()
        };
        assert_eq!(ids("c", "1-2-3"), spans[0].span_context.trace_id());
        assert!(ids("c", "1-2-3") != ids("c", "1-2-4") && ids("c", "1-2-3") != ids("b", "1-2-3"));
    }

    #[test]
    fn one_part_alone_makes_a_trace_too() {
        let lost = timed(SystemTime::UNIX_EPOCH, Ended::Conflict { other: LogIndex(5) });
        let spans = maker().spans("1-2-3", None, Some(&lost));
        assert_eq!(spans.len(), 3);
        assert!(matches!(spans[0].status, Status::Error { .. }));
        assert!(spans[0].attributes.contains(&KeyValue::new("onetrip.lost_to_entry", 5)));
        assert_eq!(maker().spans("1-2-3", Some(&noted()), None).len(), 6);
        assert!(maker().spans("1-2-3", None, None).is_empty());
    }
}
