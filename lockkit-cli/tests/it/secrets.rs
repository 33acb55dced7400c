//! Passwords do not leak.

use lockkit_testbed::eventually;

use crate::{
    harness::{Home, Started, done},
    processes::{alive, command_of, watcher_of},
};

const SECRET: &str = "hunter2-but-longer";

/// A password that a test does put into arguments; other tests search all arguments of this machine for [`SECRET`].
const EXPOSED: &str = "typed-in-haste";

#[test]
fn password_in_the_arguments_is_refused_and_not_repeated() {
    let home = Home::new();
    for url in [format!("etcd://me:{EXPOSED}@127.0.0.1:1"), format!("etcd://me:{EXPOSED}@127.0.0.1:port")] {
        for arguments in [
            &["run", "--backend", &url, "a", "--", "true"][..],
            &["who", "--backend", &url, "a"],
            &["who", &url],
            &["run", &url, "--", "true"],
        ] {
            let refused = done(home.lockkit(arguments));
            assert_eq!(refused.status, 64);
            assert!(refused.message().contains("--password-file"));
            assert!(!refused.stderr.contains(EXPOSED));
        }
    }
}

#[test]
fn messages_do_not_repeat_the_url_of_the_environment() {
    let home = Home::new();
    for url in [
        format!("tape://me:{SECRET}@h"),
        format!("etcd://me:{SECRET}@h:port"),
        format!("file://me:{SECRET}@h/locks"),
        format!("redis+sentinel:s1,s2/main?sentinel_password={SECRET}"),
        format!("redis:h?password={SECRET}"),
    ] {
        let mut command = home.run(&["a"], "echo ran");
        command.env("LOCKKIT_BACKEND", &url);
        let refused = done(command);
        assert_eq!((refused.status, &*refused.stdout), (78, ""), "{}", refused.stderr);
        assert!(!refused.message().contains(SECRET), "{}", refused.stderr);
    }
}

#[test]
fn neither_command_nor_watcher_nor_any_process_list_has_the_password() {
    let home = Home::new();
    let mut command = home.run(&["a"], "echo started; exec sleep 1000");
    let lockkit = Started::until_started(command.env("LOCKKIT_PASSWORD", SECRET));
    assert_no_leak(&lockkit);
}

/// Without a URL, the inner call would lock in another store.
#[test]
fn nested_call_gets_the_url_of_the_environment_without_its_password() {
    let home = Home::new();
    let script = "echo \"$LOCKKIT_BACKEND\"; \"$LOCKKIT\" run b -- echo ran; echo $?";
    let mut command = home.run(&["--local", "a"], script);
    command.env("LOCKKIT_BACKEND", format!("etcd://me:{SECRET}@127.0.0.1:1/app?ttl=3s"));
    let ran = done(command);
    assert_eq!(ran.stdout, "etcd://me@127.0.0.1:1/app?ttl=3s\n78\n", "{}", ran.stderr);
}

/// Asserts that only `lockkit run` has the password.
pub(crate) fn assert_no_leak(lockkit: &Started) {
    let holds = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(SECRET);
    // A process has none while it executes another program, as the shell of the tests does after its first line.
    let environment = eventually("the environment of the command", || {
        Some(command_of(lockkit.pid()).environment()).filter(|environment| !environment.is_empty())
    });
    assert!(!holds(&environment));
    assert_eq!(watcher_of(lockkit.pid()).unwrap().environment(), b"");
    for process in alive() {
        assert!(!process.arguments().contains(SECRET), "{process:?}");
    }
}
