//! Which store is used, and that none is used in silence.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::Path,
    process::Command,
};

use crate::harness::{Done, Home, done};

/// Returns the command without a store in its environment.
fn unset(mut command: Command) -> Command {
    command.env_remove("LOCKKIT_BACKEND");
    command
}

fn with_store(mut command: Command, url: &str) -> Command {
    command.env("LOCKKIT_BACKEND", url);
    command
}

#[test]
fn the_argument_wins_over_the_environment_and_both_over_the_default() {
    let home = Home::new();
    let by_variable = done(with_store(home.run(&["a"], "exit 0"), &home.url("variable")));
    assert_eq!((by_variable.status, &*by_variable.stderr), (0, ""));
    assert!(home.path("variable").is_dir() && !home.path("state").exists());
    let both = home.run(&["--backend", &home.url("argument"), "a"], "exit 0");
    let both = done(with_store(both, &home.url("variable2")));
    assert_eq!((both.status, &*both.stderr), (0, ""));
    assert!(home.path("argument").is_dir() && !home.path("variable2").exists());
    assert_eq!(done(unset(home.run(&["a"], "exit 0"))).status, 0);
    let folder = std::fs::metadata(home.path("state/lockkit/locks")).unwrap();
    assert_eq!((folder.is_dir(), folder.permissions().mode() & 0o777), (true, 0o700), "for its user only");
}

#[test]
fn the_default_store_is_named_by_every_command_unless_it_is_asked_for() {
    let home = Home::new();
    for arguments in [&["run", "a", "--", "true"][..], &["who", "a"]] {
        let done = done(unset(home.lockkit(arguments)));
        assert_names_default(&done, &home.path("state/lockkit/locks"));
    }
    let empty = done(with_store(home.run(&["a"], "exit 0"), ""));
    assert_names_default(&empty, &home.path("state/lockkit/locks"));

    let asked = done(unset(home.run(&["--local", "a"], "exit 0")));
    assert_eq!((asked.status, &*asked.stderr), (0, ""));
    let asked = done(home.run(&["--local", "a"], "exit 0"));
    assert_eq!((asked.status, &*asked.stderr), (0, ""), "whatever the environment says");
    assert!(!home.path("locks").exists());
    let both = done(home.run(&["--local", "--backend", &home.url("other"), "a"], "echo ran"));
    assert_eq!((both.status, &*both.stdout), (64, ""));
}

/// Asserts that the only message is a warning that names the lock folder, and how to name a store.
fn assert_names_default(done: &Done, folder: &Path) {
    let warnings = done.warnings();
    assert_eq!((warnings.len(), done.stderr.lines().count()), (1, 1), "{}", done.stderr);
    for part in ["this host only", folder.to_str().unwrap(), "LOCKKIT_BACKEND", "--local"] {
        assert!(warnings[0].contains(part), "{part}: {warnings:?}");
    }
}

#[test]
fn memory_is_refused_wherever_it_is_named() {
    let home = Home::new();
    for url in ["memory:", "memory:jobs", "MEMORY:"] {
        for refused in [
            done(home.run(&["--backend", url, "a"], "echo ran")),
            done(home.lockkit(["who", "--backend", url, "a"])),
            done(with_store(home.run(&["a"], "echo ran"), url)),
        ] {
            assert_eq!((refused.status, &*refused.stdout), (64, ""), "{url}: {}", refused.stderr);
            assert!(refused.message().contains("no other process"), "{}", refused.stderr);
        }
    }
}

/// As cron starts jobs on some systems, and as a service without settings does.
#[test]
fn empty_environment_uses_the_home_of_the_user_database() {
    let home = Home::new();
    let mut command = unset(home.lockkit(["who", "test-of-lockkit"]));
    command.env_clear().env("PATH", "/usr/bin:/bin");
    let found = done(command);
    let of_user = of_user_database(rustix::process::geteuid().as_raw());
    assert_eq!(found.stdout, "\"test-of-lockkit\" is free\n", "{}", found.stderr);
    assert_names_default(&found, &Path::new(&of_user).join(".local/state/lockkit/locks"));
}

/// Returns the home folder of a user.
fn of_user_database(id: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let user = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    user.into_iter().find(|fields| fields[2] == id.to_string()).unwrap()[5].to_owned()
}

#[test]
fn variable_that_is_no_text_is_not_passed_over() {
    for variable in ["LOCKKIT_BACKEND", "LOCKKIT_PASSWORD"] {
        let home = Home::new();
        let mut command = home.run(&["--backend", "etcd://me@127.0.0.1:1", "-n", "a"], "echo ran");
        command.env(variable, OsStr::from_bytes(b"file:///locks\xff"));
        let refused = done(command);
        assert_eq!((refused.status, &*refused.stdout), (78, ""), "{}", refused.stderr);
        assert!(refused.message().contains(&format!("{variable} is not valid UTF-8")), "{}", refused.stderr);
    }
}

#[test]
fn own_folder_may_have_characters_that_mean_something_in_a_url() {
    let home = Home::new();
    let state = home.path("50%41 ?#ü");
    let mut command = home.run(&["--local", "a"], "exit 0");
    command.env("XDG_STATE_HOME", &state);
    let ran = done(command);
    assert_eq!((ran.status, &*ran.stderr), (0, ""));
    assert!(state.join("lockkit/locks/a.lock").exists());
}

#[test]
fn own_folder_is_not_one_of_the_current_folder() {
    let home = Home::new();
    let mut command = home.run(&["--local", "a"], "echo ran");
    command.env_remove("XDG_STATE_HOME").env("HOME", "here");
    let refused = done(command);
    assert_eq!((refused.status, &*refused.stdout), (78, ""), "{}", refused.stderr);
    assert!(refused.message().contains("is relative"), "{}", refused.stderr);
    assert!(!home.path("here").exists());
}
