//! The locks of a store, page by page: which keys show a lock, and which lock.
//!
//! | layout | what shows a lock |
//! |---|---|
//! | queues, encoded names below a prefix | every key `PREFIX NAME/...`: it excludes others, also if another program has made it |
//! | queues, raw names or no prefix | `NAME/ENTRY` if the entry is named as a lockkit client, etcd's Go package, `etcdctl lock` or the Lock RPC name theirs; other data looks different |
//! | a guard in addition to the queues | also every key `GUARD NAME`, if the guard is a folder |
//! | single keys | every key `PREFIX NAME`; without a prefix they look like all other data |
//!
//! A page is one range of keys in their order, and begins after the last key of the page before. A lock always has its
//! keys in the same range, so one that exists through the whole listing is found. An exception: a lock that passes
//! between the queue and a program that uses the guard key alone may be missed during that change.

use lockkit_core::{
    Error, ErrorKind, LockName, Result,
    backend::{ListedLock, Page},
};

use super::cursor::{Cursor, no_page};
use crate::{
    Form, Names,
    call::Server,
    client::{GetOptions, KeyValue, end_of_prefix},
    error::RequestError,
    keys::{ClaimKey, Layout, LeaseId},
};

/// Maximum number of keys that are read for one page.
const KEYS_PER_PAGE_MAX: usize = 1_000;

/// The shortest name of a lease that a server has chosen, in hexadecimal digits; small ones would look like numbers in
/// other data.
const LEASE_DIGITS_MIN: usize = 12;

/// A listing of the locks whose names begin with `prefix`.
#[derive(Debug)]
pub(super) struct Pages {
    layout: Layout,
    prefix: String,
    ranges: Vec<KeyRange>,
}

/// The keys that are read, and what they mean.
#[derive(Debug)]
struct KeyRange {
    /// What comes before the name of a lock.
    folder: String,
    /// Contenders in a queue, or one key per lock.
    is_queues: bool,
    /// The beginning of the keys.
    begins: String,
}

impl Layout {
    /// Returns why locks cannot be told from other data; `None` if they can.
    pub(crate) fn unlistable(&self) -> Option<&'static str> {
        match (&self.shape.guard, self.shape.form) {
            (_, Form::Single) if self.prefix().is_empty() => {
                Some("without a prefix, the keys of locks cannot be told from other data")
            }
            (Some(guard), _) if !guard.ends_with('/') => {
                Some("`guard` is not a folder, so its keys cannot be told from other data")
            }
            _ => None,
        }
    }

    /// Begins a listing.
    pub(super) fn pages(&self, prefix: &str) -> Result<Pages> {
        if let Some(reason) = self.unlistable() {
            return Err(Error::new(ErrorKind::Unsupported, "list locks").with_message(reason));
        }
        let name = match self.names() {
            Names::Encoded => LockName::encode_prefix(prefix),
            Names::Raw => prefix.to_owned(),
        };
        let range = |folder: &str, is_queues| KeyRange {
            folder: folder.to_owned(),
            is_queues,
            begins: format!("{folder}{name}"),
        };
        let locks = range(self.prefix(), self.shape.form != Form::Single);
        let guards = self.shape.guard.as_deref().map(|guard| range(guard, false));
        let ranges = std::iter::once(locks).chain(guards).collect();
        Ok(Pages { layout: self.clone(), prefix: prefix.to_owned(), ranges })
    }
}

impl Pages {
    /// Parses where a page begins.
    pub(super) fn cursor(&self, after: Option<&str>) -> Result<Cursor> {
        let cursor = after.map_or_else(|| Ok(Cursor::default()), Cursor::parse)?;
        let range = self.ranges.get(cursor.range).ok_or_else(no_page)?;
        let is_inside = |key: &Vec<u8>| key.starts_with(range.begins.as_bytes());
        if cursor.after.as_ref().is_none_or(is_inside) { Ok(cursor) } else { Err(no_page()) }
    }

    /// Reads a page of at most this many locks.
    pub(super) async fn read(
        &self,
        server: &Server,
        cursor: Cursor,
        limit: usize,
    ) -> Result<Page, RequestError> {
        let Some(range) = self.ranges.get(cursor.range) else { return Ok(Page::default()) };
        let start = match &cursor.after {
            None if range.begins.is_empty() => vec![0],
            None => range.begins.clone().into_bytes(),
            Some(key) => self.after(range, key),
        };
        // In the order of the keys; to ask for it would make the server read the whole range.
        let options = GetOptions::new()
            .with_keys_only()
            .with_limit(i64::try_from(limit.clamp(1, KEYS_PER_PAGE_MAX)).unwrap_or(1))
            .with_range(end_of_prefix(range.begins.as_bytes()));
        let answer = server.range(start, options).await?;
        let mut locks: Vec<ListedLock> = Vec::new();
        for lock in answer.kvs().iter().filter_map(|kv| self.lock_of(range, kv)) {
            if !locks.contains(&lock) {
                locks.push(lock);
            }
        }
        let next = match answer.kvs().last() {
            Some(last) if answer.more => Some(Cursor { after: Some(last.key().to_vec()), ..cursor }),
            _ => Some(Cursor { range: cursor.range + 1, after: None }),
        };
        let next = next.filter(|next| next.range < self.ranges.len());
        Ok(Page::new(locks, next.as_ref().map(Cursor::to_text)))
    }

