//! The runtime of the keeper's tasks: the caller's tokio runtime, or one on its own thread.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll, Waker},
    thread,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{timer, unsent::Unsent};
use crate::{Error, ErrorKind, Result};

/// The runtime of the keeper's tasks. After the runtime has ended, a spawned task is dropped at once.
#[derive(Debug)]
pub(crate) struct Runtime {
    handle: Handle,
    /// Ends the keeper's own thread.
    stop: CancellationToken,
    /// What this client has begun and not sent yet.
    unsent: Unsent,
}

impl Runtime {
    /// Returns the runtime of the calling task.
    pub(crate) fn of_caller() -> Result<Self> {
        let handle = Handle::try_current().map_err(|cause| {
            no_runtime("not called from a tokio runtime; use own_thread()").with_source(cause)
        })?;
        Ok(Self { handle, stop: CancellationToken::new(), unsent: Unsent::default() })
    }

    /// A runtime on a new thread, which lives until [`stop`](Self::stop): a caller that blocks its own executor
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
            Ok(Ok(handle)) => Ok(Self { handle, stop: stop.disarm(), unsent: Unsent::default() }),
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

    pub(crate) fn unsent(&self) -> &Unsent {
        &self.unsent
    }

    /// Starts a task behind those whose requests are not sent yet.
    pub(crate) fn start_behind(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn(self.unsent.begin().until_polled(task));
    }

    /// Polls a task once here, in the context of this runtime, and spawns the rest of it. Nothing depends on the caller
    /// after that. While requests of earlier calls are not sent yet, the whole task is spawned behind them.
    ///
    /// No task is switched if the store answers within the first poll, and otherwise the request is sent without waiting
    /// for a turn of the runtime. The first poll has no waker, because the spawned task is always polled again: no waker
    /// of a caller gets to the backend.
    pub(crate) fn start_here(&self, task: impl Future<Output = ()> + Send + 'static) {
        if !self.unsent.is_none() {
            return self.start_behind(task);
        }
        let mut task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
        let entered = self.handle.enter();
        // Timers of a runtime that has ended panic. The task is dropped then, as it is when it is spawned there.
        let polled =
            catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut Context::from_waker(Waker::noop()))));
        drop(entered);
        if matches!(polled, Ok(Poll::Pending)) {
            self.spawn(task);
        }
    }

    /// Waits until this instant by a timer of the calling task's runtime, or of this one if the former has no timers.
    ///
    /// Pending forever if this runtime has ended; its end then completes whatever the caller waits for besides.
    pub(crate) async fn sleep_until(&self, until: Instant) {
        if let Some(timer) = timer::of_caller(until) {
            return timer.await;
        }
        let timer = AbortOnDropHandle::new(self.spawn(async move { sleep_until(until).await }));
        if timer.await.is_err() {
            std::future::pending().await
        }
    }

    /// Ends the keeper's own thread; no effect on a caller's runtime.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }
}

fn no_runtime(why: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, "start the keeper").with_message(why)
}
