//! Who comes before whom, and the forbidden cycles.
//!
//! Snapshot isolation allows exactly the graphs in which every cycle has two rw edges next to each other.  So each node
//! has two states, depending on whether it was reached by an rw edge, and a second rw edge in a row is not followed.
//! The forbidden cycles are then exactly the cycles of this larger graph, and its strongly connected components are
//! found in linear time.
//!
//! Of transactions under SERIALIZABLE alone, every cycle is forbidden.  There a node has one state only, and what
//! aborted does not count: it may have read what does not fit together.
//!
//! A transaction under REPEATABLE READ or SERIALIZABLE is one node.  Under READ COMMITTED each read is a node with a
//! snapshot of its own, and all appends are one more node that follows them.  To find cycles without rw, all nodes of a
//! transaction are merged into one.

use crate::lists::{reads, Lists, OneList};
use crate::words;
use crate::{ClientOutcome, Findings, History, Key, Kind, Level, Op, Process, Time, Value};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Ww {
        key: Key,
        before: Value,
        after: Value,
    },
    Wr {
        key: Key,
        value: Value,
    },
    Rw {
        key: Key,
        value: Value,
    },
    Session,
    RealTime,
    /// An edge from the place after the last value that was ever read of a list, to the transaction that appended this
    /// value, which nobody read.
    NeverRead(Value),
}

/// One edge of a cycle, between transactions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub from: u32,
    pub to: u32,
    pub why: Why,
}

struct Edge {
    to: u32,
    why: Why,
}

/// The owner of a node that is not a transaction: a moment, or the place after the last value that was ever read of a
/// list.
const NOBODY: u32 = u32::MAX;

#[derive(Default)]
struct Graph {
    edges: Vec<Vec<Edge>>,
    /// The transaction of each node, or `NOBODY`.
    owner: Vec<u32>,
    /// Cycles with two rw edges next to each other count as well.
    rw_follows_rw: bool,
}

impl Graph {
    fn node(&mut self, owner: u32) -> u32 {
        self.edges.push(Vec::new());
        self.owner.push(owner);
        self.owner.len() as u32 - 1
    }

    fn edge(&mut self, from: u32, to: u32, why: Why) {
        if from != to {
            self.edges[from as usize].push(Edge { to, why });
        }
    }
}

pub(crate) fn check(history: &History, lists: &Lists, findings: &mut Findings) {
    let graph = build(history, lists);
    let whole = by_transaction(&graph, history.txns.len());
    report(history, &whole, |why| matches!(why, Why::Ww { .. } | Why::NeverRead(_)), |_| true, findings);
    // A cycle of ww alone has been reported already.
    report(history, &whole, |_| true, |steps| steps.iter().any(|s| !matches!(s.why, Why::Ww { .. })), findings);
    drop(whole);
    report(history, &graph, |_| true, |steps| rw_count(steps) > 0, findings);
    let serializable = of_serializable(history, lists, &graph);
    report(history, &serializable, |_| true, has_rw_pair, findings);
}

/// The nodes of a transaction: the first, the last, and the one that writes.
#[derive(Clone, Copy, Default)]
struct Span {
    first: Option<u32>,
    last: Option<u32>,
    writes: Option<u32>,
}

fn build(history: &History, lists: &Lists) -> Graph {
    let mut graph = Graph::default();
    // The nodes come first, because an edge may point to any of them.
    let mut spans = Vec::with_capacity(history.txns.len());
    let mut readers = Vec::new();
    for (number, txn) in history.txns.iter().enumerate() {
        let number = number as u32;
        let writes = lists.effective[number as usize] && txn.ops.iter().any(|op| matches!(op, Op::Append { .. }));
        let mut span = Span::default();
        let follow = |graph: &mut Graph, span: &mut Span| {
            let node = graph.node(number);
            if let Some(last) = span.last {
                graph.edge(last, node, Why::Session);
            }
            span.first = span.first.or(Some(node));
            span.last = Some(node);
            node
        };
        match txn.level {
            Level::RepeatableRead | Level::Serializable => {
                let node = follow(&mut graph, &mut span);
                span.writes = writes.then_some(node);
                readers.extend(reads(txn).map(|(key, list)| (node, key, list)));
            }
            Level::ReadCommitted => {
                for (key, list) in reads(txn) {
                    readers.push((follow(&mut graph, &mut span), key, list));
                }
                span.writes = writes.then(|| follow(&mut graph, &mut span));
            }
        }
        spans.push(span);
    }
    let after: BTreeMap<Key, u32> = lists
        .keys
        .iter()
        .filter_map(|(key, list)| Some((*key, write_edges(&mut graph, &spans, *key, list)?)))
        .collect();
    for (node, key, list) in readers {
        read_edges(&mut graph, lists, &spans, &after, node, key, list);
    }
    session_edges(history, &mut graph, &spans);
    real_time_edges(history, &mut graph, &spans);
    graph
}

