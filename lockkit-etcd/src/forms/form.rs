//! What a lock is in the store: the forms, and the keys that only they have. Pure.
//!
//! ```text
//! PREFIX NAME /...                      a queue (Form::Queue, Form::Rpc); see `keys`
//! PREFIX NAME                           the lock is one key (Form::Single)
//! GUARD NAME                            the guard key of the claim that is first in its queue (with `guard=GUARD`)
//! ```
//!
//! Every key below `PREFIX NAME /` counts as a contender. So a guard that would put its keys there is refused.

use lockkit_core::{Error, ErrorKind, LockName, Result, backend::Powers};

use crate::keys::{Layout, Names, QueuePath};

/// What a lock is in the store. Clients that share a lock need the same form, with one exception:
/// [`Queue`](Self::Queue) and [`Rpc`](Self::Rpc) share their queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// A queue of keys below `NAME/`, ordered by creation, as in etcd's Go package `concurrency`, `etcdctl lock` and the
    /// Lock RPC. The default.
    #[default]
    Queue,
    /// One key, created if it is absent, as the `Lock` of the packages etcd3 and aetcd for Python and etcd3 for Node.js
    /// does. **Unordered**: when the key is gone, all waiters try again at once. With [`Names::Raw`] the lock's name is
    /// the key: the lock `/locks/x` is `client.lock("x")` of the package etcd3 for Python, and `x` is `lock("x")` of
    /// the other two.
    ///
    /// Waiters of other programs that poll are not ordered with ours. A waiter of ours tries as soon as the deletion is
    /// reported, within milliseconds. No elections, records or pins.
    Single,
    /// The queue of [`Queue`](Self::Queue) through the server's Lock RPC, with a lease of its own for every claim. For
    /// comparison, and for servers that permit nothing else than this RPC, leases and reads. **Unordered**: the waiter's place
    /// in the queue ends with its connection, and the server notices a release only after up to 100 ms. No elections,
    /// records, pins or evidence.
    Rpc,
}

/// The form of a configuration's locks, and the beginning of their guard keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shape {
    pub(crate) form: Form,
    pub(crate) guard: Option<String>,
}

impl Layout {
    /// Checks what no lock name can repair.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(guard) = &self.shape.guard else { return Ok(()) };
        if self.shape.form != Form::Queue {
            return Err(invalid("`guard` adds a key to a queue: it needs `form=queue`"));
        }
        // Encoded names have no slash: what comes before the first one after the prefix is the name of a lock.
        let below_a_queue = |rest: &str| rest.find('/').is_some_and(|slash| slash > 0);
        if self.names() == Names::Encoded && guard.strip_prefix(self.prefix()).is_some_and(below_a_queue) {
            let message =
                "keys that begin with this `guard` would count as waiters of a lock; choose another `guard`";
            return Err(invalid(message));
        }
        Ok(())
    }

    /// Returns what the sessions of this configuration can do besides locking. Elections, records and pins read and
    /// change the holder's entry in the queue. So they are not offered where another key decides who holds the lock.
    pub(crate) fn powers(&self) -> Powers {
        let mut powers = Powers::default();
        let by_queue = self.shape.form == Form::Queue && self.shape.guard.is_none();
        (powers.elections, powers.leader_watch) = (by_queue, by_queue);
        (powers.records, powers.pins) = (by_queue, by_queue);
        powers.evidence = self.shape.form != Form::Rpc;
        (powers.list, powers.break_lock) = (self.unlistable().is_none(), true);
        powers
    }

    /// Returns the key of a lock that is one key, as a queue of at most one.
    pub(crate) fn single(&self, name: &LockName) -> Result<QueuePath> {
        let key = self.path(name);
        if self.own_folders().iter().any(|folder| key.starts_with(folder)) {
            return Err(overlaps(name));
        }
        Ok(self.as_queue(key))
    }

    /// Returns the guard key of a lock, if the configuration has guard keys.
    pub(crate) fn guard(&self, name: &LockName, queue: &QueuePath) -> Result<Option<String>> {
        let Some(guard) = &self.shape.guard else { return Ok(None) };
        let key = format!("{guard}{}", self.part(name));
        // In its own queue it would be a contender of its own holder.
        let is_own = self.own_folders().iter().any(|folder| key.starts_with(folder));
        if key.starts_with(queue.as_str()) || is_own {
            return Err(overlaps(name));
        }
        Ok(Some(key))
    }
}

