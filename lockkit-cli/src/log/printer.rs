//! A thread that writes lines to stderr, so that nobody else waits for those who read them.

use std::{
    collections::VecDeque,
    io::Write,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use lockkit_core::support::{lock, unpoisoned};
use nix::sys::signal::SigSet;

/// Most lines that wait to be printed; further ones are counted and dropped.
const WAITING_MAX: usize = 256;

/// Longest wait for the printer when the program ends or stops.
const FINISH_MAX: Duration = Duration::from_secs(2);

/// Prints lines in their order.
#[derive(Debug, Default)]
pub(super) struct Printer {
    lines: Mutex<LineQueue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LineQueue {
    waiting: VecDeque<String>,
    dropped: usize,
    is_writing: bool,
}

impl Printer {
    /// Starts the thread. Without one, nothing is printed.
    pub(super) fn start() -> Arc<Self> {
        let printer = Arc::new(Self::default());
        let of_thread = Arc::clone(&printer);
        let _ = thread::Builder::new().name("lockkit-log".into()).spawn(move || {
            // Signals are the main thread's. With SIGTTOU blocked, lines appear from the background of a terminal.
            let _ = SigSet::all().thread_block();
            of_thread.run();
        });
        printer
    }

    /// Queues a line, without blocking.
    pub(super) fn print(&self, line: String) {
        let mut lines = self.lock();
        if lines.waiting.len() < WAITING_MAX {
            lines.waiting.push_back(line);
        } else {
            lines.dropped += 1;
        }
        self.changed.notify_all();
    }

    /// Waits until all lines are printed, at most [`FINISH_MAX`].
    pub(super) fn finish(&self) {
        let busy = |lines: &mut LineQueue| lines.is_writing || !lines.waiting.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), FINISH_MAX, busy));
    }

    fn run(&self) {
        loop {
            self.write_next(|line| {
                let _ = std::io::stderr().write_all(line.as_bytes());
            });
        }
    }

    /// Writes the next line; the end of the program waits for that.
    fn write_next(&self, write: impl FnOnce(&str)) {
        write(&self.next());
        self.lock().is_writing = false;
        self.changed.notify_all();
    }

    /// Waits for the next line.
    fn next(&self) -> String {
        let empty = |lines: &mut LineQueue| lines.waiting.is_empty() && lines.dropped == 0;
        let mut lines = unpoisoned(self.changed.wait_while(self.lock(), empty));
        lines.is_writing = true;
        lines.waiting.pop_front().unwrap_or_else(|| {
            let dropped = std::mem::take(&mut lines.dropped);
            format!("lockkit: warning: stderr is slow; lines that were not printed: {dropped}\n")
        })
    }

    fn lock(&self) -> MutexGuard<'_, LineQueue> {
        lock(&self.lines)
    }
}

#[cfg(test)]
impl Printer {
    /// Returns a printer without a thread.
    pub(super) fn idle() -> Arc<Self> {
        Arc::default()
    }

    pub(super) fn waiting(&self) -> Vec<String> {
        self.lock().waiting.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn lines_beyond_the_bound_are_counted() {
        let printer = Printer::idle();
        (0..WAITING_MAX + 3).for_each(|number| printer.print(number.to_string()));
        let printed: Vec<String> = (0..=WAITING_MAX).map(|_| printer.next()).collect();
        assert_eq!(printed[WAITING_MAX - 1], (WAITING_MAX - 1).to_string());
        assert!(printed[WAITING_MAX].ends_with("not printed: 3\n"), "{}", printed[WAITING_MAX]);
        // They are counted from the start again.
        (0..WAITING_MAX + 1).for_each(|number| printer.print(number.to_string()));
        let printed: Vec<String> = (0..=WAITING_MAX).map(|_| printer.next()).collect();
        assert!(printed[WAITING_MAX].ends_with("not printed: 1\n"), "{}", printed[WAITING_MAX]);
    }

    #[test]
    fn end_waits_for_a_line_that_is_being_printed_for_a_bounded_time() {
        let printer = Printer::idle();
        let finish = || {
            let begin = Instant::now();
            printer.finish();
            begin.elapsed()
        };
        // A busy machine may delay one of them.
        let shortest = [(); 3].map(|()| finish()).into_iter().min();
        assert!(shortest < Some(FINISH_MAX), "nothing is printed: {shortest:?}");
        printer.print("slow".into());
        assert_eq!(printer.next(), "slow");
        let took = finish();
        assert!((FINISH_MAX..FINISH_MAX * 30).contains(&took), "{took:?}");
    }

    #[test]
    fn line_is_being_printed_until_it_is_written() {
        let printer = Printer::idle();
        printer.print("last".into());
        printer.write_next(|line| {
            let lines = printer.lock();
            assert!(line == "last" && lines.waiting.is_empty() && lines.is_writing, "{lines:?}");
        });
        assert!(!printer.lock().is_writing);
    }
}
