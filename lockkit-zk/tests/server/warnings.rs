//! Log messages for operators.

use std::{
    cell::RefCell,
    io::{Result, Write},
    sync::{Arc, Mutex, Once},
};

use lockkit_testbed::ZooKeeper;
use tracing::Level;

use crate::common::{LONG, acquire, name, node, release, session};

/// Half of the numbers of a directory.
const HALF: i32 = 1 << 30;

/// The runtime has only this thread.
#[tokio::test]
async fn half_used_directory_is_warned_of_once() {
    let server = ZooKeeper::start_numbered("/lockkit/x", HALF - 1).unwrap();
    let (session, name, log) = (session(&server, LONG).await, name("x"), Log::of_this_thread());
    let mut warned = Vec::new();
    for _ in 0..3 {
        release(&session, &acquire(&session, &name).await).await;
        warned.push(log.warnings_of(&node(&name)));
    }
    assert_eq!(warned, [0, 1, 1], "{}", log.text());
}

thread_local! {
    static LOG: RefCell<Log> = RefCell::default();
}

/// A log.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Returns the log of this thread from now on.
    fn of_this_thread() -> Self {
        // One subscriber for the whole program, for ever: with one per thread, the cached interest of another thread,
        // which has none, would drop messages.
        static SUBSCRIBE: Once = Once::new();
        SUBSCRIBE.call_once(|| {
            tracing_subscriber::fmt()
                .with_writer(|| LOG.with_borrow(Self::clone))
                .with_ansi(false)
                .with_max_level(Level::WARN)
                .init();
        });
        let log = Self::default();
        LOG.set(log.clone());
        log
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Returns the number of warnings that name this node.
    fn warnings_of(&self, node: &str) -> usize {
        self.text().lines().filter(|line| line.contains(" WARN ") && line.contains(node)).count()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
