//! A server process that cannot outlive the process that started it.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Longest time until all threads of a process have stopped.
const FREEZE_MAX: Duration = Duration::from_secs(10);

/// Pause between two reads of their states.
const FREEZE_POLL: Duration = Duration::from_millis(1);

/// The signals of a server that holds nothing outside its process and its folder.
pub(crate) const KILLED: &str = "KILL";

/// Starts the server, prints its process id, and waits for its own standard input. A line there means "end the
/// server". The end of the input means that the test process is gone: then the watcher also removes the folder.
///
/// The test process may end before it has read the process id. Printing it must not kill the watcher then, hence the
/// `trap`.
///
/// A parent-death signal is no alternative: it would need unsafe code, and it follows the thread that started the
/// process, not the process.
const WATCHER: &str = r#"
folder=$1 signals=$2; shift 2
"$@" </dev/null >>"$folder/log" 2>&1 &
server=$!
trap '' PIPE
echo $server 2>/dev/null
read -r line && left=tests
for signal in $signals; do kill -$signal $server 2>/dev/null; done
wait $server 2>/dev/null
[ -n "$left" ] || rm -rf "$folder"
"#;

/// A running server process and its watcher, a shell.
#[derive(Debug)]
pub(crate) struct Supervised {
    server: Pid,
    watcher: Child,
    /// The watcher's standard input: closing it kills the server.
    pipe: Option<ChildStdin>,
}

impl Supervised {
    /// Starts `program` and appends its output to `folder/log`. These signals, separated by blanks, will end it.
    pub(crate) fn start(
        program: &Path,
        arguments: &[String],
        folder: &Path,
        signals: &'static str,
    ) -> Result<Self> {
        let mut watcher = Command::new("/bin/sh")
            .args(["-c", WATCHER, "testbed"])
            .arg(folder)
            .arg(signals)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A terminal's Ctrl-C must not reach the watcher: it would end before its server.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pipe = watcher.stdin.take();
        let output = watcher.stdout.take().context("the watcher has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let server = line.trim().parse().ok().and_then(Pid::from_raw);
        Ok(Self { server: server.context("the watcher printed no process id")?, watcher, pipe })
    }

    /// The process id of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.server.as_raw_nonzero().get().unsigned_abs()
    }

    /// Stops the server, and waits until all its threads have stopped. The signal reaches them one by one, and a thread
    /// that still runs may answer a request.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let started = Instant::now();
        while !self.thread_states()?.into_iter().all(|state| state == 'T') {
            ensure!(started.elapsed() < FREEZE_MAX, "process {} does not stop", self.pid());
            std::thread::sleep(FREEZE_POLL);
        }
        Ok(())
    }

    /// Lets a stopped server continue.
    pub(crate) fn unfreeze(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Asks the server to end by itself.
    pub(crate) fn ask_to_end(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Whether the server is stopped.
    pub(crate) fn is_frozen(&self) -> bool {
        self.thread_states().is_ok_and(|states| states.into_iter().all(|state| state == 'T'))
    }

    /// Whether the server has ended by itself. Its process id is not reused: the watcher reaps it only when asked to
    /// kill it.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread_states().map_or(true, |states| states.into_iter().all(|state| state == 'Z'))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.server, signal).with_context(|| format!("cannot signal process {}", self.pid()))
    }

    /// The state letter of each thread, see proc(5).
    fn thread_states(&self) -> Result<Vec<char>> {
        let mut states = Vec::new();
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            // A thread may end between the two reads, and then has no state.
            let stat = fs::read_to_string(thread?.path().join("stat")).unwrap_or_default();
            states.extend(stat.rsplit_once(") ").and_then(|(_, state)| state.chars().next()));
        }
        Ok(states)
    }

    /// Sends the server its signals (`kill -9` for most), and waits until it is gone.
    pub(crate) fn kill(mut self) -> Result<()> {
        if let Some(mut pipe) = self.pipe.take() {
            pipe.write_all(b"end\n")?;
        }
        self.watcher.wait()?;
        Ok(())
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // A failure cannot be reported from here, and the closed pipe makes the watcher kill its server in any case.
        let _ = self.watcher.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_ends_when_the_test_process_ends_before_reading_its_process_id() {
        let place = tempfile::tempdir().unwrap();
        let [folder, pid_file] = ["folder", "pid"].map(|name| place.path().join(name));
        fs::create_dir(&folder).unwrap();
        // The pipe has no reader: the watcher's first line fails to be written.
        let (reader, output) = std::io::pipe().unwrap();
        drop(reader);
        let server = format!("echo $$ > {}; exec sleep 1000", pid_file.display());
        let mut watcher = Command::new("/bin/sh")
            .args(["-c", WATCHER, "testbed"])
            .arg(&folder)
            .args([KILLED, "sh", "-c", &server])
            .stdin(Stdio::piped())
            .stdout(output)
            .spawn()
            .unwrap();
        let started = Instant::now();
        let pid = loop {
            match fs::read_to_string(&pid_file).unwrap_or_default().trim().parse() {
                Ok(pid) => break Pid::from_raw(pid).unwrap(),
                Err(_) => assert!(started.elapsed() < FREEZE_MAX * 6, "the server does not start"),
            }
            std::thread::sleep(FREEZE_POLL);
        };
        drop(watcher.stdin.take());
        watcher.wait().unwrap();
        let is_running = kill_process(pid, Signal::KILL).is_ok();
        assert!(!is_running && !folder.exists(), "server runs: {is_running}; folder: {}", folder.exists());
    }
}
