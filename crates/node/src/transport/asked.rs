//! Questions that this node has put to several peers at once, and whose answers it still waits for.

use super::link::Link;
use onetrip_core::NodeId;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How often the asking node checks that the peers it waits for are still connected.
pub(super) const LOOK: Duration = Duration::from_millis(50);

pub(super) struct Asked<A>(Mutex<Waiting<A>>);

struct Waiting<A> {
    last: u64,
    answers: HashMap<u64, mpsc::UnboundedSender<(NodeId, A)>>,
}

impl<A> Default for Asked<A> {
    fn default() -> Self {
        Asked(Mutex::new(Waiting { last: 0, answers: HashMap::new() }))
    }
}

impl<A> Asked<A> {
    fn lock(&self) -> MutexGuard<'_, Waiting<A>> {
        self.0.lock().expect("no code that holds this lock panics")
    }

    /// A new question.  It ends when it is dropped.
    pub fn begin(&self) -> Question<'_, A> {
        let (sender, answers) = mpsc::unbounded_channel();
        let mut waiting = self.lock();
        waiting.last += 1;
        let id = waiting.last;
        waiting.answers.insert(id, sender);
        Question { id, asked: self, answers, left: BTreeMap::new() }
    }

    /// An answer that nobody waits for any more is dropped.
    pub fn answered(&self, id: u64, from: NodeId, answer: A) {
        if let Some(sender) = self.lock().answers.get(&id) {
            let _ = sender.send((from, answer));
        }
    }
}

/// One question, and whom it was put to.
pub(super) struct Question<'a, A> {
    pub id: u64,
    asked: &'a Asked<A>,
    answers: mpsc::UnboundedReceiver<(NodeId, A)>,
    left: BTreeMap<NodeId, Arc<Link>>,
}

impl<A> Question<'_, A> {
    /// The question was sent to this peer.
    pub fn was_put_to(&mut self, link: Arc<Link>) {
        self.left.insert(link.id, link);
    }

    /// The next peer with its answer, or without one if its connection broke or the time is up.  `None`: nobody is
    /// left.
    pub async fn next(&mut self, deadline: Instant) -> Option<(Arc<Link>, Option<A>)> {
        while !self.left.is_empty() {
            let look = deadline.min(Instant::now() + LOOK);
            match tokio::time::timeout_at(look, self.answers.recv()).await {
                Ok(answer) => {
                    // The sender lives as long as this.
                    let (from, answer) = answer?;
                    if let Some(link) = self.left.remove(&from) {
                        return Some((link, Some(answer)));
                    }
                }
                Err(_) => {
                    let late = Instant::now() >= deadline;
                    let silent = self.left.iter().find(|(_, link)| late || !link.is_connected()).map(|(id, _)| *id);
                    if let Some(link) = silent.and_then(|id| self.left.remove(&id)) {
                        return Some((link, None));
                    }
                }
            }
        }
        None
    }
}

impl<A> Drop for Question<'_, A> {
    fn drop(&mut self) {
        self.asked.lock().answers.remove(&self.id);
    }
}