    /// Returns where to go on after a key: what shows no lock, or none that was not returned, is skipped.
    fn after(&self, range: &KeyRange, key: &[u8]) -> Vec<u8> {
        if let Some(own) = self.own_folder(key) {
            return end_of_prefix(own.as_bytes());
        }
        let name = key.strip_prefix(range.folder.as_bytes()).unwrap_or_default();
        match name.iter().position(|byte| *byte == b'/') {
            // Encoded names do not nest below a prefix: all that follows is in the same queue.
            Some(slash) if self.layout.names() == Names::Encoded && !self.layout.prefix().is_empty() => {
                end_of_prefix(&key[..=range.folder.len() + slash])
            }
            _ => [key, &[0]].concat(),
        }
    }

    fn own_folder(&self, key: &[u8]) -> Option<String> {
        self.layout.own_folders().into_iter().find(|folder| key.starts_with(folder.as_bytes()))
    }

    /// Returns the lock that a key shows.
    fn lock_of(&self, range: &KeyRange, kv: &KeyValue) -> Option<ListedLock> {
        let lock = self.lock_at(range, kv.key(), kv.lease())?;
        let is_wanted = |name: &LockName| name.as_str().starts_with(&self.prefix);
        lock.name.as_ref().map_or(self.prefix.is_empty(), is_wanted).then_some(lock)
    }

    fn lock_at(&self, range: &KeyRange, key: &[u8], lease: LeaseId) -> Option<ListedLock> {
        if self.own_folder(key).is_some() {
            return None;
        }
        let key = str::from_utf8(key).ok()?;
        let rest = key.strip_prefix(&*range.folder)?;
        let is_raw = self.layout.names() == Names::Raw;
        let (part, is_lock) = match range.is_queues {
            true if is_raw => (rest.rsplit_once('/')?.0, names_an_entry(key, lease)),
            true => (rest.split_once('/')?.0, !self.layout.prefix().is_empty() || names_an_entry(key, lease)),
            false if is_raw => (rest, !names_an_entry(key, lease)),
            false => (rest, !rest.contains('/')),
        };
        if !is_lock || part.is_empty() {
            return None;
        }
        let name = if is_raw { LockName::new(part).ok() } else { LockName::decode(part) };
        let slash = if range.is_queues { "/" } else { "" };
        Some(ListedLock::new(name, format!("{}{part}{slash}", range.folder)))
    }
}

/// Returns whether a program that queues has named this key.
pub(super) fn names_an_entry(key: &str, lease: LeaseId) -> bool {
    let named_after_its_lease = |entry: &str| match lease {
        // No lease; or etcd 3.7 omits it from keys that are read without their values (etcd #22209).
        0 => {
            let id = LeaseId::from_str_radix(entry, 16).ok().filter(|_| entry.len() >= LEASE_DIGITS_MIN);
            id.is_some_and(|id| id > 0 && entry == format!("{id:x}"))
        }
        lease => entry == format!("{lease:x}"),
    };
    ClaimKey::parse(key).is_some()
        || key.rsplit_once('/').is_some_and(|(_, entry)| named_after_its_lease(entry))
}

#[cfg(test)]
mod tests {
    use lockkit_core::backend::ClaimId;

    use super::*;
    use crate::forms::Shape;

    fn pages(prefix: &str, names: Names, shape: Shape) -> Result<Pages> {
        Layout::new(prefix, names).shaped(shape).pages("")
    }

    fn listed(pages: &Pages, range: usize, key: &str, lease: LeaseId) -> Option<(Option<String>, String)> {
        let lock = pages.lock_at(&pages.ranges[range], key.as_bytes(), lease)?;
        Some((lock.name.map(Into::into), lock.entry))
    }

    fn lock(name: &str, entry: &str) -> Option<(Option<String>, String)> {
        Some((Some(name.to_owned()), entry.to_owned()))
    }

