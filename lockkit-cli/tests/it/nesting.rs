//! Nested `lockkit run`s.

use crate::harness::{Home, Started, done};

#[test]
fn nested_lock_of_the_same_name_is_refused_at_any_depth() {
    let home = Home::new();
    let inner = "\"$LOCKKIT\" run --timeout 10s a -- echo ran";
    let between = format!("\"$LOCKKIT\" run b -- sh -c '{inner}'");
    // The status for a lock that is not acquired in time is not that of a wrong use.
    let own_status = "\"$LOCKKIT\" run -E 9 --timeout 10s a -- echo ran";
    let hold = "\"$LOCKKIT\" hold --timeout 10s a";
    for script in [inner, &between, own_status, hold] {
        let nested = done(home.run(&["a"], script));
        assert_eq!((nested.status, &*nested.stdout), (64, ""));
        assert!(nested.message().contains("the enclosing `lockkit run` holds it"), "{}", nested.stderr);
    }
}

#[test]
fn another_path_to_the_same_folder_is_the_same_lock() {
    let home = Home::new();
    std::fs::create_dir_all(home.path("locks")).unwrap();
    std::os::unix::fs::symlink(home.path("locks"), home.path("link")).unwrap();
    let script = format!("\"$LOCKKIT\" run --backend file://{}/ a -- echo ran", home.path("link").display());
    assert_eq!(done(home.run(&["a"], &script)).status, 64);
}

#[test]
fn other_names_and_other_stores_nest() {
    let home = Home::new();
    let elsewhere =
        format!("\"$LOCKKIT\" run --backend file://{} a -- echo ran", home.path("other").display());
    for script in ["\"$LOCKKIT\" run b -- echo ran", &elsewhere] {
        let nested = done(home.run(&["a"], script));
        assert_eq!((nested.status, &*nested.stdout), (0, "ran\n"), "{}", nested.stderr);
    }
}

#[test]
fn daemon_may_take_the_lock_after_the_job_that_started_it() {
    let home = Home::new();
    let inherited = done(home.run(&["a"], "echo \"$LOCKKIT_HELD\"")).stdout;
    let again = |options: &[&str]| {
        let mut command = home.run(options, "echo ran");
        command.env("LOCKKIT_HELD", inherited.trim());
        done(command)
    };
    assert_eq!(again(&["a"]).status, 0);
    // Held by another process: an ordinary wait.
    let _holder = Started::until_started(&mut home.run(&["a"], "echo started; exec sleep 1000"));
    assert_eq!(again(&["--timeout", "1s", "a"]).status, 75);
}
