//! A task that its caller has polled, and that waits for its answer without a task of the runtime.
//!
//! The first poll of a task sends its request, which gives the worker's next turn to the task of the connection. A task
//! that is spawned right after it takes that turn, and tokio wakes another worker for the connection. So what is left of
//! the polled task is parked: its waker wakes a task that exists already ([`Parked::run`]), which polls it again when the
//! answer is there. One task of a client is parked at a time: with more requests under way it is better if the connection
//! comes last and sends them together. Failure cases:
//!
//! * The task is woken while it is polled, by another thread or by itself: it is polled again at once.
//! * A waker of an earlier task is late: the parked task is polled once too often.
//! * The store wakes while it is locked: a wake runs nothing and drops nothing.
//! * The runtime ends: what is parked is dropped with the task that would have polled it.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    task::{coop::consume_budget, unconstrained},
};
use tokio_util::sync::CancellationToken;

use crate::sync::{Mutex, lock};

/// A task that was not polled yet, or whose polls were pending.
pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where one task of a client may wait.
pub(super) struct Parked {
    handle: Handle,
    slot: Mutex<ParkingSlot>,
    /// The parked task must be polled.
    woken: Notify,
}

#[derive(Default)]
struct ParkingSlot {
    /// A task is being polled, or parked.
    is_taken: bool,
    /// That task was woken since its last poll began.
    is_woken: bool,
    task: Option<Task>,
    /// Nobody polls what is parked any more.
    has_ended: bool,
}

impl Parked {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle, slot: Mutex::default(), woken: Notify::new() }
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    #[cfg(feature = "testing")]
    pub(super) fn is_taken(&self) -> bool {
        lock(&self.slot).is_taken
    }

    /// Polls a task once here, in the context of the runtime, and lets the runtime continue it.
    ///
    /// No waker of a caller gets to the backend. The poll is not bounded by the budget of the calling task, so that the
    /// request is sent in any case.
    pub(super) fn start(self: &Arc<Self>, task: Task) {
        let is_taken = self.take();
        let waker = if is_taken { Waker::from(Arc::clone(self)) } else { Waker::noop().clone() };
        let rest = self.poll(task, &waker);
        let rest = if is_taken { self.park(rest) } else { rest };
        // Without a waker so far: a spawned task is always polled again.
        if let Some(task) = rest {
            self.handle.spawn(task);
        }
    }

    /// Polls what is parked when it is woken, until the client closes.
    pub(super) async fn run(self: Arc<Self>, closing: CancellationToken) {
        let parked = ParkingEnd(self);
        loop {
            tokio::select! {
                biased;
                () = closing.cancelled() => return,
                () = parked.0.woken.notified() => {}
            }
            consume_budget().await;
            if let Some(task) = parked.0.woken_task()
                && let Some(rest) = parked.0.poll(task, Waker::noop())
            {
                parked.0.handle.spawn(rest);
            }
        }
    }

    /// Returns whether a task may be parked; if so, [`park`](Self::park) must follow.
    fn take(&self) -> bool {
        let mut slot = lock(&self.slot);
        let is_free = !slot.is_taken && !slot.has_ended;
        if is_free {
            *slot = ParkingSlot { is_taken: true, ..ParkingSlot::default() };
        }
        is_free
    }

    /// Parks what is left of a task; returns it if it cannot be parked.
    fn park(&self, rest: Option<Task>) -> Option<Task> {
        let mut slot = lock(&self.slot);
        if rest.is_none() || slot.has_ended {
            slot.is_taken = false;
            return rest;
        }
        slot.task = rest;
        if slot.is_woken {
            self.woken.notify_one();
        }
        None
    }

    /// Returns the parked task if it was woken.
    fn woken_task(&self) -> Option<Task> {
        let mut slot = lock(&self.slot);
        let task = if slot.is_woken { slot.task.take() } else { None };
        slot.is_taken &= task.is_none();
        task
    }

    /// Polls a task, and returns what is left of it.
    fn poll(&self, mut task: Task, waker: &Waker) -> Option<Task> {
        let _entered = self.handle.enter();
        // Timers of a runtime that has ended panic. The task is dropped then, as it is when it is spawned there.
        let polled = catch_unwind(AssertUnwindSafe(|| {
            pin!(unconstrained(task.as_mut())).poll(&mut Context::from_waker(waker))
        }));
        matches!(polled, Ok(Poll::Pending)).then_some(task)
    }
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut slot = lock(&self.slot);
        slot.is_woken = true;
        if slot.task.is_some() {
            self.woken.notify_one();
        }
    }
}

/// Nothing is parked from then on. After the end of the runtime, a task that is spawned is dropped.
struct ParkingEnd(Arc<Parked>);

impl Drop for ParkingEnd {
    fn drop(&mut self) {
        let task = {
            let mut slot = lock(&self.0.slot);
            slot.has_ended = true;
            let task = slot.task.take();
            slot.is_taken &= task.is_none();
            task
        };
        if let Some(task) = task {
            self.0.handle.spawn(task);
        }
    }
}

