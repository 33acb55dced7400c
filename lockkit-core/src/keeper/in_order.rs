//! Tasks whose first polls, which send their requests, are made in the order in which the tasks were started.
//!
//! A runtime with several workers polls two spawned tasks in any order, and one worker polls the newer one first. So
//! one task, the runner, makes all these first polls. What is left of a task is [`parked`](super::parked) or spawned. Failure
//! cases:
//!
//! * The runtime has ended, or ends: the runner is dropped, and with it the tasks that it has not polled.
//! * A task panics: it is dropped, and the runner continues with the next one.

use std::{collections::VecDeque, fmt, sync::Arc};

use tokio::task::{coop::consume_budget, yield_now};

use super::{
    parked::{Parked, Task},
    unsent::Unsent,
};
use crate::sync::{Mutex, lock};

/// The tasks of one client that wait for their first poll.
#[derive(Clone, Debug, Default)]
pub(super) struct InOrder(Arc<Mutex<FirstPolls>>);

#[derive(Default)]
struct FirstPolls {
    /// Oldest first.
    tasks: VecDeque<Task>,
    /// Whether there is a runner; it also counts as one while it makes the last first poll.
    has_runner: bool,
}

impl InOrder {
    /// Returns whether every started task has been polled.
    pub(super) fn is_idle(&self) -> bool {
        !lock(&self.0).has_runner
    }

    /// Starts a task behind those that were started before. Waits for none of them to complete.
    pub(super) fn start(&self, task: Task, parked: &Arc<Parked>, withdrawals: &Unsent) {
        let had_runner = {
            let mut queue = lock(&self.0);
            queue.tasks.push_back(task);
            std::mem::replace(&mut queue.has_runner, true)
        };
        if !had_runner {
            let runner = Runner { queue: self.clone(), is_done: false };
            parked.handle().spawn(runner.run(Arc::clone(parked), withdrawals.clone()));
        }
    }
}

/// Makes the first polls. Created before it is spawned: a task that is spawned after the end of its runtime is dropped
/// without a poll.
struct Runner {
    queue: InOrder,
    is_done: bool,
}

impl Runner {
    async fn run(mut self, parked: Arc<Parked>, withdrawals: Unsent) {
        if !withdrawals.is_none() {
            // The claim tasks that withdraw are woken already, but a worker polls the task first that was woken last.
            // That is this one again after the first turn; after the second, all tasks of its queue were polled.
            yield_now().await;
            yield_now().await;
        }
        while let Some(task) = self.next() {
            consume_budget().await;
            parked.start(task);
        }
    }

    /// Returns the oldest task; if there is none, the runner must end.
    fn next(&mut self) -> Option<Task> {
        let mut queue = lock(&self.queue.0);
        let oldest = queue.tasks.pop_front();
        queue.has_runner = oldest.is_some();
        self.is_done = oldest.is_none();
        oldest
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if !self.is_done {
            let unpolled = {
                let mut queue = lock(&self.queue.0);
                queue.has_runner = false;
                std::mem::take(&mut queue.tasks)
            };
            // Without the mutex: a task that is dropped wakes its callers.
            drop(unpolled);
        }
    }
}

impl fmt::Debug for FirstPolls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirstPolls").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}
