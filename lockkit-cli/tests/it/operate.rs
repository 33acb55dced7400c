//! `who`, `ls`, `break` and `hold` with every store of this build.

use std::process::{Command, Stdio};

use rustix::process::Signal;

use lockkit_testbed::eventually;

use crate::{
    harness::{Done, Home, Started, done},
    terminal::Terminal,
};

/// A store, a folder, and whatever has to live as long.
pub(crate) struct RunningStore {
    home: Home,
    pub(crate) url: String,
    _server: Box<dyn std::any::Any>,
}

/// Returns every store of this build.
pub(crate) fn stores() -> Vec<RunningStore> {
    let store = |url: String, server: Box<dyn std::any::Any>| RunningStore {
        home: Home::new(),
        url,
        _server: server,
    };
    let mut stores = Vec::new();
    let files = tempfile::tempdir().unwrap();
    stores.push(store(format!("file://{}", files.path().display()), Box::new(files)));
    #[cfg(feature = "redis")]
    {
        let redis = lockkit_testbed::Redis::start().unwrap();
        stores.push(store(redis.url(), Box::new(redis)));
    }
    #[cfg(feature = "etcd")]
    {
        let etcd = lockkit_testbed::Etcd::start().unwrap();
        stores.push(store(etcd.url(), Box::new(etcd)));
    }
    #[cfg(feature = "zk")]
    {
        let zookeeper = lockkit_testbed::ZooKeeper::start().unwrap();
        stores.push(store(zookeeper.url(), Box::new(zookeeper)));
    }
    stores
}

impl RunningStore {
    pub(crate) fn is_files(&self) -> bool {
        self.url.starts_with("file:")
    }

    fn lockkit(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.lockkit(arguments);
        command.env("LOCKKIT_BACKEND", &self.url).stdin(Stdio::piped());
        command
    }

    fn done(&self, arguments: &[&str]) -> Done {
        done(self.lockkit(arguments))
    }

    /// Starts `lockkit hold`, and returns it with its token.
    fn hold(&self, arguments: &[&str]) -> (Started, u64) {
        let mut hold = Started::new(&mut self.lockkit(&[&["hold"], arguments].concat()));
        let token = hold.line();
        match token.parse() {
            Ok(token) => (hold, token),
            Err(_) => panic!("{}: no token: {}", self.url, hold.done().stderr),
        }
    }

    /// Waits until a lock has this many waiters.
    fn until_waiting(&self, name: &str, waiters: usize) {
        eventually("the waiters", || (self.who(name)["waiters"].as_array()?.len() == waiters).then_some(()));
    }

    pub(crate) fn who(&self, name: &str) -> serde_json::Value {
        serde_json::from_str(&self.done(&["who", "--json", name]).stdout).unwrap()
    }
}

#[test]
fn hold_ends_with_its_input_or_a_signal() {
    for store in stores() {
        let (mut hold, first) = store.hold(&["--label", "by hand", "a"]);
        assert_eq!(store.who("a")["holder"]["label"], "by hand", "{}", store.url);
        assert_eq!(store.who("a")["holder"]["token"], first, "{}", store.url);
        assert_eq!(store.done(&["hold", "-n", "a"]).status, 75, "{}", store.url);
        hold.close_stdin();
        assert_eq!(hold.done().status, 0, "{}", store.url);
        let (hold, second) = store.hold(&["-n", "a"]);
        assert!(second > first, "{}", store.url);
        hold.send(Signal::TERM);
        let ended = hold.done();
        assert!(ended.status == 143 && ended.is_silent(), "{}: {}", store.url, ended.stderr);
        assert_eq!(store.done(&["who", "a"]).status, 1, "{}", store.url);
    }
}

#[test]
fn hold_without_an_input_is_not_ended_by_it() {
    let home = Home::new();
    let mut hold = Started::new(home.lockkit(["hold", "a"]).stdin(Stdio::null()));
    assert!(!hold.line().is_empty());
    assert_eq!(done(home.lockkit(["who", "a"])).status, 0);
    assert!(hold.runs());
    hold.send(Signal::INT);
    assert_eq!(hold.done().status, 130);
}