/// Adds the ww edges of a list.  Returns the node for the place after the last value that was ever read, if some value
/// of the list was never read.
fn write_edges(graph: &mut Graph, spans: &[Span], key: Key, list: &OneList) -> Option<u32> {
    let node_of = |value| list.writers.get(value).and_then(|w| spans[w.txn as usize].writes);
    for pair in list.order.windows(2) {
        if let (Some(a), Some(b)) = (node_of(&pair[0]), node_of(&pair[1])) {
            graph.edge(a, b, Why::Ww { key, before: pair[0], after: pair[1] });
        }
    }
    let read: BTreeSet<&Value> = list.order.iter().collect();
    let never: Vec<&Value> = list.writers.keys().filter(|v| !read.contains(v) && node_of(v).is_some()).collect();
    let first = **never.first()?;
    let after = graph.node(NOBODY);
    let last = list.order.last().and_then(|last| Some((last, node_of(last)?)));
    // A transaction of which one append was read and a later one was not does not follow itself.
    if let Some((last, from)) = last.filter(|(_, from)| never.iter().all(|v| node_of(v) != Some(*from))) {
        graph.edge(from, after, Why::Ww { key, before: *last, after: first });
    }
    for value in never {
        graph.edge(after, node_of(value)?, Why::NeverRead(*value));
    }
    Some(after)
}

fn read_edges(
    graph: &mut Graph,
    lists: &Lists,
    spans: &[Span],
    after: &BTreeMap<Key, u32>,
    node: u32,
    key: Key,
    list: &[Value],
) {
    let (known, reader) = (&lists.keys[&key], graph.owner[node as usize]);
    let writer = |value: &Value| known.writers.get(value).map(|w| w.txn);
    if let Some(value) = list.iter().rev().find(|v| writer(v) != Some(reader)) {
        if let Some(from) = writer(value).and_then(|w| spans[w as usize].writes) {
            graph.edge(from, node, Why::Wr { key, value: *value });
        }
    }
    let seen = lists.seen_by(reader, key, list);
    // If the reader's own append is the last, what comes next follows that append (ww), not the read.
    let ends_with_own = seen.last().is_some_and(|v| writer(v) == Some(reader));
    if ends_with_own || !known.order.starts_with(seen) {
        return;
    }
    match (known.order.get(seen.len()), after.get(&key)) {
        (Some(value), _) => {
            if let Some(to) = writer(value).filter(|w| *w != reader).and_then(|w| spans[w as usize].writes) {
                graph.edge(node, to, Why::Rw { key, value: *value });
            }
        }
        // The edge that leads on from that place says which value it is.
        (None, Some(after)) => graph.edge(node, *after, Why::Rw { key, value: Value(0) }),
        (None, None) => {}
    }
}

/// Adds edges because a process must see what it saw before, and what was acknowledged to it.
fn session_edges(history: &History, graph: &mut Graph, spans: &[Span]) {
    let mut last = BTreeMap::<Process, u32>::new();
    for (txn, span) in history.txns.iter().zip(spans) {
        let (Some(first), Some(end)) = (span.first, span.last) else { continue };
        if let Some(before) = last.get(&txn.process) {
            graph.edge(*before, first, Why::Session);
        }
        if matches!(txn.outcome, ClientOutcome::Committed | ClientOutcome::Aborted) {
            last.insert(txn.process, end);
        }
    }
}

/// Adds a chain of moments, one for each fresh transaction, in the order in which these began.  A transaction points to
/// the first moment after its acknowledgement.  So the number of edges is linear.
fn real_time_edges(history: &History, graph: &mut Graph, spans: &[Span]) {
    let fresh = |number: &usize| history.txns[*number].fresh && !history.rest.contains(&(*number as u32));
    let mut order: Vec<usize> = (0..history.txns.len()).filter(fresh).collect();
    order.sort_by_key(|number| history.txns[*number].invoked);
    let mut moments: Vec<(Time, u32)> = Vec::with_capacity(order.len());
    for number in order {
        let moment = graph.node(NOBODY);
        if let Some((_, before)) = moments.last() {
            graph.edge(*before, moment, Why::RealTime);
        }
        if let Some(first) = spans[number].first {
            graph.edge(moment, first, Why::RealTime);
        }
        moments.push((history.txns[number].invoked, moment));
    }
    for (txn, span) in history.txns.iter().zip(spans) {
        let next = moments.partition_point(|(time, _)| *time <= txn.completed);
        let acknowledged = matches!(txn.outcome, ClientOutcome::Committed | ClientOutcome::FoundCommitted);
        if let (true, Some(last), Some((_, moment))) = (acknowledged, span.last, moments.get(next)) {
            graph.edge(last, *moment, Why::RealTime);
        }
    }
}

