//! The configuration file.

use std::{fs, os::unix::fs::PermissionsExt};

use crate::harness::{Done, Home, done};

/// Writes the configuration file.
fn configure(home: &Home, text: &str) {
    fs::create_dir_all(home.path("config/lockkit")).unwrap();
    fs::write(home.path("config/lockkit/config.toml"), text).unwrap();
}

/// Runs a command without a store in its environment.
fn run(home: &Home, options: &[&str]) -> Done {
    let mut command = home.run(options, "echo ran");
    command.env_remove("LOCKKIT_BACKEND");
    done(command)
}

#[test]
fn the_file_names_the_store_if_nothing_else_does() {
    let home = Home::new();
    configure(&home, &format!("backend = \"{}\"\n", home.url("configured")));
    let configured = run(&home, &["a"]);
    assert_eq!((configured.status, &*configured.stderr), (0, ""));
    assert!(home.path("configured/a.lock").exists() && !home.path("state").exists());
    assert_eq!(run(&home, &["--backend", &home.url("argument"), "argument"]).status, 0);
    assert_eq!(done(home.run(&["variable"], "")).status, 0);
    assert_eq!(run(&home, &["--local", "local"]).status, 0);
    for (folder, name) in [("argument", "argument"), ("locks", "variable"), ("state/lockkit/locks", "local")]
    {
        assert!(home.path(folder).join(format!("{name}.lock")).exists(), "{name}");
    }
    assert_eq!(fs::read_dir(home.path("configured")).unwrap().flatten().filter(is_lock).count(), 1);
}

fn is_lock(entry: &fs::DirEntry) -> bool {
    entry.path().extension().is_some_and(|extension| extension == "lock")
}

#[test]
fn mistakes_in_the_file_stop_every_command() {
    let home = Home::new();
    configure(&home, "backends = \"file:///locks\"\n");
    for refused in [run(&home, &["a"]), done(home.run(&["a"], "echo ran")), done(home.lockkit(["who", "a"]))]
    {
        assert_eq!((refused.status, &*refused.stdout), (78, ""), "{}", refused.stderr);
        let message = refused.message();
        assert!(message.contains("config.toml: line 1") && message.contains("backends"), "{message}");
    }
    configure(&home, "backend = \"etcd://me:hunter2@127.0.0.1:1\"\n");
    fs::set_permissions(home.path("config/lockkit/config.toml"), fs::Permissions::from_mode(0o644)).unwrap();
    let refused = run(&home, &["a"]);
    assert_eq!((refused.status, &*refused.stdout), (78, ""), "{}", refused.stderr);
    assert!(
        refused.message().contains("chmod 600") && !refused.stderr.contains("hunter2"),
        "{}",
        refused.stderr
    );
}

#[cfg(feature = "redis")]
#[test]
fn password_file_and_ttl_of_the_file_are_used() {
    let home = Home::new();
    let redis = crate::harness::redis_with_password("hunter2");
    let url = redis.url().replace("redis://", "redis://default@");
    fs::create_dir_all(home.path("config/lockkit")).unwrap();
    fs::write(home.path("config/lockkit/secret"), "hunter2\n").unwrap();
    for (options, url, ttl) in [
        (&[][..], url.clone(), 47),
        (&[], format!("{url}?ttl=48s"), 48),
        (&["--ttl", "49"], format!("{url}?ttl=48s"), 49),
    ] {
        configure(&home, &format!("backend = \"{url}\"\npassword_file = \"secret\"\nttl = 47\n"));
        let ran = run(&home, &[&["-v"], options, &["a"]].concat());
        assert_eq!((ran.status, &*ran.stdout), (0, "ran\n"), "{}", ran.stderr);
        assert!(ran.stderr.contains(&format!("ttl: {ttl}s")), "{}", ran.stderr);
    }
    // The password of the variable counts before that of the file.
    let mut wrong = home.run(&["a"], "echo ran");
    wrong.env_remove("LOCKKIT_BACKEND").env("LOCKKIT_PASSWORD", "hunter3");
    assert_eq!(done(wrong).status, 77);
    // The file of the arguments counts before both.
    fs::write(home.path("wrong"), "hunter3\n").unwrap();
    assert_eq!(run(&home, &["--password-file", "wrong", "a"]).status, 77);
}
