//! The forms of the lock, each with keys of its own.

use lockkit_conformance::Hook;
use lockkit_core::LockName;

/// A form, as the URL selects it.
#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) name: &'static str,
    /// The prefix of its keys, which all forms share a server with.
    prefix: &'static str,
    /// Its options in the URL.
    options: &'static str,
    keys: Keys,
    /// Hooks that it lacks, and why.
    pub(crate) lacks: &'static [(Hook, &'static str)],
    /// Whether every case gets a server of its own: aborted waits in the Lock RPC can end the RPC's service for all
    /// clients of a server (etcd #13336).
    pub(crate) has_own_servers: bool,
    /// How many of its cases may run in parallel.
    pub(crate) parallel: usize,
}

/// Where the entries of a lock are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    Queue,
    Single,
    QueueAndGuard,
}

/// The prefix of guard keys.
const GUARD: &str = "/guards/";

/// The queue, with every hook.
pub(crate) static QUEUE: Form = Form {
    name: "etcd",
    prefix: "lockkit",
    options: "",
    keys: Keys::Queue,
    lacks: &[],
    has_own_servers: false,
    parallel: 8,
};

const SAME_IN_ALL: &str = "the same in all forms; the program tests it with \"etcd\"";
const OWN_LEASES: &str = "no session carries holds or waiters: each has a lease of its own";
const GRANT_IS_THE_REPLY: &str = "the grant is the reply to the request that waits";
const WRITES_AT_GRANT: &str = "a grant writes its key, which a full store refuses";

pub(crate) static FURTHER: [Form; 3] = [
    Form {
        name: "etcd-single",
        prefix: "single",
        options: "form=single&",
        keys: Keys::Single,
        lacks: &[
            (Hook::Tls, SAME_IN_ALL),
            (Hook::Secret, SAME_IN_ALL),
            (Hook::FullDisk, SAME_IN_ALL),
            (Hook::FillStore, WRITES_AT_GRANT),
            (Hook::EndSessionOfWaiter, "waiters for a single key have no entries"),
        ],
        has_own_servers: false,
        parallel: 3,
    },
    Form {
        name: "etcd-guard",
        prefix: "guarded",
        options: "guard=/guards/&",
        keys: Keys::QueueAndGuard,
        lacks: &[
            (Hook::Tls, SAME_IN_ALL),
            (Hook::Secret, SAME_IN_ALL),
            (Hook::FullDisk, SAME_IN_ALL),
            (Hook::FillStore, WRITES_AT_GRANT),
        ],
        has_own_servers: false,
        parallel: 3,
    },
    Form {
        name: "etcd-rpc",
        prefix: "rpc",
        options: "form=rpc&",
        keys: Keys::Queue,
        lacks: &[
            (Hook::Tls, SAME_IN_ALL),
            (Hook::Secret, SAME_IN_ALL),
            (Hook::FullDisk, SAME_IN_ALL),
            (Hook::FillStore, WRITES_AT_GRANT),
            (Hook::DropNotifications, GRANT_IS_THE_REPLY),
            (Hook::HoldNotifications, GRANT_IS_THE_REPLY),
            (Hook::EndSessionOfHolder, OWN_LEASES),
            (Hook::EndSessionOfWaiter, OWN_LEASES),
            (Hook::WallClock, "the Lock RPC stores no metadata, which would show a process's wall clock"),
        ],
        has_own_servers: true,
        parallel: 3,
    },
];

impl Form {
    /// The end of a URL that selects it.
    pub(crate) fn tail(&self, timeout: &str) -> String {
        format!("/{}?{}request_timeout={timeout}", self.prefix, self.options)
    }

    /// Whether this is a key of this lock.
    pub(crate) fn is_of(&self, name: &LockName, key: &str) -> bool {
        let path = self.path(name);
        match self.keys {
            Keys::Single => key == path,
            Keys::Queue | Keys::QueueAndGuard => {
                key.strip_prefix(&path).is_some_and(|rest| rest.starts_with('/')) || self.is_guard(name, key)
            }
        }
    }

    fn is_guard(&self, name: &LockName, key: &str) -> bool {
        let guard = key.strip_prefix(GUARD).filter(|_| self.keys == Keys::QueueAndGuard);
        guard == self.path(name).strip_prefix(self.prefix).and_then(|rest| rest.strip_prefix('/'))
            && guard.is_some()
    }

    /// The range of the keys of a lock, without its guard: from the first to behind the last.
    pub(crate) fn range(&self, name: &LockName) -> (String, String) {
        let path = self.path(name);
        match self.keys {
            Keys::Single => (path.clone(), path + "\0"),
            // `0` follows `/`.
            Keys::Queue | Keys::QueueAndGuard => (path.clone() + "/", path + "0"),
        }
    }

    /// The key of a contender that an inspection shows.
    pub(crate) fn key(&self, name: &LockName, entry: &str) -> String {
        match self.keys {
            Keys::Single => entry.to_owned(),
            Keys::Queue | Keys::QueueAndGuard => format!("{}/{entry}", self.path(name)),
        }
    }

    fn path(&self, name: &LockName) -> String {
        format!("{}/{}", self.prefix, name.encode(3 * 1024))
    }
}