    #[test]
    fn every_key_in_a_queue_below_a_prefix_shows_its_lock() {
        let pages = pages("lockkit/", Names::Encoded, Shape::default()).unwrap();
        assert_eq!(listed(&pages, 0, "lockkit/a%2Fb/x/y", 0), lock("a/b", "lockkit/a%2Fb/"));
        assert_eq!(listed(&pages, 0, "lockkit/a b/x", 0), Some((None, "lockkit/a b/".to_owned())));
        for other in ["lockkit/x", "lockkit//x", "lockkit/:clients/af/epoch", "lockkit/:records/x"] {
            assert_eq!(listed(&pages, 0, other, 0), None, "{other}");
        }
    }

    #[test]
    fn entries_among_other_data_are_recognized_by_their_names() {
        let claim = ClaimId::random();
        for names in [Names::Raw, Names::Encoded] {
            let pages = pages("", names, Shape::default()).unwrap();
            assert_eq!(listed(&pages, 0, &format!("x/af-0-{claim}"), 0), lock("x", "x/"));
            assert_eq!(listed(&pages, 0, "x/af", 0xaf), lock("x", "x/"));
            assert_eq!(listed(&pages, 0, "x/694d7c3f694d7c3f", 0), lock("x", "x/"));
            for other in ["x/af", "x/x", "x", "x/000000000000000f", ":clients/af/epoch"] {
                assert_eq!(listed(&pages, 0, other, 0), None, "{other}");
            }
            assert_eq!(listed(&pages, 0, "x/af", 0xae), None);
        }
        let raw = pages("app/", Names::Raw, Shape::default()).unwrap();
        assert_eq!(listed(&raw, 0, "app/a/b/af", 0xaf), lock("a/b", "app/a/b/"));
    }

    /// What others keep there may come before an entry.
    #[test]
    fn queue_among_other_data_is_read_on() {
        for (prefix, after) in [("", &b"x/1\0"[..]), ("lockkit/", b"lockkit/x0")] {
            let pages = pages(prefix, Names::Encoded, Shape::default()).unwrap();
            assert_eq!(pages.after(&pages.ranges[0], format!("{prefix}x/1").as_bytes()), after);
        }
    }

    #[test]
    fn guard_keys_and_single_keys_are_locks() {
        let guarded = Shape { form: Form::Queue, guard: Some("/locks/".to_owned()) };
        let raw = pages("", Names::Raw, guarded.clone()).unwrap();
        assert_eq!(listed(&raw, 1, "/locks/a/b", 7), lock("a/b", "/locks/a/b"));
        assert_eq!(listed(&raw, 1, "/locks/a/7", 7), None, "an entry in a queue");
        let single = Shape { form: Form::Single, guard: None };
        let single = pages("lockkit/", Names::Encoded, single).unwrap();
        assert_eq!(listed(&single, 0, "lockkit/a%2Fb", 7), lock("a/b", "lockkit/a%2Fb"));
        assert_eq!(listed(&single, 0, "lockkit/a/b", 7), None);
        for unsupported in [
            Shape { form: Form::Queue, guard: Some("locks".to_owned()) },
            Shape { form: Form::Single, guard: None },
        ] {
            let error = pages("", Names::Raw, unsupported).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
    }

    /// Nobody knows how its name begins.
    #[test]
    fn lock_without_a_name_is_only_listed_with_all_locks() {
        for (prefix, is_listed) in [("", true), ("a", false)] {
            let pages = Layout::new("lockkit/", Names::Encoded).pages(prefix).unwrap();
            let kv = KeyValue { key: b"lockkit/a b/x".to_vec(), ..KeyValue::default() };
            assert_eq!(pages.lock_of(&pages.ranges[0], &kv).is_some(), is_listed, "{prefix:?}");
        }
    }

    #[test]
    fn pages_go_on_behind_what_was_read() {
        let encoded = pages("p/", Names::Encoded, Shape::default()).unwrap();
        let after = |pages: &Pages, key: &[u8]| pages.after(&pages.ranges[0], key);
        assert_eq!(after(&encoded, b"p/x/1/2"), b"p/x0");
        assert_eq!(after(&encoded, b"p/x"), b"p/x\0");
        assert_eq!(after(&encoded, b"p/:clients/1/epoch"), b"p/:clients0");
        let raw = pages("", Names::Raw, Shape::default()).unwrap();
        assert_eq!(after(&raw, b"x/1"), b"x/1\0");
        assert_eq!(after(&raw, b":clients/1/epoch"), b":clients0");
        assert_eq!(end_of_prefix(b"a\xff\xff"), b"b");
        assert_eq!(end_of_prefix(b"\xff"), [0]);
        for other in ["2", "0-70", "0-61"] {
            assert!(encoded.cursor(Some(other)).is_err(), "{other}");
        }
    }
}
