//! The runtime of the keeper's tasks: the caller's tokio runtime, or one on its own thread.

use std::{future::Future, sync::Arc, thread};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{in_order::InOrder, parked::Parked, timer, unsent::Unsent};
use crate::{Error, ErrorKind, Result};

/// The runtime of the keeper's tasks. After the runtime has ended, a spawned task is dropped at once.
#[derive(Debug)]
pub(crate) struct Runtime {
    handle: Handle,
    /// Ends the keeper's own thread.
    stop: CancellationToken,
    /// The withdrawals of this client that are not confirmed yet.
    unsent: Unsent,
    /// The tasks of this client that wait for their first poll.
    in_order: InOrder,
    parked: Arc<Parked>,
}

impl Runtime {
    fn new(handle: Handle, stop: CancellationToken) -> Self {
        let parked = Arc::new(Parked::new(handle.clone()));
        Self { handle, stop, unsent: Unsent::default(), in_order: InOrder::default(), parked }
    }

    /// Returns the runtime of the calling task.
    pub(crate) fn of_caller() -> Result<Self> {
        let handle = Handle::try_current().map_err(|cause| {
            no_runtime("not called from a tokio runtime; use own_thread()").with_source(cause)
        })?;
        Ok(Self::new(handle, CancellationToken::new()))
    }

    /// Starts a runtime on a new thread, which lives until [`stop`](Self::stop): a caller that blocks its own executor
    /// does not stop the renewals.
    pub(crate) async fn on_own_thread() -> Result<Self> {
        // If this future is dropped while the thread starts, the thread ends again.
        let stopped = CancellationToken::new();
        let stop = stopped.clone().drop_guard();
        let (send_handle, handle) = oneshot::channel();
        let body = move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(cause) => return drop(send_handle.send(Err(cause))),
            };
            if send_handle.send(Ok(runtime.handle().clone())).is_ok() {
                runtime.block_on(stopped.cancelled());
            }
        };
        thread::Builder::new()
            .name("lockkit-keeper".into())
            .spawn(body)
            .map_err(|cause| no_runtime("cannot start a thread").with_source(cause))?;
        match handle.await {
            Ok(Ok(handle)) => Ok(Self::new(handle, stop.disarm())),
            Ok(Err(cause)) => Err(no_runtime("cannot start a runtime").with_source(cause)),
            Err(_) => Err(no_runtime("the new thread ended at once")),
        }
    }

    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.handle.spawn(task)
    }

    /// Starts the task that continues those that were polled by their callers, until the client closes.
    pub(crate) fn run_parked(&self, closing: CancellationToken) {
        self.spawn(Arc::clone(&self.parked).run(closing));
    }

    pub(crate) fn unsent(&self) -> &Unsent {
        &self.unsent
    }

    /// Starts a task whose first poll follows those of the tasks that were started before.
    pub(crate) fn start_behind(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.in_order.start(Box::pin(task), &self.parked, &self.unsent);
    }

    /// Polls a task once here, in the context of this runtime, which continues it. Nothing depends on the caller after
    /// that. While requests of earlier calls are not sent yet, the task is started behind them.
    ///
    /// No task is switched if the store answers within the first poll, and otherwise the request is sent without waiting
    /// for a turn of the runtime.
    pub(crate) fn start_here(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.unsent.is_none() && self.in_order.is_idle() {
            self.parked.start(Box::pin(task));
        } else {
            self.start_behind(task);
        }
    }

    /// Waits until this instant by a timer of the calling task's runtime, or of this one if the former has no timers.
    ///
    /// Pending forever if this runtime has ended; the caller's other wait is then completed by its end.
    pub(crate) async fn sleep_until(&self, until: Instant) {
        if let Some(timer) = timer::of_caller(until) {
            return timer.await;
        }
        let timer = AbortOnDropHandle::new(self.spawn(async move { sleep_until(until).await }));
        if timer.await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns how many withdrawals, runners of first polls and parked tasks there are.
    #[cfg(feature = "testing")]
    pub(super) fn residue(&self) -> (usize, usize, usize) {
        let (in_order, parked) = (!self.in_order.is_idle(), self.parked.is_taken());
        (self.unsent.len(), usize::from(in_order), usize::from(parked))
    }

    /// Ends the keeper's own thread; no effect on a caller's runtime.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }
}

fn no_runtime(why: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, "start the keeper").with_message(why)
}