impl fmt::Debug for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parked").field("is_taken", &lock(&self.slot).is_taken).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    };

    use tokio::{runtime::Builder, task::yield_now};

    use super::*;

    async fn new() -> (Arc<Parked>, CancellationToken) {
        let (parked, closing) = (Arc::new(Parked::new(Handle::current())), CancellationToken::new());
        tokio::spawn(Arc::clone(&parked).run(closing.clone()));
        settle().await;
        (parked, closing)
    }

    async fn settle() {
        for _ in 0..8 {
            yield_now().await;
        }
    }

    fn tasks() -> usize {
        Handle::current().metrics().num_alive_tasks()
    }

    /// A task that waits for an answer, and what its polls did.
    #[derive(Default)]
    struct WaitingTask {
        answer: Notify,
        polls: AtomicUsize,
        /// Of the first poll.
        waker: Mutex<Option<Waker>>,
        is_answered: AtomicBool,
        is_dropped: AtomicBool,
    }

    impl WaitingTask {
        fn task(self: &Arc<Self>) -> Task {
            struct Dropped(Arc<WaitingTask>);
            impl Drop for Dropped {
                fn drop(&mut self) {
                    self.0.is_dropped.store(true, SeqCst);
                }
            }
            let dropped = Dropped(Arc::clone(self));
            Box::pin(async move {
                let waiting = &*dropped.0;
                let mut answer = pin!(waiting.answer.notified());
                poll_fn(|context| {
                    waiting.polls.fetch_add(1, SeqCst);
                    lock(&waiting.waker).get_or_insert_with(|| context.waker().clone());
                    answer.as_mut().poll(context)
                })
                .await;
                waiting.is_answered.store(true, SeqCst);
            })
        }

        fn wake(&self) {
            let waker = lock(&self.waker).clone();
            waker.unwrap().wake();
        }
    }

    #[tokio::test]
    async fn parked_task_is_polled_when_it_is_woken_and_makes_room_for_the_next() {
        let (parked, _closing) = new().await;
        let before = tasks();
        for _ in 0..3 {
            let waiting = Arc::new(WaitingTask::default());
            parked.start(waiting.task());
            settle().await;
            assert_eq!((waiting.polls.load(SeqCst), tasks()), (1, before));
            waiting.answer.notify_one();
            settle().await;
            assert_eq!((waiting.polls.load(SeqCst), tasks()), (2, before));
            assert!(waiting.is_answered.load(SeqCst) && waiting.is_dropped.load(SeqCst));
        }
    }

    #[tokio::test]
    async fn second_task_is_spawned_and_leaves_the_parked_one_alone() {
        let (parked, _closing) = new().await;
        let (before, first, second) =
            (tasks(), Arc::new(WaitingTask::default()), Arc::new(WaitingTask::default()));
        parked.start(first.task());
        parked.start(second.task());
        settle().await;
        assert_eq!((first.polls.load(SeqCst), tasks()), (1, before + 1));
        second.answer.notify_one();
        settle().await;
        assert!(second.is_answered.load(SeqCst) && !first.is_answered.load(SeqCst));
        assert_eq!((first.polls.load(SeqCst), tasks()), (1, before));
        first.answer.notify_one();
        settle().await;
        assert!(first.is_answered.load(SeqCst));
    }

    #[tokio::test]
    async fn task_that_is_woken_while_it_is_polled_is_polled_again() {
        let (parked, _closing) = new().await;
        let polls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&polls);
        parked.start(Box::pin(poll_fn(move |context| match count.fetch_add(1, SeqCst) {
            0 => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })));
        assert_eq!(polls.load(SeqCst), 1, "not within the wake-up");
        settle().await;
        assert_eq!(polls.load(SeqCst), 2);
    }

    #[tokio::test]
    async fn late_waker_of_an_earlier_task_loses_no_later_one() {
        let (parked, _closing) = new().await;
        let (early, later) = (Arc::new(WaitingTask::default()), Arc::new(WaitingTask::default()));
        parked.start(early.task());
        early.answer.notify_one();
        settle().await;
        assert!(early.is_answered.load(SeqCst));
        early.wake();
        parked.start(later.task());
        settle().await;
        assert_eq!(later.polls.load(SeqCst), 1, "a wake-up before it was parked");
        early.wake();
        settle().await;
        assert!(!later.is_dropped.load(SeqCst));
        later.answer.notify_one();
        settle().await;
        assert!(later.is_answered.load(SeqCst));
    }

    #[tokio::test]
    async fn task_that_panics_makes_room() {
        let (parked, _closing) = new().await;
        parked.start(Box::pin(async { panic!("on request") }));
        let (before, waiting) = (tasks(), Arc::new(WaitingTask::default()));
        parked.start(waiting.task());
        assert_eq!(tasks(), before);
        waiting.answer.notify_one();
        settle().await;
        assert!(waiting.is_answered.load(SeqCst));
    }

    #[tokio::test]
    async fn close_continues_what_is_parked_as_a_task() {
        let (parked, closing) = new().await;
        let [waits, later] = [Arc::new(WaitingTask::default()), Arc::new(WaitingTask::default())];
        parked.start(waits.task());
        closing.cancel();
        settle().await;
        parked.start(later.task());
        for waiting in [waits, later] {
            assert!(!waiting.is_dropped.load(SeqCst));
            waiting.answer.notify_one();
            settle().await;
            assert!(waiting.is_answered.load(SeqCst));
        }
    }

    #[test]
    fn end_of_the_runtime_drops_what_is_parked() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let waiting = Arc::new(WaitingTask::default());
        runtime.block_on(async {
            let (parked, _closing) = new().await;
            parked.start(waiting.task());
        });
        assert!(!waiting.is_dropped.load(SeqCst));
        drop(runtime);
        assert!(waiting.is_dropped.load(SeqCst) && !waiting.is_answered.load(SeqCst));
    }
}
