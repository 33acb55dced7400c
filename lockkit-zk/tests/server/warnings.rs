//! What is logged for who runs the servers.

use std::{
    cell::RefCell,
    io::{Result, Write},
    sync::{Arc, Mutex, Once},
};

use lockkit_testbed::ZooKeeper;
use tracing::Level;

use crate::common::{LONG, acquire, name, node, release, session};

/// Half of the numbers that a directory has.
const HALF: i32 = 1 << 30;

/// The runtime has this thread alone.
#[tokio::test]
async fn a_directory_that_has_used_up_half_of_its_numbers_is_warned_of_once() {
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

/// What was logged.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// What this thread logs from now on.
    fn of_this_thread() -> Self {
        // One for the whole program, and for good: what is cached of a subscriber of one thread may be asked for by
        // another thread, which has none, and then nobody hears anything.
        static LISTEN: Once = Once::new();
        LISTEN.call_once(|| {
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

    /// The warnings that name this node.
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