fn overlaps(name: &LockName) -> Error {
    let message = "its key overlaps with keys that are not the lock's";
    Error::new(ErrorKind::InvalidName, "claim").with_lock(name).with_message(message)
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidConfig, "configure etcd").with_message(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    fn with_guard(prefix: &str, names: Names, guard: &str) -> Layout {
        Layout::new(prefix, names).shaped(Shape { form: Form::Queue, guard: Some(guard.to_owned()) })
    }

    #[test]
    fn single_key_is_the_name_below_the_prefix() {
        let key = |layout: Layout, lock| layout.single(&name(lock)).map(|key| key.as_str().to_owned());
        assert_eq!(key(Layout::new("lockkit/", Names::Encoded), "a/b").unwrap(), "lockkit/a%2Fb");
        assert_eq!(key(Layout::new("", Names::Raw), "/locks/a").unwrap(), "/locks/a");
        let own = key(Layout::new("", Names::Raw), ":clients/7/epoch").unwrap_err();
        assert_eq!(own.kind(), ErrorKind::InvalidName);
    }

    #[test]
    fn guard_key_is_the_name_behind_the_guard() {
        let guard = |layout: Layout, lock| {
            let name = name(lock);
            layout.guard(&name, &layout.queue(&name).unwrap()).map(Option::unwrap)
        };
        assert_eq!(guard(with_guard("", Names::Raw, "/locks/"), "a/b").unwrap(), "/locks/a/b");
        assert_eq!(guard(with_guard("", Names::Raw, ""), "a/b").unwrap(), "a/b");
        assert_eq!(guard(with_guard("lockkit/", Names::Encoded, "/locks/"), "a/b").unwrap(), "/locks/a%2Fb");
        // The keys would be `/locks//locks` in the queue `/locks/`, and `/locks//locks/` in the queue `/locks//`.
        for lock in ["/locks", "/locks/"] {
            let refused = guard(with_guard("", Names::Raw, "/locks/"), lock).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidName, "{lock}");
        }
        for own in [":clients/", ":records/"] {
            let refused = guard(with_guard("", Names::Raw, own), "a").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidName, "{own}");
        }
    }

    #[test]
    fn guard_inside_a_queue_is_refused() {
        for (prefix, guard, is_refused) in [
            ("lockkit/", "/locks/", false),
            ("lockkit/", "", false),
            ("lockkit/", "lockkit/", false),
            ("lockkit/", "lockkit/x", false),
            ("lockkit/", "lockkit/x/", true),
            ("lockkit/", "lockkit/:clients/", true),
            ("", "/locks/", false),
            ("", "locks/", true),
        ] {
            let checked = with_guard(prefix, Names::Encoded, guard).check();
            assert_eq!(checked.is_err(), is_refused, "{prefix} {guard}");
        }
        let rpc = Layout::new("", Names::Raw).shaped(Shape { form: Form::Rpc, guard: Some(String::new()) });
        assert_eq!(rpc.check().unwrap_err().kind(), ErrorKind::InvalidConfig);
    }

    /// Each of them reads or changes the holder's entry in the queue.
    #[test]
    fn elections_records_and_pins_need_a_queue_without_a_guard() {
        let guard = || Some("/locks/".to_owned());
        for (form, guard, is_offered) in [
            (Form::Queue, None, true),
            (Form::Queue, guard(), false),
            (Form::Single, None, false),
            (Form::Rpc, None, false),
        ] {
            let powers = Layout::new("lockkit/", Names::Encoded).shaped(Shape { form, guard }).powers();
            let offered = [powers.elections, powers.leader_watch, powers.records, powers.pins];
            assert_eq!(offered, [is_offered; 4], "{form:?}");
        }
    }
}
