//! Appends to several members of one region, over real sockets: node 1 leads in its own region, nodes 2 to 4 are in
//! another one.

use super::*;
use onetrip_core::replica::Report;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

const BYTES: usize = 100_000;
const FAR: [u32; 3] = [2, 3, 4];

struct Group {
    pair: Pair,
    delays: Option<std::thread::JoinHandle<()>>,
}

impl Group {
    /// Connected, at this round trip from node 1, and known to be near each other.
    async fn start(tls: bool, round_trip_ms: u64) -> Group {
        let pair = group(tls, "", &["near", "far", "far", "far"], &[None, None, None, None]).await;
        until("all connections", || {
            pair.sides.iter().all(|s| s.transport.peers().iter().filter(|p| p.connected).count() == 3)
        })
        .await;
        let group = Group { delays: pair.sides[0].transport.start_delays().unwrap(), pair };
        for to in FAR {
            group.set_link(1, to, LinkSettings { one_way_ms: round_trip_ms as f64, ..Default::default() });
        }
        let one = &group.side(1).transport;
        until("round trips over this distance", || {
            group.report();
            let least = Duration::from_millis(round_trip_ms);
            let far = |id: &u32| one.way(NodeId(*id)).is_some_and(|way| way.least >= least);
            FAR.iter().all(far)
        })
        .await;
        group
    }

    fn side(&self, id: u32) -> &Side {
        &self.pair.sides[id as usize - 1]
    }

    fn set_link(&self, from: u32, to: u32, settings: LinkSettings) {
        assert!(self.side(from).transport.set_link(NodeId(to), settings));
    }

    /// Each says how near the others of its region are.
    fn report(&self) {
        for id in FAR {
            let round_trips = FAR.map(|to| (NodeId(to), 100)).to_vec();
            self.side(id).transport.send_report(None, &Report { shown: None, round_trips }, Vec::new());
        }
    }

    /// Sends the append that follows `index` to all, each with a commit index of its own.
    fn send(&self, index: u64) {
        for to in FAR {
            let commit = u64::from(to);
            assert!(self.side(1).transport.send_raft(Message { commit, ..append(1, to, index, BYTES) }));
        }
    }

    /// Takes what has come to `id`, and acknowledges it.
    fn receive(&self, id: u32, got: &mut BTreeSet<u64>) {
        for event in self.side(id).events.try_iter() {
            let Event::Peer(from, PeerEvent::Raft(message)) = event else { continue };
            let commit = u64::from(id);
            let sent = Message { commit, ..append(1, id, message.index, BYTES) };
            assert!(from == NodeId(1) && *message == sent, "{id} got another message");
            got.insert(message.index);
            let mut answer =
                Message { from: id.into(), to: 1, term: 1, index: message.index + 1, ..Default::default() };
            answer.set_msg_type(MessageType::MsgAppendResponse);
            self.side(id).transport.send_raft(answer);
        }
    }

    async fn all_receive(&self, upto: u64, got: &mut [BTreeSet<u64>; 3]) {
        until("all appends", || {
            FAR.iter().zip(&mut *got).for_each(|(id, got)| self.receive(*id, got));
            got.iter().all(|got| got.len() as u64 >= upto)
        })
        .await;
        let one = &self.side(1).transport;
        until("all acknowledgements", || {
            self.side(1).events.try_iter().for_each(drop);
            one.relaying().relays.next_late().is_none()
        })
        .await;
    }

    fn counted(&self, from: u32, what: impl Fn(&Link) -> &AtomicU64) -> u64 {
        let links = self.side(from).transport.links();
        links.iter().filter(|l| l.region.as_str() == "far").map(|l| what(l).load(Ordering::Relaxed)).sum()
    }

    /// The relay of the region now.
    async fn relay(&self) -> u32 {
        let mut relays = Vec::new();
        until("a relay", || {
            self.report();
            let ways = |id| self.side(1).transport.way(id);
            let probe = append(1, 2, 0, 0);
            relays.extend(self.side(1).transport.relaying().relays.route(&probe, Instant::now(), ways).relay);
            !relays.is_empty()
        })
        .await;
        relays[0].0
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.side(1).transport.stop_delays();
        if let Some(delays) = self.delays.take() {
            let _ = delays.join();
        }
    }
}

