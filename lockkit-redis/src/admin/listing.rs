//! The locks of a server, or of the masters of a cluster one after another, page by page.
//!
//! A server is asked twice: first for the locks' own keys, then for queues. A lock is in the second part only if nobody
//! has held it since before the first part began.
//!
//! Failure cases:
//!
//! * Keys come and go meanwhile: SCAN returns every key that is there from its first request to its last one. A handoff
//!   is one step of the server, so the key of a lock that is always held is always there.
//! * The server is restarted, or another one has become the master: the cursor of SCAN means nothing there. The next page,
//!   or the end of this server's listing, finds another run id, and this server is listed again.
//! * A slot moves to another node of a cluster: its keys may be missed.

use std::collections::BTreeSet;

use futures_util::future::try_join_all;
use lockkit_core::{
    Error, ErrorKind, LockName, Result,
    backend::{ListedLock, Page},
};
use redis::Value;

use super::wire::{escape_glob, parse_scan, parse_time, parse_waited_for, scan, waited_for};
use crate::{
    RedisBackend,
    error::RequestError,
    keys::{Layout, LockKeys},
    server::execute,
    server_info::ServerInfo,
    topology::Connection,
};

/// How many keys the server looks at in one request: few enough that others do not wait, and at most as many locks as a
/// script may name.
const KEYS_PER_SCAN: std::ops::RangeInclusive<usize> = 10..=500;

/// Requests of one page, which may come back without a lock: a prefix may be rare.
const SCANS_PER_PAGE_MAX: usize = 64;

const OPERATION: &str = "list locks";

/// Which keys are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Held,
    WaitedFor,
}

/// Where a listing continues.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Position {
    /// The first slot of the master.
    slot: u16,
    part: Part,
    cursor: u64,
    /// When the listing of this server began, by its clock in us.
    began_us: u64,
    /// Changes with each start of the server; empty where the user has no right to INFO.
    run_id: String,
}

impl Position {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(5, '-');
        let part = match words.next()? {
            "held" => Part::Held,
            "waited" => Part::WaitedFor,
            _ => return None,
        };
        let slot = words.next()?.parse().ok()?;
        let (cursor, began_us) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { slot, part, cursor, began_us, run_id: words.next()?.to_owned() })
    }

    fn print(&self) -> String {
        let part = match self.part {
            Part::Held => "held",
            Part::WaitedFor => "waited",
        };
        format!("{part}-{}-{}-{}-{}", self.slot, self.cursor, self.began_us, self.run_id)
    }
}

/// Returns one page.
pub(super) async fn page(
    backend: &RedisBackend,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Page> {
    let layout = listable(backend.config.layout())?;
    let unknown = || {
        let what = "`after` is not a cursor of this store: pass `Page::next` of the page before";
        Error::new(ErrorKind::InvalidConfig, OPERATION).with_message(what)
    };
    let after = after.map(|after| Position::parse(after).ok_or_else(unknown)).transpose()?;
    let limit = limit.max(1);
    let count = limit.clamp(*KEYS_PER_SCAN.start(), *KEYS_PER_SCAN.end());
    let walk = async {
        let connection = backend.connect().await?;
        let (found, next) = (BTreeSet::new(), None);
        let mut walk = Walk { backend, layout: &layout, prefix, count, connection, found, next };
        walk.run(after, limit).await?;
        Ok::<_, RequestError>((walk.found, walk.next))
    };
    let (found, next) = walk.await.map_err(|fault| fault.into_error(OPERATION))?;
    let listed = |name: LockName| {
        let entry = layout.keys(&name)?.lock().to_owned();
        Ok(ListedLock::new(Some(name), entry))
    };
    Ok(Page::new(found.into_iter().map(listed).collect::<Result<_>>()?, next.map(|next| next.print())))
}

/// Returns this layout, unless other strings may look like the keys of its locks.
pub(crate) fn listable(layout: Layout) -> Result<Layout> {
    if layout.tells_locks_apart() {
        return Ok(layout);
    }
    let why = "raw names: a lock cannot be told from other strings";
    Err(Error::new(ErrorKind::Unsupported, OPERATION).with_message(why))
}

/// One page in the making.
struct Walk<'a> {
    backend: &'a RedisBackend,
    layout: &'a Layout,
    prefix: &'a str,
    count: usize,
    connection: Connection,
    found: BTreeSet<LockName>,
    next: Option<Position>,
}

