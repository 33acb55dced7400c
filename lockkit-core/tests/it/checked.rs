//! What counts what is left of the clients of a test: every table is empty, and no task uses the keeper any more.
//!
//! * `#[tokio::test(crate = "crate::checked")]`, [`Builder`] and [`on_paused_clock`]: a runtime that counts at the end of
//!   each `block_on`.
//! * [`Counted`]: for a test with runtimes of its own, or with clients on threads of their own.
#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    reason = "for tests only; each program uses some of it"
)]

use std::time::{Duration, Instant};

use lockkit_core::WatchedClients;
pub(crate) use tokio::pin;

use crate::common::{HANG, settle};

/// Time for the clients to close, on a paused clock.
const CLOSE: Duration = Duration::from_secs(600);

pub(crate) mod runtime {
    pub(crate) use super::Builder;
}

/// The builder of a runtime that checks what is left of the clients of a test.
pub(crate) struct Builder(tokio::runtime::Builder);

impl Builder {
    pub(crate) fn new_current_thread() -> Self {
        Self(tokio::runtime::Builder::new_current_thread())
    }

    pub(crate) fn new_multi_thread() -> Self {
        Self(tokio::runtime::Builder::new_multi_thread())
    }

    pub(crate) fn worker_threads(mut self, number: usize) -> Self {
        self.0.worker_threads(number);
        self
    }

    pub(crate) fn start_paused(mut self, paused: bool) -> Self {
        self.0.start_paused(paused);
        self
    }

    pub(crate) fn enable_all(mut self) -> Self {
        self.0.enable_all();
        self
    }

    pub(crate) fn build(mut self) -> std::io::Result<Checked> {
        self.0.build().map(Checked)
    }
}

/// A runtime that checks what is left of the clients of a test.
pub(crate) struct Checked(tokio::runtime::Runtime);

impl Checked {
    pub(crate) fn block_on<F: Future>(&self, test: F) -> F::Output {
        let clients = WatchedClients::begin();
        let output = self.0.block_on(test);
        self.0.block_on(nothing_left(&clients));
        output
    }
}

/// Runs a test on a runtime of its own, with a paused clock.
pub(crate) fn on_paused_clock<T>(test: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(test)
}

/// Checks, when it is dropped, what is left of the clients that this thread has started since.
///
/// A test declares it first, so that it is dropped last: after all handles, and after the runtimes of the clients.
#[must_use = "it checks when it is dropped"]
pub(crate) struct Counted(WatchedClients);

impl Counted {
    pub(crate) fn begin() -> Self {
        Self(WatchedClients::begin())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(nothing_left(&self.0));
        }
    }
}

/// Closes the clients and waits until nothing is left, whether the clock is paused or not.
async fn nothing_left(clients: &WatchedClients) {
    clients.close();
    let (start, real_start) = (tokio::time::Instant::now(), Instant::now());
    loop {
        settle().await;
        let residue = clients.residue();
        if residue.is_empty() {
            return;
        }
        let real = real_start.elapsed();
        let is_over = real > HANG || (real > HANG / 3 && start.elapsed() > CLOSE);
        assert!(!is_over, "left by the clients of this test, which are closed: {residue:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
