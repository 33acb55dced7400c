//! The long parts of the help.

pub(super) const RUN: &str = "\
The command runs in its own process group, in the foreground of the terminal if there is one. Its environment has \
LOCKKIT_NAME and LOCKKIT_TOKEN (the fencing token, which rises with every grant of the lock). Signals are forwarded to \
the group; during the wait for the lock they end the wait.

The job ends before the lock does. If no renewal is acknowledged in time, the group gets SIGTERM and SIGCONT a quarter \
of the ttl (at most 5 s) before the lock's deadline, and SIGKILL 100 ms before it. If the store reports that the lock \
is gone, SIGTERM is sent at once and SIGKILL after the same time. If lockkit itself is killed, a watcher process kills \
the group before anybody else gets the lock. If lockkit is stopped (Ctrl-Z), the job is killed unless lockkit is \
continued in time.

The lock is released when the last process of the group has ended, even if that is after the command: wait for \
background processes, or end them. Processes that leave the group (setsid, daemons, jobs of an interactive shell) are \
neither waited for nor ended: the lock does not protect them. Nor does it protect processes that lockkit may not \
signal: write `sudo lockkit run ... -- command`, not `lockkit run ... -- sudo command`.

Exit status: that of the command; 126: the command cannot be executed; 127: command not found; 128+n: signal n ended \
the command or the wait; 75 (or -E): not acquired within `--timeout`; 76: lock lost before or while the command \
ran; 64: wrong arguments, or an enclosing `lockkit run` holds the lock; 69: store unavailable; 70: unexpected state in \
the store; 71: error of the operating system; 77: denied by the store; 78: wrong configuration.";

pub(super) const HOLD: &str = "\
Prints the fencing token on stdout when the lock is held, and holds it until SIGINT, SIGTERM or another ending signal, \
or until its standard input ends (Ctrl-D, or the other end of a pipe). /dev/null has no end: under systemd, and in the \
background of a script, only signals count.

Nothing ends the caller's work if the lock is lost: prefer `lockkit run` where it can be used.

Exit status: 0: released at the end of the input; 128+n: released after signal n; 76: lock lost; others as for \
`lockkit run`.";

pub(super) const WHO: &str = "\
Exit status: 0: held; 1: free; 2: nobody holds it, but somebody waits (it is being handed over); with --watch: 128+n \
for the signal that ended it. Errors are 64 and above: 69: store unavailable, 77: denied.";

pub(super) const BREAK: &str = "\
Shows the holder and who waits, asks at a terminal, and ends the hold of exactly this holder. The holder may still be \
working: it is notified at once where the store can do that, and otherwise finds out at its next renewal. Until then, \
two believe that they hold the lock, and only a resource that checks fencing tokens refuses the old one.

Exit status: 0: broken; 1: nobody holds the lock; 2: the holder that was shown does not hold it any more, nothing was \
changed; 3: the answer was no. Errors are 64 and above.";

pub(super) const DOCTOR: &str = "\
Two clients acquire, hand over, inspect, list, break and release locks with names of their own (lockkit-doctor-...), \
and measure for at least five seconds. Nobody else's locks are touched. The examination has a ttl of at most 6 s; what it \
measures is judged by the ttl that is asked for.

Exit status: 0: fine; 1: warnings; 2: faults. 64: wrong arguments; 78: the URL is invalid.";

pub(super) const STORE: &str = "\
The store is named by --backend, LOCKKIT_BACKEND or the file $XDG_CONFIG_HOME/lockkit/config.toml (~/.config), in this \
order. The file may have `backend`, `password_file` and `ttl`.

Every user of the host can read arguments, so they must not contain passwords. Name only the user in the URL, such as \
etcd://me@host:2379 or redis://default@host, and pass the password with --password-file or LOCKKIT_PASSWORD. \
LOCKKIT_BACKEND may contain the password itself; so may the file, if nobody else can read that file. `lockkit run` does \
not pass the password on to its command.

Times are seconds, such as 90 or 0.5, or have units, such as 1m30s.";
