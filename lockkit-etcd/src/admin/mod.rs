//! What an operator asks of etcd, without a session.

mod breaking;
mod cursor;
mod listing;
mod lock_keys;

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use futures_util::future::join_all;
use lockkit_core::{
    LockName, Metadata, Result,
    backend::{Admin, Contender, Inspection, Page},
};
use tracing::debug;

use self::{
    listing::names_an_entry,
    lock_keys::{FoundKeys, LockKeys},
};
use crate::{
    EtcdBackend,
    call::Server,
    client::{Client, KeyValue},
    error::RequestError,
    keys::{LeaseId, QueuePath},
    reach,
    wire::token,
};

/// Maximum number of contenders that an inspection returns; a longer queue is cut off.
pub const INSPECTED_CONTENDERS_MAX: i64 = 500;

/// Maximum number of leases whose remaining lifetime an inspection reads, one request each. The holder's comes first,
/// then those of the waiters in queue order.
pub const INSPECTED_LEASES_MAX: usize = 16;

/// Maximum length of what an inspection shows of the value of another program's key, in characters. Of a
/// key that is not named as programs that queue name theirs, nothing is shown.
pub const INSPECTED_DATA_CHARS_MAX: usize = 200;

#[async_trait]
impl Admin for EtcdBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let keys = LockKeys::of(&self.config.layout(), name)?;
        let look = async {
            let server = self.connect().await?;
            let mut seen = keys.read(&server, INSPECTED_CONTENDERS_MAX).await?.inspection();
            add_remaining(&server, &mut seen).await;
            Ok(seen.inspection)
        };
        self.named(look.await, "inspect").await.map_err(|error| error.with_lock(name))
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        let pages = self.config.layout().pages(prefix)?;
        let cursor = pages.cursor(after)?;
        let read = async { pages.read(&self.connect().await?, cursor, limit).await };
        self.named(read.await, "list locks").await
    }

    async fn break_lock(&self, name: &LockName, holder: &Contender) -> Result<bool> {
        let layout = self.config.layout();
        let keys = LockKeys::of(&layout, name)?;
        let end = async { breaking::break_hold(&self.connect().await?, &layout, &keys, holder).await };
        self.named(end.await, "break").await.map_err(|error| error.with_lock(name))
    }
}

impl EtcdBackend {
    /// Opens a connection. A kept one would belong to the runtime of the first caller.
    async fn connect(&self) -> Result<Server, RequestError> {
        Server::connect(&self.config).await
    }

    /// Converts the fault of a request on a connection of its own.
    async fn named<T>(&self, answer: Result<T, RequestError>, operation: &'static str) -> Result<T> {
        match answer {
            Ok(answer) => Ok(answer),
            Err(fault) => Err(reach::explain(&self.config, fault).await.into_error(operation)),
        }
    }
}

/// An inspection, and the leases of its contenders.
struct LeasedInspection {
    inspection: Inspection,
    holder: LeaseId,
    waiters: Vec<LeaseId>,
}

impl FoundKeys {
    fn inspection(&self) -> LeasedInspection {
        let queued = |kv: &KeyValue| self.queued_contender(kv);
        let (holder, waiters) = match self.holder() {
            None => (None, &self.queued[..]),
            Some(holder) => {
                (Some((self.contender_of(&holder), holder.entry().lease())), holder.waiters(&self.queued))
            }
        };
        let (holder, lease) = holder.unzip();
        LeasedInspection {
            inspection: Inspection::new(holder, waiters.iter().map(queued).collect()),
            holder: lease.unwrap_or_default(),
            waiters: waiters.iter().map(KeyValue::lease).collect(),
        }
    }

    /// Returns the holder as an inspection shows it.
    fn contender_of(&self, holder: &lock_keys::Holder<'_>) -> Contender {
        match holder {
            lock_keys::Holder::Exclusive(kv) => key_holder(kv),
            lock_keys::Holder::Queued { first, decides } => {
                let mut contender = self.queued_contender(first);
                contender.token = decides.map(|kv| token(kv.create_revision()));
                contender
            }
        }
    }