/// The graph with one node for each transaction, without the edges for rw and real time.
fn by_transaction(graph: &Graph, txns: usize) -> Graph {
    let mut whole = Graph::default();
    (0..txns as u32).for_each(|owner| {
        whole.node(owner);
    });
    let nobody = |whole: &mut Graph, owner: u32| if owner == NOBODY { whole.node(NOBODY) } else { owner };
    let place: Vec<u32> = graph.owner.iter().map(|owner| nobody(&mut whole, *owner)).collect();
    for (from, edges) in graph.edges.iter().enumerate() {
        for edge in edges.iter().filter(|e| !matches!(e.why, Why::Rw { .. } | Why::RealTime)) {
            whole.edge(place[from], place[edge.to as usize], edge.why);
        }
    }
    whole
}

/// The graph without the transactions that are not serializable or did not take place.
fn of_serializable(history: &History, lists: &Lists, graph: &Graph) -> Graph {
    let counts = |node: u32| match graph.owner[node as usize] {
        NOBODY => true,
        owner => {
            let txn = &history.txns[owner as usize];
            let committed = matches!(txn.outcome, ClientOutcome::Committed | ClientOutcome::FoundCommitted);
            txn.level == Level::Serializable && (committed || lists.effective[owner as usize])
        }
    };
    let mut some = Graph { rw_follows_rw: true, ..Graph::default() };
    for (from, edges) in (0..).zip(&graph.edges) {
        some.node(graph.owner[from as usize]);
        for edge in edges.iter().filter(|edge| counts(from) && counts(edge.to)) {
            some.edge(from, edge.to, edge.why);
        }
    }
    some
}

/// Two rw next to each other: snapshot isolation allows it.
fn has_rw_pair(steps: &[Step]) -> bool {
    let is_rw = |at: usize| matches!(steps[at % steps.len()].why, Why::Rw { .. });
    (0..steps.len()).any(|at| is_rw(at) && is_rw(at + 1))
}

fn report(
    history: &History,
    graph: &Graph,
    takes: impl Fn(&Why) -> bool,
    counts: impl Fn(&[Step]) -> bool,
    findings: &mut Findings,
) {
    for component in components(graph, &takes) {
        let steps = shortest_circle(graph, &takes, &component);
        if counts(&steps) {
            findings.add(classify(&steps), || words::circle(history, &steps));
        }
    }
}

fn rw_count(steps: &[Step]) -> usize {
    steps.iter().filter(|s| matches!(s.why, Why::Rw { .. })).count()
}

fn classify(steps: &[Step]) -> Kind {
    let is_rw = |s: &Step| matches!(s.why, Why::Rw { .. });
    if steps.len() > 1 && has_rw_pair(steps) {
        return Kind::G2;
    }
    if steps.iter().any(|s| s.why == Why::RealTime) {
        return Kind::StaleRead;
    }
    match rw_count(steps) {
        0 if steps.iter().all(|s| matches!(s.why, Why::Ww { .. })) => Kind::G0,
        0 => Kind::G1c,
        1 => {
            let at = steps.iter().position(is_rw).unwrap_or(0);
            let before = &steps[(at + steps.len() - 1) % steps.len()];
            match (steps[at].why, before.why) {
                (Why::Rw { key, .. }, Why::Ww { key: k, .. }) if k == key => Kind::LostUpdate,
                _ => Kind::GSingle,
            }
        }
        // Two writers and two readers, no matter how many statements these have.
        2 if words::transactions(steps).len() == 4 && steps.iter().filter(|s| s.from != s.to).count() == 4 => {
            Kind::LongFork
        }
        _ => Kind::GSIb,
    }
}

/// A node, and in the lowest bit whether it was reached by an rw edge.
type State = u32;

fn next_state(graph: &Graph, state: State, edge: &Edge) -> Option<State> {
    match (edge.why, state & 1) {
        _ if graph.rw_follows_rw => Some(edge.to << 1),
        (Why::NeverRead(_), was_rw) => Some(edge.to << 1 | was_rw),
        (Why::Rw { .. }, 0) => Some(edge.to << 1 | 1),
        (Why::Rw { .. }, _) => None,
        _ => Some(edge.to << 1),
    }
}