/// Every follower gets the very message that was meant for it, and the entries cross once.
#[tokio::test]
async fn entries_cross_to_a_region_once() {
    for tls in [false, true] {
        // So far that a busy machine is not taken for a late member.
        let group = Group::start(tls, 1_000).await;
        let mut got = Default::default();
        // Nobody is a relay before it has been sent something in this term.
        group.send(0);
        group.all_receive(1, &mut got).await;
        let before = group.counted(1, |link| &link.sent_bytes);
        for index in 1..=20 {
            group.report();
            group.send(index);
        }
        group.all_receive(21, &mut got).await;
        let crossed = group.counted(1, |link| &link.sent_bytes) - before;
        let relayed: u64 = FAR.iter().map(|id| group.counted(*id, |link| &link.relayed_bytes)).sum();
        let entries = 20 * BYTES as u64;
        // Without a relay it is three times as much.
        assert!(crossed < entries * 11 / 10, "{crossed} bytes for {entries}, tls {tls}");
        assert!(relayed > entries * 2, "{relayed} bytes were handed on, tls {tls}");
        let one = group.side(1);
        assert!(!one.transport.relaying().last.is_empty());
        let mut members = NodeConfig::load(&one.folder).unwrap().bootstrap_members();
        members.members.retain(|member| member.id == NodeId(1));
        one.transport.set_members(&members);
        assert!(one.transport.relaying().last.is_empty(), "of members that are gone");
    }
}

/// Nothing that the relay sends to the others of its region arrives.  They are served all the same, and soon without
/// it.
#[tokio::test]
async fn a_relay_that_hands_nothing_on_is_done_without() {
    let group = Group::start(true, 20).await;
    let mut got = Default::default();
    group.send(0);
    group.all_receive(1, &mut got).await;
    let relay = group.relay().await;
    for other in FAR.into_iter().filter(|id| *id != relay) {
        group.set_link(relay, other, LinkSettings { cut: true, ..Default::default() });
    }
    let sent = |group: &Group| group.counted(relay, |link| &link.relayed_bytes);
    let before = sent(&group);
    for index in 1..=30 {
        group.send(index);
        group.all_receive(index + 1, &mut got).await;
    }
    // It can only have been tried as often as its followers were left alone in between.
    let in_vain = (sent(&group) - before) / (2 * BYTES as u64);
    assert!(in_vain < 15, "{in_vain} of 30 appends waited for it");
}

/// Goal: a node takes no append for another sender's than the one that has made it.  Method: node 2 sends node 3 what
/// a relay may send, and what it may not.
#[tokio::test]
async fn only_its_sender_can_make_an_append() {
    let group = Group::start(true, 20).await;
    let (one, two, three) = (&group.side(1).transport, &group.side(2).transport, group.side(3));
    let relayed = |key: &Secret, index: u64, entries: &Entries| {
        let mut head = append(1, 3, index, 10);
        let _ = Entries::take(&mut head, None);
        Relayed::new(key, &head, entries, false)
    };
    let entries = |index| Entries::take(&mut append(1, 3, index, 10), None).0;
    let send = |relayed: Relayed| {
        let link = two.link(NodeId(3)).unwrap();
        assert!(two.send_to(&link, Channel::Bulk, Frame::Relayed(relayed).encode()));
    };
    let key = one.relay_keys.to(NodeId(3));
    // Made by the relay, with the key that node 1 has given to it, or that it has given to node 3 itself.
    send(relayed(&one.relay_keys.to(NodeId(2)), 1, &entries(1)));
    send(relayed(&two.relay_keys.to(NodeId(3)), 2, &entries(2)));
    // One append's head with another's entries.
    let mut mixed = relayed(&key, 3, &entries(3));
    mixed.entries = Some(entries(4).bytes);
    send(mixed);
    // Entries of a frame that was lost.
    let mut head = append(1, 3, 5, 10);
    let of_five = Entries::take(&mut head, None).0;
    send(Relayed::new(&key, &head, &of_five, true));
    send(relayed(&key, 6, &entries(6)));
    // Those of the frame before, which it has.
    let mut head = Message { commit: 6, ..append(1, 3, 6, 10) };
    let of_six = Entries::take(&mut head, None).0;
    send(Relayed::new(&key, &head, &of_six, true));
    let mut all = Vec::new();
    until("the two that node 1 has made", || {
        all.extend(received(three));
        all.len() >= 2
    })
    .await;
    assert_eq!(all, [6, 6]);
    assert!(three.transport.link(NodeId(2)).unwrap().is_connected());

    // A relay hands on what its sender itself gave it, and appends only.
    let (log, _guard) = Log::start();
    let mut head = append(1, 4, 7, 10);
    let of_seven = Entries::take(&mut head, None).0;
    send(Relayed::new(&key, &head, &of_seven, false));
    until("the end of that connection", || log.text().contains("a message from 1 to 4")).await;
    until("a new one", || two.link(NodeId(3)).unwrap().is_connected()).await;
    let mut vote = Message { from: 2, to: 4, term: 9, ..Default::default() };
    vote.set_msg_type(MessageType::MsgRequestVote);
    until("the end of that one too", || {
        let link = two.link(NodeId(3)).unwrap();
        let nothing = Entries::take(&mut Message::default(), None).0;
        two.send_to(&link, Channel::Bulk, Frame::Relayed(Relayed::new(&key, &vote, &nothing, false)).encode());
        log.text().contains("malformed relayed append: MsgRequestVote")
    })
    .await;
}
