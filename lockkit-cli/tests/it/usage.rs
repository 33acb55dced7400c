//! What the program says about mistakes, and what it prints besides.

use std::{
    fs::File,
    process::{Command, Output, Stdio},
};

use crate::harness::{Home, Started, done};

#[test]
fn missing_command_is_named_and_the_commands_are_shown() {
    let home = Home::new();
    let alone = done(home.lockkit::<&str>([]));
    assert_eq!((alone.status, &*alone.stdout), (64, ""));
    assert!(alone.stderr.starts_with("lockkit: a command is missing\n"), "{}", alone.stderr);
    for command in ["run", "hold", "who", "ls", "break", "doctor", "init", "completions", "man"] {
        assert!(alone.stderr.contains(&format!("\n  {command} ")), "{command}: {}", alone.stderr);
    }
    assert!(!alone.stderr.contains("watch-group"), "{}", alone.stderr);
}

#[test]
fn tips_say_what_may_be_meant() {
    let home = Home::new();
    let locks = home.path("locks").display().to_string();
    for (arguments, status, tip) in [
        (&["run", "a", "echo", "ran"][..], 64, "`--` is missing"),
        (&["rum", "a", "--", "true"], 64, "'run'"),
        (&["who", "--backend", &locks, "a"], 78, &*format!("did you mean file://{locks}?")),
        (&["who", "--backend", "locks", "a"], 78, "such as etcd://host:2379"),
        (&["init", &home.url("locks")], 64, "file: needs no set-up"),
        (&["init", "tape://h"], 78, "there is no backend"),
        (&["man", "sing"], 64, "no command \"sing\""),
    ] {
        let refused = done(home.lockkit(arguments));
        assert_eq!((refused.status, &*refused.stdout), (status, ""), "{}", refused.stderr);
        assert!(refused.message().contains(tip), "{}", refused.stderr);
    }
}

#[cfg(feature = "redis")]
#[test]
fn missing_login_is_explained() {
    let home = Home::new();
    let redis = crate::harness::redis_with_password("hunter2");
    let who = |url: &str, variable: &str| {
        let mut command = home.lockkit(["who", "--backend", url, "a"]);
        command.env("LOCKKIT_PASSWORD", variable);
        done(command)
    };
    let refused = who(&redis.url(), "hunter2");
    assert_eq!(refused.status, 77, "{}", refused.stderr);
    assert!(refused.message().contains("LOCKKIT_PASSWORD is not used"), "{}", refused.stderr);
    assert!(refused.message().contains("write redis://default@HOST"), "{}", refused.stderr);
    let refused = who(&redis.url(), "");
    assert!(refused.status == 77 && refused.message().contains("set LOCKKIT_PASSWORD"), "{}", refused.stderr);
    let named = redis.url().replace("redis://", "redis://default@");
    assert_eq!(who(&named, "hunter2").stdout, "\"a\" is free\n");
    let wrong = who(&named, "hunter3");
    assert!(wrong.status == 77 && !wrong.message().contains("LOCKKIT_PASSWORD"), "{}", wrong.stderr);
}

#[cfg(feature = "redis")]
#[test]
fn password_of_the_url_is_not_replaced_by_that_of_the_variable() {
    let home = Home::new();
    let redis = crate::harness::redis_with_password("hunter2");
    let mut who = home.lockkit(["who", "a"]);
    let url = redis.url().replace("redis://", "redis://default:hunter2@");
    who.env("LOCKKIT_BACKEND", url).env("LOCKKIT_PASSWORD", "hunter3");
    let found = done(who);
    assert_eq!(found.stdout, "\"a\" is free\n", "{}", found.stderr);
}

/// Commands whose result is text.
const PRINTING: [&[&str]; 4] = [&["who", "a"], &["completions", "bash"], &["man"], &["hold", "b"]];

/// Runs a command whose result goes there, and whose input has ended.
fn with_stdout(mut command: Command, stdout: impl Into<Stdio>) -> Output {
    let child = command.stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn broken_pipe_ends_the_program_in_silence() {
    let home = Home::new();
    let _holder = Started::until_started(&mut home.run(&["a"], "echo started; exec sleep 1000"));
    for arguments in PRINTING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = with_stdout(home.lockkit(arguments), writer);
        // As of a program that SIGPIPE has ended.
        assert_eq!((ended.status.code(), &*ended.stderr), (Some(141), &b""[..]), "{arguments:?}");
    }
}

#[test]
fn result_that_cannot_be_written_is_71() {
    let home = Home::new();
    let _holder = Started::until_started(&mut home.run(&["a"], "echo started; exec sleep 1000"));
    for arguments in PRINTING {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = with_stdout(home.lockkit(arguments), full);
        let message = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(71), "{arguments:?}: {message}");
        assert!(message.contains("cannot write the result"), "{arguments:?}: {message}");
    }
}

#[test]
fn completions_and_manual_are_those_of_the_program() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = done(home.lockkit(["completions", shell]));
        assert_eq!((script.status, &*script.stderr), (0, ""));
        assert!(script.stdout.contains("max-hold") && script.stdout.contains("quiet"), "{shell}");
        assert!(!script.stdout.contains("exec-at-gate"), "{shell}");
    }
    std::fs::write(home.path("completions"), done(home.lockkit(["completions", "bash"])).stdout).unwrap();
    let mut shell = home.command("bash");
    shell.args(["--norc", "-c", "source ./completions && complete -p lockkit"]);
    assert!(done(shell).stdout.contains("lockkit"));

    let page = done(home.lockkit(["man"])).stdout;
    assert!(page.starts_with(".ie") && page.contains(".TH lockkit 1") && page.contains("break"), "{page}");
    let page = done(home.lockkit(["man", "run"])).stdout;
    assert!(page.contains(".TH lockkit-run 1") && page.contains("\\-\\-max\\-hold"), "{page}");
}
