//! What a backend logs.

use std::{
    cell::RefCell,
    io,
    sync::{Arc, Mutex, Once},
};

use lockkit_core::support::lock;
use tracing_subscriber::fmt::MakeWriter;

thread_local! {
    static OF_THIS_THREAD: RefCell<LogText> = RefCell::default();
}

/// The text of a log.
#[derive(Clone, Debug, Default)]
pub struct LogText(Arc<Mutex<Vec<u8>>>);

impl LogText {
    /// Returns the log of this thread from now on, for tests whose runtime has only this thread. The level is that of the
    /// first call in the program.
    ///
    /// There is one subscriber for the whole program: tracing caches the interest of call sites, so that with a
    /// subscriber per thread, a thread that has none would disable messages of the others.
    ///
    /// # Panics
    ///
    /// When the program has set another subscriber.
    pub fn of_this_thread(level: tracing::Level) -> Self {
        static SUBSCRIBE: Once = Once::new();
        SUBSCRIBE.call_once(|| {
            tracing_subscriber::fmt()
                .with_writer(|| OF_THIS_THREAD.with_borrow(Self::clone))
                .with_ansi(false)
                .with_max_level(level)
                .init();
        });
        let log = Self::default();
        OF_THIS_THREAD.set(log.clone());
        log
    }

    /// Returns what was logged so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.0)).into_owned()
    }
}

impl io::Write for LogText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogText {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