impl Walk<'_> {
    async fn run(&mut self, after: Option<Position>, limit: usize) -> Result<(), RequestError> {
        let slots = self.connection.first_slots().await?;
        let mut position = match after {
            Some(after) => self.resume(&slots, after).await?,
            None => self.begin(slots.first().copied().unwrap_or_default()).await?,
        };
        for _ in 0..SCANS_PER_PAGE_MAX {
            let Some(next) = self.step(&slots, position).await? else { return Ok(()) };
            position = next;
            if self.found.len() >= limit {
                break;
            }
        }
        self.next = Some(position);
        Ok(())
    }

    /// Begins the listing of the master with this first slot.
    async fn begin(&mut self, slot: u16) -> Result<Position, RequestError> {
        let run_id = self.run_id(slot).await?;
        let began_us = parse_time(self.ask(slot, &redis::cmd("TIME")).await?)?;
        Ok(Position { slot, part: Part::Held, cursor: 0, began_us, run_id })
    }

    /// Continues at the same server. If there is another one for these slots, its listing begins.
    async fn resume(&mut self, slots: &[u16], after: Position) -> Result<Position, RequestError> {
        let owner = slots.iter().rev().find(|slot| **slot <= after.slot);
        let owner = owner.or(slots.first()).copied().unwrap_or_default();
        match self.run_id(owner).await? == after.run_id && owner == after.slot {
            true => Ok(after),
            false => self.begin(owner).await,
        }
    }

    async fn run_id(&mut self, slot: u16) -> Result<String, RequestError> {
        match self.ask(slot, redis::cmd("INFO").arg("server")).await {
            Ok(info) => Ok(ServerInfo::parse(&redis::from_redis_value::<String>(info)?).run_id),
            Err(fault) if !fault.is_transient() => Ok(String::new()),
            Err(fault) => Err(fault),
        }
    }

    /// Scans once, and returns where the listing continues.
    async fn step(&mut self, slots: &[u16], at: Position) -> Result<Option<Position>, RequestError> {
        let beginning = self.layout.beginning(self.prefix);
        let pattern = match at.part {
            Part::Held => escape_glob(&beginning) + "*",
            Part::WaitedFor => {
                let (start, end) = self.layout.queue_ends(&beginning);
                format!("{}*{end}", escape_glob(&start))
            }
        };
        let answer = self.ask(at.slot, &scan(at.cursor, &pattern, self.count)).await?;
        let (cursor, keys) = parse_scan(answer)?;
        match at.part {
            Part::Held => {
                let names = keys.iter().filter_map(|key| self.layout.lock_of_key(key));
                self.found.extend(names.filter(|name| name.as_str().starts_with(self.prefix)));
            }
            Part::WaitedFor => {
                let names = keys.iter().filter_map(|key| self.layout.lock_of_queue(key));
                let names = names.filter(|name| name.as_str().starts_with(self.prefix)).collect();
                let waited_for = self.waited_for(names, at.began_us).await?;
                self.found.extend(waited_for);
            }
        }
        if cursor != 0 {
            return Ok(Some(Position { cursor, ..at }));
        }
        if at.part == Part::Held {
            return Ok(Some(Position { part: Part::WaitedFor, cursor, ..at }));
        }
        // On a cluster, the client crate continues at another node by itself.
        if self.layout.on_cluster() && self.run_id(at.slot).await? != at.run_id {
            return self.begin(at.slot).await.map(Some);
        }
        match slots.iter().find(|slot| **slot > at.slot) {
            Some(slot) => self.begin(*slot).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns those of these locks that somebody waits for, and that are not found by their own keys.
    async fn waited_for(&self, names: Vec<LockName>, began_us: u64) -> Result<Vec<LockName>, RequestError> {
        let keys: Result<Vec<LockKeys>> = names.iter().map(|name| self.layout.keys(name)).collect();
        let keys = keys.map_err(|error| RequestError::unexpected(error.to_string()))?;
        // On a cluster, a script may name only one lock.
        let locks_per_call = if self.layout.on_cluster() { 1 } else { keys.len().max(1) };
        let calls = keys.chunks(locks_per_call).map(|locks| async {
            let (mut connection, call) = (self.connection.clone(), waited_for(locks, began_us));
            let answer = self.backend.within_time_limit(execute(&mut connection, &call)).await?;
            parse_waited_for(answer, locks.len())
        });
        let answers = try_join_all(calls).await?.into_iter().flatten();
        Ok(names.into_iter().zip(answers).filter_map(|(name, is_listed)| is_listed.then_some(name)).collect())
    }

    async fn ask(&mut self, slot: u16, command: &redis::Cmd) -> Result<Value, RequestError> {
        self.backend.within_time_limit(self.connection.query_slot(slot, command)).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use lockkit_conformance::direct::{HANG, bounded, name};
    use lockkit_core::backend::Admin;

    use super::*;
    use crate::{
        RedisConfig,
        tests::scripted::{Answer, ScriptedServer, greeting},
    };

    /// What a server was asked.
    #[derive(Default)]
    struct Asked {
        run_ids: AtomicUsize,
        scans: AtomicUsize,
        /// The largest COUNT of a SCAN.
        keys: AtomicUsize,
    }

    /// Starts a server that answers a listing, also as the only node of a cluster. `run_id` and `scan` are its answers,
    /// from how often it was asked for its run id.
    async fn server(
        asked: &Arc<Asked>,
        run_id: impl Fn(usize) -> &'static str + Send + Sync + 'static,
        scan: impl Fn(usize) -> &'static str + Send + Sync + 'static,
    ) -> String {
        let asked = Arc::clone(asked);
        let server = ScriptedServer::start(|port| {
            move |_, words: &[String]| {
                let answer = match words[0].to_ascii_uppercase().as_str() {
                    "CLUSTER" => {
                        format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$1\r\na\r\n")
                    }
                    "INFO" => {
                        let text = format!("run_id:{}", run_id(asked.run_ids.fetch_add(1, SeqCst) + 1));
                        format!("${}\r\n{text}\r\n", text.len())
                    }
                    "TIME" => "*2\r\n$1\r\n7\r\n$1\r\n0\r\n".to_owned(),
                    "SCAN" => {
                        asked.scans.fetch_add(1, SeqCst);
                        asked.keys.fetch_max(words.last().unwrap().parse().unwrap(), SeqCst);
                        scan(asked.run_ids.load(SeqCst)).to_owned()
                    }
                    _ => return greeting(words),
                };
                Answer::Text(answer)
            }
        });
        server.await.address.to_string()
    }

    /// The client crate continues at another node by itself, where the cursor means nothing.
    #[tokio::test]
    async fn node_that_another_one_has_replaced_during_a_page_is_listed_again() {
        let asked = Arc::<Asked>::default();
        let run_id = |number: usize| if number == 1 { "former" } else { "next" };
        let scan = |number: usize| match number {
            1 => "*2\r\n$1\r\n0\r\n*0\r\n",
            _ => "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nx\r\n",
        };
        let node = server(&asked, run_id, scan).await;
        let backend = RedisBackend::new(RedisConfig::cluster([node]).unwrap().request_timeout(HANG));
        let page = bounded(backend.list("", None, 10)).await.unwrap();
        assert_eq!(page, Page::new(vec![ListedLock::new(Some(name("x")), "x")], None));
    }

    /// A rare prefix would else keep its caller waiting while the whole store is looked through.
    #[tokio::test]
    async fn page_without_a_lock_ends_after_a_bounded_number_of_bounded_scans() {
        let asked = Arc::<Asked>::default();
        let server = server(&asked, |_| "same", |_| "*2\r\n$1\r\n7\r\n*0\r\n").await;
        let backend = RedisBackend::new(RedisConfig::new([server]).unwrap().request_timeout(HANG));
        let page = bounded(backend.list("rare", None, usize::MAX)).await.unwrap();
        assert!(page.locks.is_empty() && page.next.is_some(), "{page:?}");
        let (scans, keys) = (asked.scans.load(SeqCst), asked.keys.load(SeqCst));
        assert!(scans <= 64 && keys <= 500, "{scans} of {keys} keys");
    }

    #[test]
    fn position_is_parsed_as_it_was_printed() {
        for (part, run_id) in [(Part::Held, "5f0c1d2e"), (Part::WaitedFor, "")] {
            let position =
                Position { slot: 5461, part, cursor: u64::MAX, began_us: 7, run_id: run_id.to_owned() };
            assert_eq!(Position::parse(&position.print()), Some(position));
        }
        for text in ["", "held", "held-1-2-3", "lost-1-2-3-x", "held-99999-2-3-x", "held-1-2-x-x"] {
            assert_eq!(Position::parse(text), None, "{text}");
        }
    }
}