#[test]
fn hold_is_not_ended_by_an_input_that_cannot_be_read() {
    let home = Home::new();
    let folder = std::fs::File::open(home.path(".")).unwrap();
    let mut hold = Started::new(home.lockkit(["hold", "a"]).stdin(folder));
    assert!(!hold.line().is_empty());
    // It has failed to read long before the last of them.
    for _ in 0..5 {
        assert_eq!(done(home.lockkit(["who", "a"])).status, 0);
    }
    hold.send(Signal::INT);
    assert_eq!(hold.done().status, 130);
}

#[test]
fn hold_ends_with_ctrl_d_at_a_terminal() {
    let home = Home::new();
    let mut terminal = Terminal::with_shell(&home, "\"$LOCKKIT\" hold a >token; echo ended with $?");
    eventually("the token", || {
        std::fs::read_to_string(home.path("token")).ok().filter(|token| token.ends_with('\n'))
    });
    terminal.press("\u{4}");
    terminal.shows("ended with 0");
}

#[test]
fn lost_hold_is_76() {
    let home = Home::new();
    let mut hold = Started::new(home.lockkit(["hold", "a"]).stdin(Stdio::piped()));
    assert!(!hold.line().is_empty());
    std::fs::remove_file(home.path("locks/a.lock")).unwrap();
    let ended = hold.done();
    assert!(ended.status == 76 && ended.message().contains("lost"), "{}", ended.stderr);
}

#[test]
fn status_of_who_is_for_scripts() {
    for store in stores() {
        assert_eq!(store.done(&["who", "a"]).status, 1, "{}", store.url);
        let (_hold, _) = store.hold(&["a"]);
        let held = store.done(&["who", "a"]);
        assert_eq!(held.status, 0, "{}", store.url);
        assert!(held.stdout.starts_with("\"a\" is held by host"), "{}: {}", store.url, held.stdout);
        assert_eq!(store.done(&["who", ""]).status, 64, "{}", store.url);
    }
    let home = Home::new();
    assert_eq!(done(home.lockkit(["who", "--backend", "file:///dev/null/x", "a"])).status, 78);
}

#[test]
fn who_watches_until_a_signal() {
    for store in stores() {
        let mut watch = Started::new(&mut store.lockkit(&["who", "--watch", "a"]));
        assert_eq!(watch.line(), "\"a\" is free", "{}", store.url);
        let (mut hold, token) = store.hold(&["a"]);
        let line = watch.line();
        assert!(line.starts_with("\"a\" is held by host"), "{}: {line}", store.url);
        assert!(line.contains(&format!("token {token}")), "{}: {line}", store.url);
        hold.close_stdin();
        assert_eq!(hold.done().status, 0);
        assert_eq!(watch.line(), "\"a\" is free", "{}", store.url);
        watch.send(Signal::TERM);
        assert_eq!(watch.done().status, 143, "{}", store.url);
    }
}

#[test]
fn ls_shows_what_is_held_or_waited_for() {
    for store in stores() {
        assert_eq!(store.done(&["ls"]).stdout, "", "{}", store.url);
        let holds = ["orders/1", "orders/2", "odd\nname"].map(|name| store.hold(&[name]).0);
        let _waiter = Started::new(&mut store.lockkit(&["hold", "orders/2"]));
        // A folder does not show its waiters.
        let waiters = usize::from(!store.is_files());
        store.until_waiting("orders/2", waiters);
        let listed = store.done(&["ls"]);
        assert_eq!(listed.status, 0, "{}: {}", store.url, listed.stderr);
        let mut lines: Vec<&str> = listed.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["\"odd\\nname\"", "orders/1", "orders/2"], "{}", store.url);
        let long = store.done(&["ls", "-l", "orders/2"]).stdout;
        let pid = holds[1].pid().as_raw_nonzero();
        assert!(long.starts_with("orders/2: held by host") && long.contains(&format!("pid {pid}")), "{long}");
        assert_eq!(long.matches("; waiting: 1\n").count(), waiters, "{long}");
        let json = store.done(&["ls", "--json", "-l", "orders/"]).stdout;
        let objects = json.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let mut tokens: Vec<bool> = objects.map(|object| object["holder"]["token"].is_u64()).collect();
        tokens.dedup();
        assert_eq!(tokens, [true], "{json}");
    }
}

