//! An election shared with Curator's own `LeaderSelector`. Without a JDK or without Curator's jars the test is ignored,
//! with the reason.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test program")]

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    time::Duration,
};

use libtest_mimic::{Arguments, Completion, Trial};
use lockkit_conformance::direct::{
    HANG, bounded, enqueued, fresh_name, granted, is_gave_up, release, try_acquire, until,
};
use lockkit_core::{
    Clock, LockName, Metadata, Proposal,
    backend::{Backend, BackendUrl, Claim, ClaimControl, Session},
};
use lockkit_testbed::ZooKeeper;
use lockkit_zk::{ZkBackend, ZkConfig};

/// Where Debian installs jars.
const JARS_FOLDER: &str = "/usr/share/java";

/// The jars of the packages `libcurator-recipes-java` and `libzookeeper-java`, and what they need.
const JARS: [&str; 8] = [
    "curator-recipes",
    "curator-framework",
    "curator-client",
    "zookeeper",
    "zookeeper-jute",
    "guava",
    "slf4j-api",
    "slf4j-nop",
];

/// Java compiles the program and runs it.
const SELECTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/curator/Selector.java");

/// Longer than the test.
const TTL: Duration = Duration::from_secs(300);

/// Time limit of the start: Java compiles the program first, which takes long on a busy machine.
const START_MAX: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let trial = Trial::ignorable_test("leader_selector_and_lockkit_share_an_election", || {
        Ok(match why_not() {
            Some(reason) => Completion::ignored_with(reason),
            None => {
                let runtime = tokio::runtime::Runtime::new()?;
                runtime.block_on(leader_selector_and_lockkit_share_an_election());
                Completion::Completed
            }
        })
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

/// Returns what is missing.
fn why_not() -> Option<String> {
    let compiler = Command::new("javac").arg("-version").output();
    if !compiler.is_ok_and(|output| output.status.success()) {
        return Some("needs a JDK: package default-jdk-headless".to_owned());
    }
    let missing = JARS.iter().map(|jar| jar_path(jar)).find(|path| !Path::new(path).exists())?;
    Some(format!("needs {missing}: package libcurator-recipes-java"))
}

fn jar_path(jar: &str) -> String {
    format!("{JARS_FOLDER}/{jar}.jar")
}

/// A process with a `LeaderSelector`.
struct Selector {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Selector {
    fn start(server: &str, path: &str, id: &str) -> Self {
        let jars: Vec<String> = JARS.iter().map(|jar| jar_path(jar)).collect();
        let mut process = Command::new("java")
            .args(["-cp", &jars.join(":"), SELECTOR, server, path, id])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { process, input, lines }
    }

    /// Returns the next line that it prints.
    fn line(&self) -> String {
        self.line_within(HANG)
    }

    /// The same, with this time limit.
    fn line_within(&self, time_limit: Duration) -> String {
        self.lines.recv_timeout(time_limit).expect("the selector prints nothing")
    }

    /// Returns the leader that it sees.
    fn leader(&mut self) -> String {
        self.command("leader");
        self.line()
    }

    fn command(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }
}

impl Drop for Selector {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn candidacy(value: &str, number: u64) -> Metadata {
    Metadata::of_this_process(None).with_proposal(Proposal::new(value, number))
}

async fn leader(session: &Arc<dyn Session>, name: &LockName) -> Proposal {
    bounded(session.elections().unwrap().leader(name)).await.unwrap().unwrap().proposal
}

async fn leader_selector_and_lockkit_share_an_election() {
    let server = ZooKeeper::start().unwrap();
    let url = format!("{}/?root=/elections&names=raw", server.url());
    let backend = ZkBackend::new(ZkConfig::from_url(BackendUrl::parse(&url).unwrap()).unwrap());
    let session = backend.open_session(TTL, Clock::boot()).await.unwrap();
    let name = fresh_name();
    let path = format!("/elections/{name}");
    let candidates =
        async |count| until("they queue", async || server.children(&path).unwrap().len() == count).await;

    let claim = Claim::new(name.clone(), true, candidacy("ours:1", 1), &ClaimControl::new());
    let ours = granted(bounded(session.acquire(claim)).await);
    let mut selector = Selector::start(&server.endpoint(), &path, "theirs");
    assert_eq!(selector.line_within(START_MAX), "started");
    candidates(2).await;
    assert_eq!(selector.leader(), "ours:1");
    let second = candidacy("ours:2", 2);
    assert!(bounded(session.elections().unwrap().proclaim(&ours, &second)).await.unwrap());
    // It would have printed "leads" first.
    assert_eq!(selector.leader(), "ours:2");

    release(&session, &ours).await;
    assert_eq!(selector.line(), "leads");
    assert_eq!(leader(&session, &name).await, Proposal::new("theirs", 1));
    assert_eq!(selector.leader(), "theirs");
    assert!(is_gave_up(&try_acquire(&session, &name).await), "both lead");
    let next = enqueued(&session, &name).await;
    selector.command("release");
    release(&session, &next.granted().await).await;
}
