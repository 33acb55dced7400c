//! Jobs at a terminal.

use std::{
    ffi::OsStr,
    fs::File,
    io::{Read, Write},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use lockkit_testbed::HANG;

use crate::harness::Home;

/// The key that interrupts the foreground job.
const CTRL_C: &str = "\u{3}";
/// The key that stops the foreground job.
const CTRL_Z: &str = "\u{1a}";

/// A job that reads the terminal. Its quotes distinguish its output from the terminal's echo of the script.
const READER: &str = "echo sta\"\"rted; read line; echo g\"\"ot $line";

/// Prints whether it is in the foreground of its terminal (proc_pid_stat(5): pgrp, tpgid).
const FOREGROUND: &str = "cut -d \" \" -f 5,8 /proc/self/stat | (read group foreground; \
                          [ $group = $foreground ] && echo foreground || echo background)";

/// A terminal with a program that leads its session.
pub(crate) struct Terminal {
    program: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    pub(crate) fn with<A: AsRef<OsStr>>(home: &Home, arguments: impl IntoIterator<Item = A>) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let path = ptsname(&keys, Vec::new()).unwrap();
        let side = File::options().read(true).write(true).open(OsStr::from_bytes(path.to_bytes())).unwrap();
        let stdio = || Stdio::from(OwnedFd::from(side.try_clone().unwrap()));
        let mut session: Command = home.command("setsid");
        session.args(["--ctty", "--wait"]).args(arguments).env("PS1", "$ ");
        let program = session.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        let keys = File::from(keys);
        let (mut reader, (sender, screen)) = (keys.try_clone().unwrap(), channel());
        thread::spawn(move || {
            let mut buffer = [0; 1024];
            // An error: the last program at the terminal has ended.
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { program, keys, screen, seen: String::new() }
    }

    /// A shell without job control, which stays until the enter key is pressed: when the leader of a session ends, the
    /// terminal drops what is not on the screen yet.
    pub(crate) fn with_shell(home: &Home, script: &str) -> Self {
        let script = format!("trap : INT; {script}\nstatus=$?; read enter; exit $status");
        Self::with(home, ["sh", "-c", &script])
    }

    /// A shell with job control that has shown its prompt.
    fn with_prompt(home: &Home) -> Self {
        let mut terminal = Self::with(home, ["bash", "--norc", "--noprofile", "-i"]);
        terminal.shows("$ ");
        terminal
    }

    /// Starts `lockkit run` of a script without single quotes.
    fn with_lockkit(home: &Home, script: &str) -> Self {
        Self::with_shell(home, &format!("\"$LOCKKIT\" run a -- sh -c '{script}'"))
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen shows a text, and discards the output up to it.
    pub(crate) fn shows(&mut self, text: &str) {
        while !self.seen.contains(text) {
            let more = self.screen.recv_timeout(HANG);
            let more = more.unwrap_or_else(|_| panic!("no {text:?} on the screen: {:?}", self.seen));
            self.seen += &String::from_utf8_lossy(&more);
        }
        self.seen = self.seen.split_once(text).unwrap().1.to_owned();
    }

    /// Checks that the [`READER`] in the foreground reads a line, and that the shell gets the next one.
    fn reads_a_line(mut self) {
        self.press("hello\n");
        self.shows("got hello");
        self.press("exit 6\n");
        assert_eq!(self.status(), 6);
    }

    /// Ends the session.
    pub(crate) fn status(mut self) -> i32 {
        // An interactive shell may have ended already.
        let _ = self.keys.write_all(b"\n");
        self.program.wait().unwrap().code().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

#[test]
fn job_is_in_the_foreground_and_gets_the_keys() {
    let home = Home::new();
    let mut terminal = Terminal::with_lockkit(&home, &format!("{FOREGROUND}; {READER}; exit 5"));
    terminal.shows("foreground");
    terminal.shows("started");
    terminal.press("hello\n");
    terminal.shows("got hello");
    assert_eq!(terminal.status(), 5);
}

#[test]
fn interrupt_key_reaches_the_job() {
    let home = Home::new();
    let mut terminal =
        Terminal::with_lockkit(&home, "trap \"echo interrupted; exit 4\" INT; echo started; read line");
    terminal.shows("started");
    terminal.press(CTRL_C);
    terminal.shows("interrupted");
    assert_eq!(terminal.status(), 4);
}

#[test]
fn the_terminal_is_given_back() {
    let home = Home::new();
    let script =
        format!("\"$LOCKKIT\" run a -- true; {FOREGROUND}; \"$LOCKKIT\" run a -- nothing; {FOREGROUND}");
    let mut terminal = Terminal::with_shell(&home, &script);
    terminal.shows("foreground");
    terminal.shows("nothing: No such file");
    terminal.shows("foreground");
    assert_eq!(terminal.status(), 0);
}

#[test]
fn terminal_stays_with_pipeline_neighbours_until_the_job_asks_for_it() {
    let home = Home::new();
    let job = "echo started; until [ -e enough ]; do sleep 0.01; done";
    let quiet =
        format!("\"$LOCKKIT\" run a -- sh -c '{job}' | (read started; {FOREGROUND}; touch enough; cat)");
    let mut terminal = Terminal::with_shell(&home, &quiet);
    terminal.shows("foreground");
    assert_eq!(terminal.status(), 0);

    let mut terminal = Terminal::with_shell(&home, &format!("\"$LOCKKIT\" run a -- sh -c '{READER}' | cat"));
    terminal.shows("started");
    terminal.press("hello\n");
    terminal.shows("got hello");
    assert_eq!(terminal.status(), 0);
}

/// Changing the modes of the terminal needs it, as reading does.
#[test]
fn job_that_changes_the_terminal_gets_it() {
    let home = Home::new();
    let job = "stty -echo </dev/tty; echo chan\"\"ged";
    let mut terminal = Terminal::with_shell(&home, &format!("\"$LOCKKIT\" run a -- sh -c '{job}' | cat"));
    terminal.shows("changed");
    assert_eq!(terminal.status(), 0);
}

#[test]
fn interrupt_key_is_forwarded_if_the_job_lacks_the_terminal() {
    let home = Home::new();
    let job = "trap \"echo interrupted; exit 4\" INT; echo started; while :; do sleep 0.01; done";
    let mut terminal =
        Terminal::with_shell(&home, &format!("\"$LOCKKIT\" run a -- sh -c '{job}' | (trap \"\" INT; cat)"));
    terminal.shows("started");
    terminal.press(CTRL_C);
    terminal.shows("interrupted");
}

#[test]
fn shell_stops_and_continues_lockkit_and_its_job_as_one() {
    let home = Home::new();
    let mut terminal = Terminal::with_prompt(&home);
    terminal.press(&format!("\"$LOCKKIT\" run a -- sh -c '{READER}'\n"));
    terminal.shows("started");
    terminal.press(CTRL_Z);
    terminal.shows("Stopped");
    terminal.press("\"$LOCKKIT\" run --timeout 0s a -- true; echo st\"\"atus $?\n");
    terminal.shows("status 75");
    // In the background the job stops again when it asks for the terminal.
    terminal.press("bg\n");
    terminal.press("wait %1; echo wai\"\"ted\n");
    terminal.shows("waited");
    terminal.press("fg\n");
    terminal.reads_a_line();
}

/// As a debugger does. The shell takes the terminal then.
#[test]
fn job_gets_the_terminal_again_after_its_program_alone_was_stopped() {
    let home = Home::new();
    let mut terminal = Terminal::with_prompt(&home);
    let stops = "kill -STOP $PPID; until [ -e seen ]; do sleep 0.1; done";
    terminal.press(&format!("\"$LOCKKIT\" run a -- sh -c '{stops}; {READER}'\n"));
    terminal.shows("Stopped");
    terminal.press("touch seen\n");
    terminal.press("fg\n");
    terminal.shows("started");
    terminal.reads_a_line();
}

/// A program that is stopped prints nothing.
#[cfg(feature = "redis")]
#[test]
fn program_that_stops_says_first_until_when() {
    let home = Home::new();
    let redis = lockkit_testbed::Redis::start().unwrap();
    let mut terminal = Terminal::with_prompt(&home);
    terminal.press(&format!("\"$LOCKKIT\" run --backend {} a -- sh -c '{READER}'\n", redis.url()));
    terminal.shows("started");
    terminal.press(CTRL_Z);
    terminal.shows("continue it (fg) within");
    terminal.shows("Stopped");
    terminal.press("fg\n");
    terminal.reads_a_line();
}

#[test]
fn job_is_not_left_stopped_without_a_shell_to_continue_it() {
    let home = Home::new();
    let mut terminal = Terminal::with_lockkit(&home, READER);
    terminal.shows("started");
    terminal.press(CTRL_Z);
    terminal.press("hello\n");
    terminal.shows("got hello");
    assert_eq!(terminal.status(), 0);
}
