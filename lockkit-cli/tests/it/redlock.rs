//! Independent Redis servers, which must be set up once.

use lockkit_testbed::RedisMasters;

use crate::harness::{Done, Home, done};

const NODE: &str = "lockkit:redlock";

/// New servers, and a folder.
struct Nodes {
    home: Home,
    masters: RedisMasters,
    url: String,
}

impl Nodes {
    fn start() -> Self {
        let masters = RedisMasters::start(3).unwrap();
        // All commands accept the options of a client.
        let url = format!("redlock://{}?ttl=10s&label=me", masters.endpoints());
        Self { home: Home::new(), masters, url }
    }

    fn init(&self) -> Done {
        done(self.home.lockkit(["init", &self.url]))
    }

    fn run(&self) -> Done {
        done(self.home.run(&["--backend", &self.url, "--timeout", "60s", "a"], "echo ran"))
    }

    fn marker(&self, node: usize) -> String {
        self.masters.node(node).cli(&["HGET", NODE, "marker"]).unwrap().text().to_owned()
    }

    fn set_marker(&self, node: usize, marker: &str) {
        self.masters.node(node).cli(&["HSET", NODE, "marker", marker]).unwrap();
    }
}

#[test]
fn new_nodes_are_set_up_once() {
    let nodes = Nodes::start();
    let refused = nodes.run();
    assert_eq!((refused.status, &*refused.stdout), (78, ""), "{}", refused.stderr);
    assert!(refused.message().contains("run `lockkit init URL` once"), "{}", refused.stderr);
    let first = nodes.init();
    assert_eq!((first.status, first.message()), (0, "lockkit: the store is set up"));
    let marker = nodes.marker(0);
    let second = nodes.init();
    assert_eq!(second.status, 0);
    assert!(second.message().contains("already set up"), "{}", second.stderr);
    assert_eq!(nodes.marker(0), marker);
    let ran = nodes.run();
    assert_eq!((ran.status, &*ran.stdout), (0, "ran\n"), "{}", ran.stderr);
}

#[test]
fn partly_set_up_store_is_refused_until_init_runs_again() {
    let nodes = Nodes::start();
    nodes.set_marker(0, "ready 60000 5f0c1d2e3b4a5968 1/3");
    nodes.set_marker(1, "preparing 60000 5f0c1d2e3b4a5968 2/3");
    nodes.set_marker(2, "preparing 60000 5f0c1d2e3b4a5968 3/3");
    let refused = nodes.run();
    assert_eq!((refused.status, &*refused.stdout), (78, ""), "{}", refused.stderr);
    assert!(refused.message().contains("run `lockkit init` again"), "{}", refused.stderr);
    assert_eq!(nodes.init().status, 0);
    assert_eq!(nodes.run().stdout, "ran\n");
}

#[test]
fn nodes_that_lost_their_data_are_not_set_up_again() {
    let nodes = Nodes::start();
    assert_eq!(nodes.init().status, 0);
    nodes.masters.node(1).cli(&["FLUSHALL"]).unwrap();
    let refused = nodes.init();
    assert_eq!(refused.status, 78, "{}", refused.stderr);
    assert!(refused.message().contains("1 of 3 nodes have lost their data"), "{}", refused.stderr);
    assert_eq!(nodes.marker(1), "");
    // The other two nodes are enough.
    assert_eq!(nodes.run().stdout, "ran\n");
}

#[test]
fn every_node_must_be_reached() {
    let mut nodes = Nodes::start();
    nodes.masters.node_mut(2).kill().unwrap();
    let refused = nodes.init();
    assert_eq!(refused.status, 69, "{}", refused.stderr);
    assert!(refused.message().contains(&nodes.masters.node(2).endpoint()), "{}", refused.stderr);
    assert_eq!((nodes.marker(0), nodes.marker(1)), (String::new(), String::new()));
}

#[test]
fn nodes_outside_the_set_are_refused() {
    let nodes = Nodes::start();
    assert_eq!(nodes.init().status, 0);
    let more = RedisMasters::start(2).unwrap();
    let url = format!("redlock://{},{}", nodes.masters.endpoints(), more.endpoints());
    for refused in [
        done(nodes.home.lockkit(["init", &url])),
        done(nodes.home.run(&["--backend", &url, "a"], "echo ran")),
        done(nodes.home.lockkit(["who", "--backend", &url, "a"])),
    ] {
        assert_eq!((refused.status, &*refused.stdout), (78, ""), "{}", refused.stderr);
        assert!(refused.message().contains("the set has 3 nodes"), "{}", refused.stderr);
    }
}

#[test]
fn init_of_a_store_without_set_up_is_refused() {
    let home = Home::new();
    let refused = done(home.lockkit(["init", "redis://127.0.0.1:1"]));
    assert_eq!(refused.status, 64);
    assert!(refused.message().contains("needs no set-up"), "{}", refused.stderr);
}

#[test]
fn init_uses_the_password_file() {
    let nodes = Nodes::start();
    for node in 0..3 {
        nodes.masters.node(node).cli(&["CONFIG", "SET", "requirepass", "hunter2"]).unwrap();
    }
    std::fs::write(nodes.home.path("password"), "hunter2\n").unwrap();
    let url = nodes.url.replace("redlock://", "redlock://default@");
    let set_up = done(nodes.home.lockkit(["init", "--password-file", "password", &url]));
    assert_eq!((set_up.status, set_up.message()), (0, "lockkit: the store is set up"));
}
