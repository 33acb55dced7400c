//! The processes of the nodes.

use std::{
    env,
    io::{self, BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    history::{Event, History, Process},
    leader,
};

/// Makes this program a node, with the arguments of the example.
const ROLE: &str = "LOCKKIT_TEST_NODE";

pub(crate) const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// Bound of what takes no time but that of a busy machine.
pub(crate) const SLACK: Duration = Duration::from_secs(5);

/// How long a process may take to start and to open its session, on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);

/// The nodes, and what they have printed.
pub(crate) struct Cluster {
    url: String,
    nodes: Vec<Node>,
    /// `None` at the end of a process.
    lines: Receiver<(Process, Option<String>)>,
    sender: Sender<(Process, Option<String>)>,
    ended: Vec<Process>,
    pub(crate) history: History,
}

/// A running process; killed on drop.
struct Node {
    process: Process,
    child: Child,
}

impl Drop for Node {
    fn drop(&mut self) {
        // A failure is ignored: a process whose input is closed exits by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Cluster {
    pub(crate) fn start(url: &str, ttl: Duration) -> Result<Self> {
        let (sender, lines) = channel();
        let history = History::default();
        let (nodes, ended) = (Vec::new(), Vec::new());
        let url = format!("{url}?ttl={}s&connect_timeout={}s", ttl.as_secs(), START_MAX.as_secs());
        let mut cluster = Self { url, nodes, lines, sender, ended, history };
        for name in NODES {
            cluster.start_node((name, 0))?;
        }
        Ok(cluster)
    }

    fn start_node(&mut self, process: Process) -> Result<()> {
        let mut child = Command::new(env::current_exe()?)
            .args([&self.url, process.0])
            .env(ROLE, "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The kernel ends a stopped group whose parent has exited.
            .process_group(0)
            .spawn()?;
        let output = child.stdout.take().context("the output is a pipe")?;
        self.nodes.push(Node { process, child });
        let sender = self.sender.clone();
        thread::spawn(move || {
            // A killed process leaves no half of a line: it writes short lines at once.
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for line in lines.map(Some).chain([None]) {
                // Fails after the test.
                let _ = sender.send((process, line));
            }
        });
        Ok(())
    }

    /// The processes that run now.
    pub(crate) fn processes(&self) -> impl Iterator<Item = Process> {
        self.nodes.iter().map(|node| node.process)
    }

    /// Kills a process with SIGKILL. Returns how long the machine took to end it.
    pub(crate) fn kill(&mut self, process: Process) -> Result<Duration> {
        let node = self.nodes.iter().position(|node| node.process == process);
        let killed = Instant::now();
        drop(self.nodes.swap_remove(node.context("it runs")?));
        Ok(killed.elapsed())
    }

    /// Starts the node of a process again.
    pub(crate) fn restart(&mut self, (name, generation): Process) -> Result<()> {
        self.start_node((name, generation + 1))
    }

    pub(crate) fn signal(&self, process: Process, signal: Signal) -> Result<()> {
        let node = self.nodes.iter().find(|node| node.process == process).context("it runs")?;
        let pid = Pid::from_raw(node.child.id().cast_signed()).context("it has an id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Terminates a process with SIGTERM, and waits until it has exited by itself. Returns no time: it ends as a leader
    /// before that.
    pub(crate) fn terminate(&mut self, process: Process) -> Result<Duration> {
        self.signal(process, Signal::TERM)?;
        self.wait("the end of a terminated node", SLACK, |cluster| {
            cluster.ended.contains(&process).then_some(())
        })?;
        let node = self.nodes.iter().position(|node| node.process == process);
        let status = self.nodes.swap_remove(node.context("it runs")?).child.wait()?;
        ensure!(status.success(), "{process:?} was terminated: {status}");
        Ok(Duration::ZERO)
    }

    /// Waits until each process has opened its session: the first thing that it prints is whom it sees.
    pub(crate) fn all_started(&mut self) -> Result<()> {
        self.wait("all nodes have started", START_MAX, |cluster| {
            cluster.processes().all(|process| cluster.history.of(process).next().is_some()).then_some(())
        })
    }

    /// Reads lines until `find` finds something in the history.
    pub(crate) fn wait<T>(
        &mut self,
        what: &str,
        bound: Duration,
        find: impl Fn(&Self) -> Option<T>,
    ) -> Result<T> {
        let end = Instant::now() + bound;
        loop {
            if let Some(found) = find(self) {
                return Ok(found);
            }
            ensure!(self.read_line(end)?, "not within {bound:?}: {what}");
        }
    }

    /// Reads lines for this long.
    pub(crate) fn read_for(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while self.read_line(end)? {}
        Ok(())
    }

    /// Reads a line; returns false if there is none until `end`.
    fn read_line(&mut self, end: Instant) -> Result<bool> {
        match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok((process, line)) => {
                match line {
                    Some(line) => self.history.push(Event::parse(process, &line)?),
                    None => self.ended.push(process),
                }
                Ok(true)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(false),
        }
    }
}

/// Runs the example if this process is a node.
pub(crate) fn play_role_if_asked() -> Option<Result<()>> {
    env::var_os(ROLE)?;
    // The node ends with the test, however that ends.
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(2);
    });
    Some(run_node())
}

fn run_node() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [url, name] = &arguments[..] else { bail!("{arguments:?}") };
    tokio::runtime::Runtime::new()?.block_on(leader::run(url, name))
}
