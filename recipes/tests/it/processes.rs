//! The processes of examples.

use std::{
    env,
    io::{BufRead, BufReader, PipeWriter, pipe},
    path::PathBuf,
    process::{Child, Command},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for a line or an end that the test expects: against hangs only.
const WAIT_MAX: Duration = Duration::from_secs(180);

/// Processes that write into one pipe, so that their lines are in the order in which they were written.
pub(crate) struct Processes {
    url: String,
    /// Killed on drop.
    children: Vec<Child>,
    writer: PipeWriter,
    lines: Receiver<String>,
    /// The lines that were read so far.
    seen: Vec<String>,
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Fails for a process that has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Processes {
    /// Returns no process yet; those that are started use the lock store at `url`.
    pub(crate) fn of(url: &str) -> Self {
        let (reader, writer) = pipe().unwrap();
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                // Fails after the test.
                let _ = sender.send(line);
            }
        });
        Self { url: url.to_owned(), children: Vec::new(), writer, lines, seen: Vec::new() }
    }

    /// Starts an example. Returns its number.
    pub(crate) fn start(&mut self, example: &str, arguments: &[&str]) -> usize {
        let child = Command::new(program(example))
            .args(arguments)
            .env("LOCKKIT_BACKEND", &self.url)
            .env_remove("RUST_BACKTRACE")
            .stdout(self.writer.try_clone().unwrap())
            .spawn()
            .unwrap_or_else(|error| panic!("{example}: {error}; `cargo test -p lockkit-recipes` builds it"));
        self.children.push(child);
        self.children.len() - 1
    }

    /// Waits for a line that begins with this word, after those that were read before. Returns the rest of the line.
    pub(crate) fn line(&mut self, word: &str) -> String {
        let end = Instant::now() + WAIT_MAX;
        loop {
            let line = self.next(end).unwrap_or_else(|| panic!("no {word} from {:?}", self.seen));
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Returns the next line; `None` when all processes have ended.
    fn next(&mut self, end: Instant) -> Option<String> {
        match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                self.seen.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("nothing within {WAIT_MAX:?} after {:?}", self.seen),
        }
    }

    pub(crate) fn signal(&self, number: usize, signal: Signal) {
        let pid = self.children[number].id().cast_signed();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Waits until all processes have ended by themselves, without an error. Returns all lines.
    pub(crate) fn finish(self) -> Vec<String> {
        let (lines, success) = self.wait();
        assert!(success, "a process failed: {lines:?}");
        lines
    }

    /// Waits until all processes have ended by themselves. Returns all lines, and whether there was no error.
    pub(crate) fn wait(mut self) -> (Vec<String>, bool) {
        // Without this end of the pipe, the lines end with the last process.
        (_, self.writer) = pipe().unwrap();
        let end = Instant::now() + WAIT_MAX;
        while self.next(end).is_some() {}
        let success = self.children.iter_mut().all(|child| child.wait().unwrap().success());
        (std::mem::take(&mut self.seen), success)
    }
}

/// Runs an example to its end. Returns its lines.
pub(crate) fn run(example: &str, url: &str, arguments: &[&str]) -> Vec<String> {
    let mut processes = Processes::of(url);
    processes.start(example, arguments);
    processes.finish()
}

/// Cargo builds examples next to the folder of the test programs.
fn program(example: &str) -> PathBuf {
    let tests = env::current_exe().unwrap();
    tests.parent().and_then(|folder| folder.parent()).unwrap().join("examples").join(example)
}
