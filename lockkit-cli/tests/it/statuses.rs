//! Exit statuses and messages.

use crate::harness::{Home, Started, done};

#[test]
fn the_status_is_that_of_the_command() {
    let home = Home::new();
    for status in [0, 3, 255] {
        let run = done(home.run(&["a"], &format!("exit {status}")));
        assert_eq!((run.status, &*run.stderr), (status, ""));
    }
}

#[test]
fn signal_that_ends_the_command_is_128_plus_its_number() {
    let home = Home::new();
    // 40 is a real-time signal: it has no name in most tables.
    for signal in [1, 9, 15, 40] {
        assert_eq!(done(home.run(&["a"], &format!("kill -{signal} $$"))).status, 128 + signal);
    }
}

#[test]
fn command_that_cannot_run_is_126_or_127() {
    let home = Home::new();
    let missing = done(home.lockkit(["run", "a", "--", "no-such-command"]));
    assert_eq!(missing.status, 127);
    assert!(missing.message().contains("no-such-command"));
    let odd = done(home.lockkit(["run", "a", "--", "no\nsuch"]));
    assert!(odd.status == 127 && odd.message().contains("no such"), "one line: {}", odd.stderr);
    std::fs::write(home.path("plain"), "").unwrap();
    let plain = done(home.lockkit(["run", "a", "--", "./plain"]));
    assert_eq!(plain.status, 126);
    assert!(plain.message().contains("./plain"));
}

#[test]
fn the_command_knows_its_lock_and_a_rising_token() {
    let home = Home::new();
    let tokens = [(); 3].map(|()| {
        let run = done(home.run(&["orders/42 ü"], "echo \"$LOCKKIT_NAME=$LOCKKIT_TOKEN\""));
        run.stdout.trim().strip_prefix("orders/42 ü=").unwrap().parse::<u64>().unwrap()
    });
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

#[test]
fn lock_not_acquired_in_time_is_75_and_names_its_holder() {
    let home = Home::new();
    let holder = Started::until_started(
        &mut home.run(&["--label", "nightly backup", "a"], "echo started; exec sleep 1000"),
    );
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    // Long enough for an answer of the store on a busy machine. Quiet, because waiters say for whom they wait.
    for options in [&["--timeout", "0s"][..], &["-q", "--timeout", "5s"]] {
        let late = done(home.run(&[options, &["a"]].concat(), "echo ran"));
        assert_eq!((late.status, &*late.stdout), (75, ""));
        let message = late.message();
        for part in
            [&host, &format!("pid {}", holder.pid().as_raw_nonzero()), "\"nightly backup\"", "since 20"]
        {
            assert!(message.contains(part), "{part:?} in {message:?}");
        }
    }
}

#[test]
fn who_shows_the_holder_as_text_and_json() {
    let home = Home::new();
    let free = done(home.lockkit(["who", "a"]));
    assert_eq!((free.status, &*free.stdout), (1, "\"a\" is free\n"));
    let holder =
        Started::until_started(&mut home.run(&["--label", "x", "a"], "echo started; exec sleep 1000"));
    let pid = holder.pid().as_raw_nonzero().get();
    let text = done(home.lockkit(["who", "a"])).stdout;
    assert!(text.contains(&format!("pid {pid}")) && text.contains("label \"x\""), "{text}");
    let json = done(home.lockkit(["who", "a", "--json"])).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["name"], &json["holder"]["pid"]), (&"a".into(), &pid.into()));
    assert!(json["holder"]["token"].as_u64().unwrap() > 0);
    assert_eq!(json["waiters"], serde_json::json!([]));
}

#[test]
fn wrong_arguments_get_one_line_and_the_command_does_not_run() {
    let home = Home::new();
    let mebibyte = "x".repeat(100_000);
    let cases: &[(&[&str], i32)] = &[
        (&["run", "a"], 64),
        (&["run", "a", "echo", "ran"], 64),
        (&["run", "--timeout", "soon", "a", "--", "echo", "ran"], 64),
        (&["run", "--ttl", "0s", "a", "--", "echo", "ran"], 78),
        (&["run", "", "--", "echo", "ran"], 64),
        (&["run", &mebibyte, "--", "echo", "ran"], 64),
        (&["run", "--backend", "tape:", "a", "--", "echo", "ran"], 78),
        (&["run", "--backend", "no url", "a", "--", "echo", "ran"], 78),
        (&["run", "--backend", "file:///dev/null/x", "a", "--", "echo", "ran"], 78),
        (&["run", "--label", &mebibyte, "a", "--", "echo", "ran"], 78),
        (&["who"], 64),
        (&["sing"], 64),
    ];
    for (arguments, status) in cases {
        let refused = done(home.lockkit(*arguments));
        assert_eq!(
            (refused.status, &*refused.stdout),
            (*status, ""),
            "{arguments:.100?}: {}",
            refused.stderr
        );
        assert!(refused.message().len() < 500, "{arguments:.100?}");
    }
}

#[test]
fn help_says_what_the_lock_does_not_protect() {
    let home = Home::new();
    let help = done(home.lockkit(["run", "--help"]));
    assert_eq!(help.status, 0);
    let text = help.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["leave the group", "76: lock lost", "LOCKKIT_TOKEN", "--password-file", "LOCKKIT_BACKEND"] {
        assert!(text.contains(part), "{part}");
    }
    assert!(!text.contains("watch-group"));
}

#[test]
fn odd_names_are_locks_of_their_own() {
    let home = Home::new();
    let names = ["/", "..", "{}", "🔒", "a\nb", "a", "a/b", "A", "%2F"];
    let holders =
        names.map(|name| Started::until_started(&mut home.run(&[name], "echo started; exec sleep 1000")));
    for name in names {
        assert_eq!(done(home.run(&["--timeout", "0s", name], "")).status, 75, "{name:?}");
    }
    drop(holders);
}
