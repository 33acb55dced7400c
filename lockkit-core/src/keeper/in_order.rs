//! Tasks whose first polls, which send their requests, are made in the order in which the tasks were started.
//!
//! A runtime with several workers polls two spawned tasks in any order, and one worker polls the newer one first. So
//! one task, the runner, makes all these first polls. It spawns what is left of a task, except of the last one, which it
//! becomes itself: a spawned task takes the worker's next turn from the task of the connection, which the request has
//! just woken, and another worker is woken for that one. Failure cases:
//!
//! * The runtime has ended, or ends: the runner is dropped, and with it the tasks that it has not polled.
//! * A task panics in its first poll: it is dropped, and the runner continues with the next one.
//! * A task is started while the runner polls what seemed to be the last one: another runner is spawned after that poll.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::{
    runtime::Handle,
    task::{coop::consume_budget, unconstrained, yield_now},
};

use super::unsent::Unsent;
use crate::sync::{Mutex, lock};

/// A task that was not polled yet, or whose first poll was pending.
pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The tasks of one client that wait for their first poll.
#[derive(Clone, Debug, Default)]
pub(super) struct InOrder(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
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
    pub(super) fn start(&self, task: Task, handle: &Handle, withdrawals: &Unsent) {
        let had_runner = {
            let mut queue = lock(&self.0);
            queue.tasks.push_back(task);
            std::mem::replace(&mut queue.has_runner, true)
        };
        if !had_runner {
            Runner::spawn(self.clone(), handle, withdrawals);
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
    fn spawn(queue: InOrder, handle: &Handle, withdrawals: &Unsent) {
        let runner = Self { queue, is_done: false };
        handle.spawn(runner.run(handle.clone(), withdrawals.clone()));
    }

    async fn run(mut self, handle: Handle, withdrawals: Unsent) {
        if !withdrawals.is_none() {
            // The claim tasks that withdraw are woken already, but a worker polls the task first that was woken last.
            // That is this one again after the first turn; after the second, all tasks of its queue were polled.
            yield_now().await;
            yield_now().await;
        }
        while let Some((mut task, is_last)) = self.next() {
            consume_budget().await;
            if !is_last {
                start_here(task, &handle);
            } else if poll_fn(|context| Poll::Ready(is_pending(&mut task, context))).await {
                self.leave(&handle, &withdrawals);
                return rest_of(task).await;
            }
        }
    }

    /// Returns the oldest task, and whether it is the only one; if there is none, the runner must end.
    fn next(&mut self) -> Option<(Task, bool)> {
        let mut queue = lock(&self.queue.0);
        let oldest = queue.tasks.pop_front();
        queue.has_runner = oldest.is_some();
        self.is_done = oldest.is_none();
        oldest.map(|task| (task, queue.tasks.is_empty()))
    }

    /// Leaves the tasks that were started in the meantime to another runner.
    fn leave(mut self, handle: &Handle, withdrawals: &Unsent) {
        self.is_done = true;
        let has_tasks = {
            let mut queue = lock(&self.queue.0);
            queue.has_runner = !queue.tasks.is_empty();
            queue.has_runner
        };
        if has_tasks {
            Self::spawn(self.queue.clone(), handle, withdrawals);
        }
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

/// Polls a task once here, in the context of this runtime, and spawns the rest of it.
///
/// The first poll has no waker, because the spawned task is always polled again: no waker of a caller gets to the
/// backend.
pub(super) fn start_here(mut task: Task, handle: &Handle) {
    let entered = handle.enter();
    let is_pending = is_pending(&mut task, &mut Context::from_waker(Waker::noop()));
    drop(entered);
    if is_pending {
        handle.spawn(task);
    }
}

/// Continues a task that was just polled with the waker of this one: its next poll is that of a wake-up.
async fn rest_of(mut task: Task) {
    let mut is_fresh = true;
    poll_fn(|context| match std::mem::take(&mut is_fresh) {
        true => Poll::Pending,
        false => task.as_mut().poll(context),
    })
    .await;
}

/// Polls a task, and returns whether it must be polled again. Not bounded by the budget of the calling task, so that its
/// request is sent in any case.
fn is_pending(task: &mut Task, context: &mut Context<'_>) -> bool {
    // Timers of a runtime that has ended panic. The task is dropped then, as it is when it is spawned there.
    let polled = catch_unwind(AssertUnwindSafe(|| pin!(unconstrained(task.as_mut())).poll(context)));
    matches!(polled, Ok(Poll::Pending))
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}
