//! Signals to `lockkit run`.

use rustix::process::Signal;

use lockkit_testbed::eventually;

use crate::{
    harness::{Home, Started, done},
    processes::{blocks_all_signals, command_of},
};

#[test]
fn signals_are_forwarded_to_the_whole_group() {
    let home = Home::new();
    let signals = [
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("ALRM", Signal::ALARM),
        ("TERM", Signal::TERM),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("WINCH", Signal::WINCH),
    ];
    let traps: String =
        signals.iter().map(|(name, _)| format!("trap 'echo $role {name}' {name}; ")).collect();
    // A background child of a non-interactive shell is started with INT and QUIT ignored, which a shell cannot trap.
    let script = format!(
        "role=leader; {traps} (role=member; {traps} echo ready; while :; do sleep 0.01; done) & \
         echo ready; while :; do sleep 0.01; done"
    );
    let mut lockkit = Started::new(&mut home.run(&["a"], &script));
    assert_eq!([lockkit.line(), lockkit.line()], ["ready", "ready"]);
    for (name, signal) in signals {
        lockkit.send(signal);
        let expected = if matches!(name, "INT" | "QUIT") { 1 } else { 2 };
        let mut received: Vec<String> = (0..expected).map(|_| lockkit.line()).collect();
        received.sort();
        let both = [format!("leader {name}"), format!("member {name}")];
        assert_eq!(received, both[..expected]);
    }
    let group = command_of(lockkit.pid()).group;
    rustix::process::kill_process_group(rustix::process::Pid::from_raw(group).unwrap(), Signal::KILL)
        .unwrap();
    assert_eq!(lockkit.done().status, 137);
}

#[test]
fn signal_that_ends_the_command_is_lockkits_status() {
    let home = Home::new();
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::USR1, 138)] {
        let lockkit = Started::until_started(&mut home.run(&["a"], "echo started; exec sleep 1000"));
        lockkit.send(signal);
        assert_eq!(lockkit.done().status, status);
    }
}

#[test]
fn stopped_job_can_be_ended() {
    let home = Home::new();
    for (signal, status) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let lockkit =
            Started::until_started(&mut home.run(&["a"], "echo started; kill -STOP $$; echo continued"));
        eventually("the stop", || (command_of(lockkit.pid()).state == 'T').then_some(()));
        lockkit.send(signal);
        let ended = lockkit.done();
        assert_eq!((ended.status, &*ended.stdout), (status, ""));
    }
}

#[test]
fn signal_ends_the_wait_and_leaves_nothing() {
    let home = Home::new();
    let holder = Started::until_started(&mut home.run(&["a"], "echo started; exec sleep 1000"));
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)]
    {
        // Quiet: on a busy machine it waits for long enough to say for whom.
        let waiter = Started::new(&mut home.run(&["-q", "a"], "echo ran"));
        eventually("the handlers", || handles(&waiter, Signal::TERM).then_some(()));
        waiter.send(signal);
        let ended = waiter.done();
        assert_eq!((ended.status, &*ended.stdout), (status, ""));
        assert!(ended.message().contains("wait"));
    }
    drop(holder);
    assert_eq!(done(home.run(&["a"], "exit 0")).status, 0);
}

#[test]
fn ignored_signals_stay_ignored() {
    let home = Home::new();
    let mut shell = home.command("sh");
    let job = "grep SigIgn /proc/self/status; echo started; read line";
    shell.args(["-c", &format!("trap '' HUP; exec \"$LOCKKIT\" run a -- sh -c '{job}'")]);
    shell.stdin(std::process::Stdio::piped());
    let mut lockkit = Started::new(&mut shell);
    let ignored = lockkit.line();
    let ignored = u64::from_str_radix(ignored.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(ignored & 1, 1, "SIGHUP");
    assert_eq!(lockkit.line(), "started");
    lockkit.send(Signal::HUP);
    lockkit.close_stdin();
    assert_eq!(lockkit.done().status, 1, "read found the end of its input; no signal has ended it");
}

/// Signals are the main thread's. One that blocks the signals of the terminal can use it from the background.
#[test]
fn threads_that_read_and_write_leave_signals_alone() {
    let home = Home::new();
    let mut hold = Started::new(home.lockkit(["hold", "a"]).stdin(std::process::Stdio::piped()));
    assert!(!hold.line().is_empty());
    for name in ["lockkit-log", "lockkit-input"] {
        eventually("the thread", || {
            let tasks = format!("{}/task", hold.pid().as_raw_nonzero());
            let mut tasks = std::fs::read_dir(format!("/proc/{tasks}"))
                .unwrap()
                .map(|task| format!("{tasks}/{}", task.unwrap().file_name().to_str().unwrap()));
            let thread = tasks.find(|task| {
                std::fs::read_to_string(format!("/proc/{task}/comm")).is_ok_and(|comm| comm.trim() == name)
            })?;
            blocks_all_signals(&thread).then_some(())
        });
    }
}

/// Whether the process has a handler for this signal.
fn handles(process: &Started, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid().as_raw_nonzero())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
    u64::from_str_radix(&mask, 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
}