    fn queued_contender(&self, kv: &KeyValue) -> Contender {
        let key = String::from_utf8_lossy(kv.key());
        let entry = key.strip_prefix(self.queue.as_ref().map_or("", QueuePath::as_str)).unwrap_or(&key);
        let contender = contender(kv, Contender::new(entry, None, Metadata::from_json(kv.value())));
        // With raw names, any other data may lie in a queue, such as a password in a configuration.
        if contender.metadata.is_some() || kv.value().is_empty() || !names_an_entry(&key, kv.lease()) {
            return contender;
        }
        // A value that a candidate of an election shows to everybody: no program that queues keeps a secret in it.
        let text = String::from_utf8_lossy(kv.value());
        contender.with_data(text.chars().take(INSPECTED_DATA_CHARS_MAX).collect::<String>())
    }
}

/// Returns the holder of a lock that is one key, which the grant has created. Its value is not shown: other programs
/// compare it with a value that only they know before they release.
fn key_holder(kv: &KeyValue) -> Contender {
    let entry = String::from_utf8_lossy(kv.key());
    contender(kv, Contender::new(entry, Some(token(kv.create_revision())), Metadata::from_json(kv.value())))
}

/// Adds the lease as `etcdctl` prints it.
fn contender(kv: &KeyValue, contender: Contender) -> Contender {
    match kv.lease() {
        0 => contender,
        lease => contender.with_session(format!("{lease:016x}")),
    }
}

/// Adds how long the leases live. What cannot be read is left out: the rest of the inspection is worth more.
async fn add_remaining(server: &Server, seen: &mut LeasedInspection) {
    let mut leases = Vec::new();
    for lease in std::iter::once(&seen.holder).chain(&seen.waiters) {
        if *lease != 0 && !leases.contains(lease) && leases.len() < INSPECTED_LEASES_MAX {
            leases.push(*lease);
        }
    }
    let reads = leases.iter().map(|lease| async move { (*lease, remaining(server, *lease).await) });
    let remaining: HashMap<LeaseId, Duration> =
        join_all(reads).await.into_iter().filter_map(|(lease, left)| Some((lease, left?))).collect();
    let Inspection { holder, waiters, .. } = &mut seen.inspection;
    let contenders = holder.iter_mut().zip([&seen.holder]).chain(waiters.iter_mut().zip(&seen.waiters));
    for (contender, lease) in contenders {
        contender.remaining = remaining.get(lease).copied();
    }
}

