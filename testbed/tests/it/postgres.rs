//! A PostgreSQL server: isolation, and its end with the test.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use lockkit_testbed::Postgres;

use crate::process::testbed;

/// Generous bound against hangs.
const GONE_MAX: Duration = Duration::from_secs(20);

#[test]
fn servers_share_nothing() {
    let [one, other] = [(); 2].map(|()| Postgres::start().unwrap());
    let tables = |postgres: &Postgres| {
        query(postgres.psql(), "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'")
    };
    query(one.psql(), "CREATE TABLE a (b INT)");
    assert_eq!([tables(&one), tables(&other)], ["1", "0"]);
}

#[test]
fn dropped_server_leaves_nothing() {
    let postgres = Postgres::start().unwrap();
    let traces = Traces::of(&postgres.url());
    assert!(traces.are_there());
    drop(postgres);
    assert!(!traces.are_there(), "{traces:?}");
}

#[test]
fn server_of_a_killed_process_leaves_nothing() {
    let (mut process, line) = testbed("postgres");
    let traces = Traces::of(line.split(' ').next().unwrap());
    assert!(traces.are_there());
    process.kill().unwrap();
    process.wait().unwrap();
    let started = Instant::now();
    while traces.are_there() {
        assert!(started.elapsed() < GONE_MAX, "{traces:?}");
        std::thread::yield_now();
    }
}

/// What a server has on its host.
#[derive(Debug)]
struct Traces {
    /// Of the server and of one of its children.
    processes: [String; 2],
    /// The id of its segment of shared memory.
    segment: String,
    folder: PathBuf,
}

impl Traces {
    fn of(url: &str) -> Self {
        let ask = |statement| {
            let mut psql = Command::new("psql");
            psql.args(["-X", "-A", "-t", url]);
            query(psql, statement)
        };
        let file = ask("SELECT pg_read_file('postmaster.pid')");
        let line = |number: usize| file.lines().nth(number).unwrap().trim();
        let child = ask("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
        Self {
            processes: [line(0).to_owned(), child],
            segment: line(6).rsplit(' ').next().unwrap().to_owned(),
            folder: Path::new(line(1)).parent().unwrap().to_owned(),
        }
    }

    /// Whether any of it is there.
    fn are_there(&self) -> bool {
        let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap();
        self.processes.iter().any(|pid| Path::new("/proc").join(pid).exists())
            || segments.lines().any(|line| line.split_whitespace().nth(1) == Some(&self.segment))
            || self.folder.exists()
    }
}

fn query(mut psql: Command, statement: &str) -> String {
    let output = psql.args(["-c", statement]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