#[test]
fn break_ends_the_hold_and_names_the_next_one() {
    for store in stores().into_iter().filter(|store| !store.is_files()) {
        assert_eq!(store.done(&["break", "--yes", "a"]).status, 1, "{}", store.url);
        let (hold, token) = store.hold(&["--label", "stuck", "a"]);
        let mut next = Started::new(&mut store.lockkit(&["hold", "--label", "next one", "a"]));
        store.until_waiting("a", 1);
        let broken = store.done(&["break", "--yes", "a"]);
        assert_eq!(broken.status, 0, "{}: {}", store.url, broken.stderr);
        for part in ["label \"stuck\"", "next: host", "\nbroken; "] {
            assert!(broken.stdout.contains(part), "{}: {part}: {}", store.url, broken.stdout);
        }
        let is_audit = |warning: &&&str| warning.starts_with("lock broken (lock: \"a\"");
        assert_eq!(broken.warnings().iter().filter(is_audit).count(), 1, "{}", broken.stderr);
        let lost = hold.done();
        assert_eq!(lost.status, 76, "{}: {}", store.url, lost.stderr);
        let later: u64 = next.line().parse().unwrap();
        assert!(later > token, "{}", store.url);
    }
}

#[test]
fn break_without_a_terminal_must_be_confirmed_in_the_arguments() {
    let home = Home::new();
    let refused = done(home.lockkit(["break", "a"]));
    assert_eq!((refused.status, &*refused.stdout), (64, ""));
    assert!(refused.message().contains("--yes"), "{}", refused.stderr);
}

#[test]
fn break_asks_only_where_both_question_and_answer_are_at_the_terminal() {
    let home = Home::new();
    for redirected in ["2>log", "</dev/null"] {
        let script = format!("\"$LOCKKIT\" break a {redirected}; echo ended with $?");
        let mut terminal = Terminal::with_shell(&home, &script);
        terminal.shows("ended with 64");
    }
}

#[test]
fn lock_file_cannot_be_broken() {
    let home = Home::new();
    let _hold = Started::until_started(&mut home.run(&["a"], "echo started; exec sleep 1000"));
    let refused = done(home.lockkit(["break", "--yes", "a"]));
    assert_eq!(refused.status, 78);
    assert!(refused.message().contains("end its holder"), "{}", refused.stderr);
    assert!(refused.stdout.contains("\"a\" is held by host"), "{}", refused.stdout);
    assert!(refused.stdout.contains("\nwho waits for it cannot be seen"), "{}", refused.stdout);
    assert_eq!(done(home.lockkit(["who", "a"])).status, 0);
}

#[cfg(feature = "redis")]
#[test]
fn break_asks_at_a_terminal() {
    let redis = lockkit_testbed::Redis::start().unwrap();
    let home = Home::new();
    let start = || {
        let arguments = ["hold", "--backend", &redis.url(), "a"];
        let mut hold = Started::new(home.lockkit(arguments).stdin(Stdio::piped()));
        assert!(!hold.line().is_empty());
        hold
    };
    let mut hold = start();
    let script = format!("\"$LOCKKIT\" break --backend {} a; echo ended with $?", redis.url());
    for answer in ["n", "", "yup", "y"] {
        assert!(hold.runs());
        let mut terminal = Terminal::with_shell(&home, &script);
        terminal.shows("\"a\" is held by host");
        terminal.shows("break \"a\"? [y/N]");
        terminal.press(&format!("{answer}\n"));
        terminal.shows(if answer == "y" { "ended with 0" } else { "ended with 3" });
    }
    assert_eq!(hold.done().status, 76);
}
