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

/// Longest time until a stopped process has come to a stand.
const FREEZE_MAX: Duration = Duration::from_secs(10);

/// Pause between two looks at it.
const FREEZE_POLL: Duration = Duration::from_millis(1);

/// Starts the server, says its process id, and ends it when the pipe at its own standard input says so: a line means
/// "end the server", the end of the pipe means that the tests are gone, and then the folder goes too. (A parent-death
/// signal would need unsafe code, and it follows the thread that started the process instead of the process.)
///
/// The tests may be gone before they have read the process id: the line must not end the watcher then.
const WATCHER: &str = r#"
folder=$1; shift
"$@" </dev/null >>"$folder/log" 2>&1 &
server=$!
trap '' PIPE
echo $server 2>/dev/null
read -r line && left=tests
kill -KILL $server 2>/dev/null
wait $server 2>/dev/null
[ -n "$left" ] || rm -rf "$folder"
"#;

/// A running server process and the shell that watches over it.
#[derive(Debug)]
pub(crate) struct Supervised {
    server: Pid,
    watcher: Child,
    /// Ends the server when it is closed, by whatever closes it.
    pipe: Option<ChildStdin>,
}

impl Supervised {
    /// Starts `program`; its output is appended to `folder/log`.
    pub(crate) fn start(program: &Path, arguments: &[String], folder: &Path) -> Result<Self> {
        let mut watcher = Command::new("/bin/sh")
            .args(["-c", WATCHER, "testbed"])
            .arg(folder)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Out of reach of a terminal's Ctrl-C, which would end the watcher before its server.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pipe = watcher.stdin.take();
        let output = watcher.stdout.take().context("the watcher has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let server = line.trim().parse().ok().and_then(Pid::from_raw);
        Ok(Self { server: server.context("the watcher told no process id")?, watcher, pipe })
    }

    /// The process id of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.server.as_raw_nonzero().get().unsigned_abs()
    }

    /// Stops the server where it stands, and waits until all its threads have stopped: the signal reaches them one
    /// by one, and one that still runs may answer a request.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let started = Instant::now();
        while !self.thread_states()?.into_iter().all(|state| state == 'T') {
            ensure!(started.elapsed() < FREEZE_MAX, "process {} does not stop", self.pid());
            std::thread::sleep(FREEZE_POLL);
        }
        Ok(())
    }

    /// Lets a stopped server go on.
    pub(crate) fn unfreeze(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Whether the server is stopped.
    pub(crate) fn is_frozen(&self) -> bool {
        self.thread_states().is_ok_and(|states| states.into_iter().all(|state| state == 'T'))
    }

    /// Whether the server has ended by itself. (The watcher does not collect it before it is told to, so the process
    /// id is still its own.)
    pub(crate) fn has_ended(&self) -> bool {
        self.thread_states().map_or(true, |states| states.into_iter().all(|state| state == 'Z'))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.server, signal).with_context(|| format!("cannot signal process {}", self.pid()))
    }

    /// The state letter of each thread, as in proc(5).
    fn thread_states(&self) -> Result<Vec<char>> {
        let mut states = Vec::new();
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            // A thread may end between the two reads.
            let stat = fs::read_to_string(thread?.path().join("stat")).unwrap_or_default();
            states.extend(stat.rsplit_once(") ").and_then(|(_, state)| state.chars().next()));
        }
        Ok(states)
    }

    /// Ends the server as `kill -9` does, and waits until it is gone.
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
        // Nobody is left to hear of a failure, and the watcher ends its server without us too.
        let _ = self.watcher.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_ends_when_the_tests_are_gone_before_they_know_its_process_id() {
        let place = tempfile::tempdir().unwrap();
        let [folder, told] = ["folder", "pid"].map(|name| place.path().join(name));
        fs::create_dir(&folder).unwrap();
        // Gone with its first line, as the reader of that line is.
        let (nobody, line) = std::io::pipe().unwrap();
        drop(nobody);
        let server = format!("echo $$ > {}; exec sleep 1000", told.display());
        let mut watcher = Command::new("/bin/sh")
            .args(["-c", WATCHER, "testbed"])
            .arg(&folder)
            .args(["sh", "-c", &server])
            .stdin(Stdio::piped())
            .stdout(line)
            .spawn()
            .unwrap();
        let started = Instant::now();
        let pid = loop {
            match fs::read_to_string(&told).unwrap_or_default().trim().parse() {
                Ok(pid) => break Pid::from_raw(pid).unwrap(),
                Err(_) => assert!(started.elapsed() < FREEZE_MAX * 6, "the server does not start"),
            }
            std::thread::sleep(FREEZE_POLL);
        };
        drop(watcher.stdin.take());
        watcher.wait().unwrap();
        let lives_on = kill_process(pid, Signal::KILL).is_ok();
        assert!(!lives_on && !folder.exists(), "server lives: {lives_on}; folder: {}", folder.exists());
    }
}
