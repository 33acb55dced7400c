//! Builds `election.go`, and talks to it by lines.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        OnceLock,
        mpsc::{Receiver, channel},
    },
};

use lockkit_conformance::direct::HANG;
use lockkit_testbed::Etcd;

/// Where Debian installs the sources of Go packages.
const SOURCES: &str = "/usr/share/gocode";

const PACKAGE: &str = "src/go.etcd.io/etcd/clientv3/concurrency";

/// Returns why the program cannot be built here, if so. Builds it once.
pub(crate) fn why_not() -> Option<String> {
    static WHY_NOT: OnceLock<Option<String>> = OnceLock::new();
    WHY_NOT.get_or_init(|| build().err()).clone()
}

fn build() -> Result<(), String> {
    if !Path::new(SOURCES).join(PACKAGE).exists() {
        return Err("the Go sources of etcd are not installed (golang-etcd-server-dev)".to_owned());
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/go/election.go");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(binary()).arg(source);
    go.envs([("GO111MODULE", "off"), ("GOPATH", SOURCES)]).env("GOCACHE", folder().join("cache"));
    let built = go.output().map_err(|error| format!("go cannot be started: {error}"))?;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Ok(())
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("go")
}

fn binary() -> PathBuf {
    folder().join("election")
}

/// A running program with a session of its own.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    pub(crate) fn start(etcd: &Etcd, name: &str) -> Self {
        let mut child = Command::new(binary())
            .args([&etcd.endpoint(), name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (output, (sender, lines)) = (child.stdout.take().unwrap(), channel());
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Self { child, input, lines }
    }

    pub(crate) fn send(&mut self, command: &str) {
        writeln!(self.input.as_ref().unwrap(), "{command}").unwrap();
    }

    /// Waits for the next line.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(HANG).unwrap()
    }

    /// Returns whether no line has come.
    pub(crate) fn is_silent(&self) -> bool {
        self.lines.try_recv().is_err()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