/// The strongly connected components of more than one state (Tarjan's algorithm, without recursion).
fn components(graph: &Graph, takes: &impl Fn(&Why) -> bool) -> Vec<Vec<State>> {
    const NEW: u32 = u32::MAX;
    let states = graph.edges.len() * 2;
    let (mut index, mut low) = (vec![NEW; states], vec![0; states]);
    let mut on_stack = vec![false; states];
    let (mut stack, mut path, mut found) = (Vec::new(), Vec::<(State, usize)>::new(), Vec::new());
    let mut count = 0;
    for root in 0..states as State {
        if index[root as usize] != NEW {
            continue;
        }
        path.push((root, 0));
        while let Some((state, place)) = path.last_mut() {
            let s = *state as usize;
            if *place == 0 && index[s] == NEW {
                (index[s], low[s], on_stack[s]) = (count, count, true);
                count += 1;
                stack.push(*state);
            }
            let edges = &graph.edges[s >> 1];
            let mut down = None;
            while let Some(edge) = edges.get(*place) {
                *place += 1;
                let Some(to) = next_state(graph, *state, edge).filter(|_| takes(&edge.why)) else { continue };
                if index[to as usize] == NEW {
                    down = Some(to);
                    break;
                }
                if on_stack[to as usize] {
                    low[s] = low[s].min(index[to as usize]);
                }
            }
            if let Some(to) = down {
                path.push((to, 0));
                continue;
            }
            if low[s] == index[s] {
                let at = stack.iter().rposition(|x| *x as usize == s).expect("it was pushed when it was new");
                let component = stack.split_off(at);
                component.iter().for_each(|x| on_stack[*x as usize] = false);
                if component.len() > 1 {
                    found.push(component);
                }
            }
            path.pop();
            if let Some((above, _)) = path.last() {
                low[*above as usize] = low[*above as usize].min(low[s]);
            }
        }
    }
    found
}

/// The shortest of the cycles through the component's first states.
fn shortest_circle(graph: &Graph, takes: &impl Fn(&Why) -> bool, component: &[State]) -> Vec<Step> {
    const STARTS_MAX: usize = 32;
    let inside: BTreeSet<State> = component.iter().copied().collect();
    let mut best: Vec<Step> = Vec::new();
    for start in component.iter().take(STARTS_MAX) {
        let steps = circle_through(graph, takes, &inside, *start);
        if best.is_empty() || (!steps.is_empty() && steps.len() < best.len()) {
            best = steps;
        }
    }
    best
}

fn circle_through(graph: &Graph, takes: &impl Fn(&Why) -> bool, inside: &BTreeSet<State>, start: State) -> Vec<Step> {
    let mut came = BTreeMap::<State, (State, Why)>::new();
    let mut queue = VecDeque::from([start]);
    while let Some(state) = queue.pop_front() {
        for edge in graph.edges[(state >> 1) as usize].iter().filter(|e| takes(&e.why)) {
            let Some(to) = next_state(graph, state, edge).filter(|to| inside.contains(to)) else { continue };
            if came.contains_key(&to) {
                continue;
            }
            came.insert(to, (state, edge.why));
            if to == start {
                return steps_back(graph, &came, start);
            }
            queue.push_back(to);
        }
    }
    Vec::new()
}

fn steps_back(graph: &Graph, came: &BTreeMap<State, (State, Why)>, start: State) -> Vec<Step> {
    let owner = |state: State| graph.owner[(state >> 1) as usize];
    let (mut steps, mut state) = (Vec::new(), start);
    loop {
        let (from, why) = came[&state];
        steps.push(Step { from: owner(from), to: owner(state), why });
        state = from;
        if state == start {
            break;
        }
    }
    steps.reverse();
    // A step to a node that is not a transaction is joined with the step that leads on from there.
    let first = steps.iter().position(|s| s.from != NOBODY).unwrap_or(0);
    steps.rotate_left(first);
    let mut told: Vec<Step> = Vec::new();
    for step in steps {
        match told.last_mut() {
            Some(last) if last.to == NOBODY => {
                last.to = step.to;
                if let (Why::Rw { value, .. } | Why::Ww { after: value, .. }, Why::NeverRead(v)) =
                    (&mut last.why, step.why)
                {
                    *value = v;
                }
            }
            _ => told.push(step),
        }
    }
    told
}