async fn remaining(server: &Server, lease: LeaseId) -> Option<Duration> {
    let request = |client: &Client| {
        let mut leases = client.lease_client();
        async move { leases.time_to_live(lease, None).await }
    };
    match server.call(request).await {
        // Whole seconds; negative for a lease that has ended.
        Ok(answer) => u64::try_from(answer.ttl()).ok().map(Duration::from_secs),
        Err(fault) => {
            debug!(?fault, "remaining lifetime of a lease not read");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockkit_conformance::direct::{acquire, fresh_name};
    use lockkit_core::{
        Clock, ErrorKind,
        backend::{ClaimId, Session},
    };

    use super::*;
    use crate::{
        EtcdConfig,
        client::scripted::{Fate, Script},
        lease::Lease,
        session::{
            EtcdSession,
            tests::{TTL, config, first, server},
        },
    };

    fn put(script: &Script, name: &LockName, lease: LeaseId) {
        script.put_leased(&format!("lockkit/{name}/{lease:x}-8-{}", ClaimId::random()), "", lease);
    }

    #[tokio::test(start_paused = true)]
    async fn remaining_lifetimes_cost_one_request_per_lease_and_not_more_than_allowed() {
        let (script, name) = (Script::default(), LockName::new("x").unwrap());
        let (server, keys) = (server(&script, 1), LockKeys::of(&config(1).layout(), &name).unwrap());
        let inspect = async || {
            script.take_calls();
            let mut seen = keys.read(&server, INSPECTED_CONTENDERS_MAX).await.unwrap().inspection();
            add_remaining(&server, &mut seen).await;
            (seen.inspection.waiters.len(), script.count("LeaseTimeToLive"))
        };
        for lease in [7, 7, 8, 7] {
            put(&script, &name, lease);
        }
        assert_eq!(inspect().await, (3, 2));
        for lease in 9..40 {
            put(&script, &name, lease);
        }
        assert_eq!(inspect().await, (34, INSPECTED_LEASES_MAX));
    }

    /// Values of other programs may be longer than a message may be.
    #[tokio::test(start_paused = true)]
    async fn look_that_is_refused_is_repeated_without_values() {
        use tonic::Code::{OutOfRange, Unavailable};
        let (script, name) = (Script::default(), LockName::new("x").unwrap());
        let (server, keys) = (server(&script, 1), LockKeys::of(&config(1).layout(), &name).unwrap());
        put(&script, &name, 7);
        for (code, is_repeated) in [(OutOfRange, true), (Unavailable, false)] {
            script.rule(first(1, "Range", Fate::Refused(code, "message length too large")));
            script.take_calls();
            assert_eq!(keys.read(&server, 2).await.is_ok(), is_repeated);
            assert_eq!(script.count("Range"), 1 + usize::from(is_repeated));
        }
    }

    /// The transaction that the store's limit refuses may have been executed.
    #[tokio::test(start_paused = true)]
    async fn break_that_may_have_worked_does_not_say_that_it_did_nothing() {
        const SPACE_EXCEEDED: &str = "etcdserver: mvcc: database space exceeded";
        let full = tonic::Code::ResourceExhausted;
        for (fate, outcome) in [
            (Fate::Refused(full, SPACE_EXCEEDED), Ok(true)),
            (Fate::ExecutedAndRefused(full, SPACE_EXCEEDED), Err(ErrorKind::Unavailable)),
        ] {
            let (script, name) = (Script::default(), LockName::new("x").unwrap());
            let (server, layout) = (server(&script, 1), config(1).layout());
            let keys = LockKeys::of(&layout, &name).unwrap();
            put(&script, &name, 7);
            put(&script, &name, 8);
            let seen = keys.read(&server, 2).await.unwrap().inspection().inspection;
            script.rule(first(1, "Txn", fate));
            let broken = breaking::break_hold(&server, &layout, &keys, &seen.holder.unwrap()).await;
            assert_eq!(broken.map_err(|fault| fault.kind()), outcome);
            assert_eq!(script.keys("lockkit/x").len(), 1);
        }
    }

    /// A caller may ask for more.
    #[tokio::test(start_paused = true)]
    async fn page_reads_a_bounded_number_of_keys() {
        let script = Script::default();
        let pages = config(1).layout().pages("").unwrap();
        let server = server(&script, 1);
        for (wanted, read) in [(0, 1), (10, 10), (100_000, 1_000)] {
            pages.read(&server, pages.cursor(None).unwrap(), wanted).await.unwrap();
            assert_eq!(script.take_calls()[0].limit(), read);
        }
    }

    /// The next one in the queue gives up between each look and its transaction.
    #[tokio::test(start_paused = true)]
    async fn break_whose_handoffs_fail_ends_without_one() {
        let (script, name) = (Script::default(), LockName::new("x").unwrap());
        let layout = config(1).layout();
        let (server, keys) = (server(&script, 1), LockKeys::of(&layout, &name).unwrap());
        put(&script, &name, 7);
        put(&script, &name, 8);
        let found = keys.read(&server, 2).await.unwrap();
        let contender = found.contender_of(&found.holder().unwrap());
        let (changing, queue) = (script.clone(), format!("lockkit/{name}/8"));
        script.rule(move |call| {
            if call.is("Txn") {
                changing.delete(&changing.keys(&queue)[0]);
                put(&changing, &LockName::new("x").unwrap(), 8);
            }
            Fate::Served
        });
        script.take_calls();
        assert!(breaking::break_hold(&server, &layout, &keys, &contender).await.unwrap());
        assert_eq!((script.count("Txn"), script.keys("lockkit/x/7").len()), (9, 0));
    }

    /// However many wait for it.
    #[tokio::test(start_paused = true)]
    async fn remaining_lifetime_of_the_holder_is_read_first() {
        let (script, name) = (Script::default(), LockName::new("x").unwrap());
        let (server, keys) = (server(&script, 1), LockKeys::of(&config(1).layout(), &name).unwrap());
        let lease = Lease::grant(&server, TTL, Clock::tokio()).await.unwrap();
        put(&script, &name, lease.id());
        for waiting in 7..40 {
            put(&script, &name, waiting);
        }
        let mut seen = keys.read(&server, INSPECTED_CONTENDERS_MAX).await.unwrap().inspection();
        add_remaining(&server, &mut seen).await;
        assert_eq!(seen.inspection.holder.unwrap().remaining, Some(TTL));
    }

    /// Nothing else deletes that key.
    #[tokio::test(start_paused = true)]
    async fn notification_of_a_broken_hold_ends_with_its_client() {
        let (script, name) = (Script::default(), fresh_name());
        let (server, layout) = (server(&script, 1), config(1).layout());
        let opened = EtcdSession::open(server.clone(), layout.clone(), TTL, Clock::tokio()).await;
        let session: Arc<dyn Session> = Arc::new(opened.unwrap());
        let _held = acquire(&session, &name).await;
        let keys = LockKeys::of(&layout, &name).unwrap();
        let seen = keys.read(&server, 2).await.unwrap().inspection().inspection;
        assert!(breaking::break_hold(&server, &layout, &keys, &seen.holder.unwrap()).await.unwrap());
        assert!(script.keys("lockkit/:clients/").iter().any(|key| key.ends_with("/broken")));
        session.close().await.unwrap();
        assert_eq!(script.keys(""), [""; 0]);
    }

    /// The server reports a negative number of seconds.
    #[tokio::test(start_paused = true)]
    async fn lease_that_has_ended_has_no_remaining_lifetime() {
        assert_eq!(remaining(&server(&Script::default(), 1), 7).await, None);
    }

    /// Another program may be faster.
    #[tokio::test(start_paused = true)]
    async fn first_in_a_guarded_queue_holds_nothing_until_its_guard_key_exists() {
        let (script, name) = (Script::default(), LockName::new("x").unwrap());
        let keys = LockKeys::of(&config(1).guard("guards/").layout(), &name).unwrap();
        let server = server(&script, 1);
        let token =
            async || keys.read(&server, 2).await.unwrap().inspection().inspection.holder.unwrap().token;
        put(&script, &name, 7);
        assert_eq!(token().await, None);
        script.put_leased("guards/x", "", 7);
        assert!(token().await.is_some());
    }

    /// A person who reads it must learn what has failed, and for which lock.
    #[tokio::test]
    async fn error_of_an_operator_names_its_operation_and_its_lock() {
        let admin = EtcdBackend::new(EtcdConfig::new(["127.0.0.1:1"]).unwrap());
        let (name, holder) = (fresh_name(), Contender::new("x", None, None));
        for (operation, lock, failed) in [
            ("inspect", Some(&name), admin.inspect(&name).await.map(drop)),
            ("break", Some(&name), admin.break_lock(&name, &holder).await.map(drop)),
            ("list locks", None, admin.list("", None, 1).await.map(drop)),
        ] {
            let error = failed.unwrap_err();
            assert_eq!((error.operation(), error.lock()), (operation, lock), "{error}");
        }
    }

    /// Nobody bounds how many wait.
    #[tokio::test(start_paused = true)]
    async fn look_at_a_lock_reads_a_bounded_number_of_keys() {
        let (script, name) = (Script::default(), LockName::new("x").unwrap());
        let (server, keys) = (server(&script, 1), LockKeys::of(&config(1).layout(), &name).unwrap());
        keys.read(&server, INSPECTED_CONTENDERS_MAX).await.unwrap();
        assert_eq!(script.take_calls()[0].limit(), INSPECTED_CONTENDERS_MAX);
    }
}
