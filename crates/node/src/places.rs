//! Places for connections of strangers, so few that they cost little.  When all are taken, one is made free at the cost
//! of the address that has most of them: so whoever opens connections from one address, however fast, does not keep
//! others out.  Of several that have most, the one whose connection is oldest loses it: so whoever comes is let in.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Mutex;
use tokio::task::AbortHandle;

pub struct Places {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    last: u64,
    tasks: VecDeque<Task>,
}

struct Task {
    number: u64,
    from: Option<IpAddr>,
    handle: AbortHandle,
}

impl Places {
    pub fn new(max: usize) -> Places {
        Places { max, taken: Mutex::default() }
    }

    /// Starts a task for a connection, which has a place until it calls [`Places::leave`] with its number.  `Some`: all
    /// places were taken, and the oldest connection from this address, which had most, was closed.
    pub fn admit(&self, from: Option<IpAddr>, start: impl FnOnce(u64) -> AbortHandle) -> Option<Option<IpAddr>> {
        let mut taken = self.taken.lock().expect("no code that holds this lock panics");
        taken.last += 1;
        let number = taken.last;
        taken.tasks.push_back(Task { number, from, handle: start(number) });
        if taken.tasks.len() <= self.max {
            return None;
        }
        let has = |task: &&Task| taken.tasks.iter().filter(|other| other.from == task.from).count();
        // Of several, the one that comes first here: the last in this order.
        let most = taken.tasks.iter().rev().max_by_key(has)?.from;
        let oldest = taken.tasks.iter().position(|task| task.from == most)?;
        taken.tasks.remove(oldest)?.handle.abort();
        Some(most)
    }

    pub fn leave(&self, number: u64) {
        let mut taken = self.taken.lock().expect("no code that holds this lock panics");
        taken.tasks.retain(|task| task.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: however many connections come from one address, those from others keep their places.
    #[tokio::test]
    async fn a_flood_from_one_address_closes_its_own_connections() {
        let places = Places::new(64);
        let start = || tokio::spawn(std::future::pending::<()>());
        let (flood, member) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let waits = start();
        assert_eq!(places.admit(Some(member), |_| waits.abort_handle()), None);
        let mut closed = 0;
        for _ in 0..10 * 64 {
            let task = start();
            if let Some(from) = places.admit(Some(flood), |_| task.abort_handle()) {
                assert_eq!(from, Some(flood));
                closed += 1;
            }
        }
        assert_eq!(closed, 9 * 64 + 1);
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
    }

    /// Goal: nobody is kept out by those who came before, also not if each came from an address of its own.
    #[tokio::test]
    async fn whoever_comes_is_let_in_at_the_cost_of_the_oldest() {
        let places = Places::new(64);
        let address = |last: u8| IpAddr::from([127, 0, 0, last]);
        let mut tasks = Vec::new();
        for last in 2..66 {
            let task = tokio::spawn(std::future::pending::<()>());
            assert_eq!(places.admit(Some(address(last)), |_| task.abort_handle()), None);
            tasks.push(task);
        }
        let comes = tokio::spawn(std::future::pending::<()>());
        assert_eq!(places.admit(Some(address(1)), |_| comes.abort_handle()), Some(Some(address(2))));
        tokio::task::yield_now().await;
        let closed: Vec<usize> = (0..tasks.len()).filter(|n| tasks[*n].is_finished()).collect();
        assert_eq!((closed, comes.is_finished()), (vec![0], false));
    }
}
