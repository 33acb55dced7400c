//! The runtime of the tests, for `#[tokio::test(crate = "crate::checked")]`. When a test has ended, none of its clients
//! may have anything left: every table is empty, and no task uses the keeper any more.
#![allow(clippy::unwrap_used, reason = "helpers of tests are not seen as tests")]

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
        self.0.block_on(async {
            let clients = WatchedClients::begin();
            let output = test.await;
            clients.close();
            nothing_left(&clients).await;
            output
        })
    }
}

/// Waits until nothing is left, whether the clock is paused or not.
async fn nothing_left(clients: &WatchedClients) {
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
