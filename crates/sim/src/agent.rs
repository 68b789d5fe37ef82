//! What goes between a node and its PostgreSQL: values on the way to the node, and the real frames of
//! `docs/agent-protocol.md` on the way back.  The node's router writes those frames into a [`Wire`].

use bytes::{Bytes, BytesMut};
use onetrip_core::agent::{take_frame, Hello, ToPostgres};
use onetrip_core::router::{AgentEvent, Outbox, Read};
use onetrip_core::row_locks::LockAsk;
use onetrip_core::{LogIndex, TxnId};
use std::sync::{Arc, Mutex};

/// A connection's number, which is never used twice in a run.
pub use onetrip_core::router::ConnId;

#[derive(Clone, Debug)]
pub enum ToNode {
    Hello { conn: ConnId, hello: Hello },
    Propose { conn: ConnId, txn: TxnId, raw: Bytes },
    Outcome { conn: ConnId, txn: TxnId },
    Settle { conn: ConnId, txn: TxnId },
    Read { conn: ConnId, number: u64, may_ask: bool },
    Await { conn: ConnId, at: LogIndex },
    Lock { conn: ConnId, ask: LockAsk },
    Unlock { conn: ConnId, txn: TxnId, from: u64 },
    Position { conn: ConnId, applied: LogIndex, durable: LogIndex },
    Done { conn: ConnId, txn: TxnId },
    Stuck { conn: ConnId, at: LogIndex },
    More { conn: ConnId, txn: Option<TxnId>, from: u64 },
    Written { conn: ConnId, txn: TxnId, kept: bool },
    Closed { conn: ConnId },
}

/// A whole frame, or the end of the connection.
pub struct FromNode {
    pub conn: ConnId,
    pub frame: Option<Bytes>,
}

/// What the router has said, in order.  The node sends it on.
pub type Said = Arc<Mutex<Vec<FromNode>>>;

pub struct Wire {
    conn: ConnId,
    said: Said,
}

impl Outbox for Wire {
    fn send<const N: usize>(&self, frame: [Bytes; N]) -> bool {
        let mut whole = BytesMut::new();
        frame.iter().for_each(|part| whole.extend_from_slice(part));
        self.say(Some(whole.freeze()))
    }

    fn feed_bytes_max(&self) -> usize {
        64 << 20
    }

    fn close(&self) {
        self.say(None);
    }
}

impl Wire {
    fn say(&self, frame: Option<Bytes>) -> bool {
        self.said.lock().expect("one thread").push(FromNode { conn: self.conn, frame });
        true
    }
}

impl FromNode {
    /// `None`: the connection is closed.
    pub fn decode(&self) -> Option<ToPostgres> {
        let frame = take_frame(&mut BytesMut::from(&self.frame.as_ref()?[..]));
        let frame = frame.expect("the router writes good frames").expect("whole ones");
        Some(ToPostgres::decode(frame).expect("the router writes good frames"))
    }
}

impl ToNode {
    pub fn conn(&self) -> ConnId {
        match self {
            ToNode::Hello { conn, .. } | ToNode::Propose { conn, .. } | ToNode::Outcome { conn, .. } => *conn,
            ToNode::Settle { conn, .. } | ToNode::Position { conn, .. } | ToNode::Done { conn, .. } => *conn,
            ToNode::Read { conn, .. } | ToNode::Await { conn, .. } => *conn,
            ToNode::Lock { conn, .. } | ToNode::Unlock { conn, .. } => *conn,
            ToNode::More { conn, .. } | ToNode::Written { conn, .. } => *conn,
            ToNode::Stuck { conn, .. } | ToNode::Closed { conn } => *conn,
        }
    }

    pub fn for_router(self, said: &Said) -> AgentEvent<Wire> {
        match self {
            ToNode::Hello { conn, hello } => {
                AgentEvent::Opened { conn, hello, outbox: Arc::new(Wire { conn, said: said.clone() }) }
            }
            ToNode::Propose { conn, txn, raw } => AgentEvent::Propose { conn, txn, raw, permit: None },
            ToNode::Outcome { conn, txn } => AgentEvent::Outcome { conn, txn },
            ToNode::Read { conn, number, may_ask } => AgentEvent::Read(Read { conn, number, may_ask }),
            ToNode::Await { conn, at } => AgentEvent::Await { conn, at },
            ToNode::Lock { conn, ask } => AgentEvent::Lock { conn, ask, table: String::new() },
            ToNode::Unlock { conn, txn, from } => AgentEvent::Unlock { conn, txn, from },
            ToNode::Settle { conn, txn } => AgentEvent::Settle { conn, txn },
            ToNode::Position { conn, applied, durable } => AgentEvent::Position { conn, applied, durable },
            ToNode::Done { conn, txn } => AgentEvent::Done { conn, txn },
            ToNode::Stuck { conn, at } => AgentEvent::Stuck { conn, at, message: "it cannot".into() },
            ToNode::More { conn, txn, from } => AgentEvent::More { conn, txn, from },
            ToNode::Written { conn, txn, kept } => AgentEvent::Written { conn, txn, kept },
            ToNode::Closed { conn } => AgentEvent::Closed { conn },
        }
    }
}
