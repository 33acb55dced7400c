//! Sentinels: which server is the master, and when it changes.
//!
//! * Sentinels disagree for a while after a failover: the answer with the highest epoch is the newest. Different
//!   answers with the same epoch should not occur. Then the one that most Sentinels give counts; on a tie the
//!   connection is refused.
//! * The Sentinel that leads a failover has the new epoch as soon as the replica is promoted, and publishes
//!   `+promoted-slave`. Until the other replicas follow the new master, SENTINEL MASTER still returns the former
//!   master's address. Only SENTINEL GET-MASTER-ADDR-BY-NAME has the new one.
//! * The former master accepts writes until it learns of its demotion, for 10 s and more. So this client subscribes to
//!   every Sentinel, and abandons the connection as soon as one of them names another master.
//! * All Sentinels have lost their state: their epochs begin again below the one that the client knows. An earlier epoch
//!   counts if most Sentinels name the same master with it, none has a later one, and that server has the role of a
//!   master. One Sentinel that was cut off names the master of its time. All of them may name a former master, because
//!   they started from an old configuration. Where one address leads to several Sentinels, nobody knows how many agree.
//! * After a failover, the other Sentinels lag behind the one that led it: they learn its epoch within some seconds. An
//!   earlier epoch is looked at when a Sentinel names the same master a second time.
//! * A Sentinel is restarted: the client subscribes again, and first asks whether it missed a change.
//! * A connection to a Sentinel is dead without a sign, or a message is lost: each Sentinel is asked at intervals.

use std::{cmp::Ordering, collections::HashMap, sync::Arc, time::Duration};

use lockkit_core::{ErrorKind, backend::retry_pauses};
use redis::{PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    error::{Effect, RequestError},
    topology::dialer::{Address, Dialer},
};

/// The channels on which Sentinels report a new master: first the one that leads the failover, later all of them.
const FAILOVER_CHANNELS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// The questions to a Sentinel, each followed by the name of the master. The state comes first: if a failover comes
/// between the two, the address is newer than the epoch, never older.
const QUESTIONS: [&str; 2] = ["MASTER", "GET-MASTER-ADDR-BY-NAME"];

/// The Sentinels of one master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentinels {
    pub(crate) addresses: Vec<Address>,
    /// The name by which they know the master.
    pub(crate) master: String,
}

/// Where the master is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    /// The configuration epoch: rises with each failover.
    epoch: u64,
    pub(crate) address: Address,
}

/// The subscriptions to all Sentinels; ended by a drop.
#[derive(Debug)]
pub(crate) struct SentinelWatch {
    _tasks: JoinSet<()>,
}

impl Sentinels {
    /// Returns where the master is, by the Sentinels that know the latest failover.
    pub(crate) async fn find(&self, dialer: &Dialer) -> Result<Master, RequestError> {
        let (named, faults) = self.ask_all(dialer).await;
        if named.is_empty() {
            return Err(RequestError::of_servers(faults)
                .unwrap_or_else(|| RequestError::unexpected("no Sentinel is configured")));
        }
        newest(named)
    }

    /// Asks all Sentinels. Returns the masters that they name, and why the others name none.
    async fn ask_all(&self, dialer: &Dialer) -> (Vec<Master>, Vec<RequestError>) {
        let answers = self.addresses.iter().map(|address| async move {
            let opening = tokio::time::timeout(dialer.timeout / 2, async {
                let mut sentinel = dialer.open(address, |_| {}).await?;
                self.ask(&mut sentinel).await.map_err(|fault| fault.at(address))
            });
            opening.await.unwrap_or_else(|_| Err(dialer.no_reply([address])))
        });
        let (mut named, mut faults) = (Vec::new(), Vec::new());
        for answer in futures_util::future::join_all(answers).await {
            match answer {
                Ok(master) => named.push(master),
                Err(fault) => faults.push(fault.of_sentinels()),
            }
        }
        (named, faults)
    }

    /// Cancels `broken` when one of the Sentinels names another master than this. `servers` connects to servers.
    pub(crate) fn watch(
        &self,
        dialer: &Dialer,
        servers: &Dialer,
        current: &Master,
        broken: &CancellationToken,
    ) -> SentinelWatch {
        let mut tasks = JoinSet::new();
        for address in &self.addresses {
            let listener = SentinelListener {
                sentinels: self.clone(),
                dialer: dialer.clone(),
                servers: servers.clone(),
                address: address.clone(),
                current: current.clone(),
            };
            let broken = broken.clone();
            tasks.spawn(async move {
                listener.listen().await;
                broken.cancel();
            });
        }
        SentinelWatch { _tasks: tasks }
    }

    async fn ask(&self, sentinel: &mut MultiplexedConnection) -> Result<Master, RequestError> {
        let mut questions = redis::pipe();
        for question in QUESTIONS {
            questions.cmd("SENTINEL").arg(question).arg(&self.master);
        }
        let answers = sentinel.send_packed_commands(&questions, 0, QUESTIONS.len()).await?;
        let [state, address] = <[Value; 2]>::try_from(answers)
            .map_err(|_| RequestError::unexpected("a Sentinel did not answer each question"))?;
        let state = state.extract_error().map_err(|error| self.unknown_master(error))?;
        let fields: HashMap<String, String> = redis::from_redis_value(state)?;
        let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        let address: Option<(String, u16)> = redis::from_redis_value(address.extract_error()?)?;
        match (epoch, address) {
            (Some(epoch), Some((host, port))) => Ok(Master { epoch, address: Address::Tcp(host, port) }),
            (None, _) => Err(RequestError::unexpected("a master without an epoch")),
            (_, None) => Err(RequestError::unexpected("a master without an address")),
        }
    }

    fn unknown_master(&self, error: redis::RedisError) -> RequestError {
        if error.detail().is_some_and(|detail| detail.contains("No such master")) {
            let message = format!("this Sentinel knows no master named {:?}", self.master);
            return RequestError::new(Effect::Refused, ErrorKind::InvalidConfig, message);
        }
        error.into()
    }
}

/// A subscription to one Sentinel.
struct SentinelListener {
    sentinels: Sentinels,
    /// Connects to Sentinels.
    dialer: Dialer,
    /// Connects to servers, which have other users.
    servers: Dialer,
    address: Address,
    current: Master,
}

impl SentinelListener {
    /// Returns when the Sentinel names another master.
    async fn listen(self) {
        let listener = &self;
        until_replaced(|| async move {
            let outcome = listener.listen_once().await;
            outcome.inspect_err(
                |fault| debug!(?fault, address = ?listener.address, "the subscription to a Sentinel failed"),
            )
        })
        .await;
    }

    /// Listens until the connection ends (`false`) or there is another master (`true`).
    async fn listen_once(&self) -> Result<bool, RequestError> {
        let notice = Arc::new(Notify::new());
        let ended = CancellationToken::new();
        let pushes = {
            let (notice, ended) = (Arc::clone(&notice), ended.clone());
            move |push: PushInfo| match push.kind {
                // It may be about any master; the next question is about this one.
                PushKind::Message => notice.notify_one(),
                PushKind::Disconnection => ended.cancel(),
                _ => {}
            }
        };
        let opened = tokio::time::timeout(self.dialer.timeout, async {
            let mut sentinel = self.dialer.open(&self.address, pushes).await?;
            sentinel.subscribe(&FAILOVER_CHANNELS).await?;
            Ok::<_, RequestError>(sentinel)
        });
        let mut sentinel = opened.await.unwrap_or_else(|_| Err(RequestError::no_reply()))?;
        let mut last = None;
        loop {
            let asked = tokio::time::timeout(self.dialer.timeout, self.sentinels.ask(&mut sentinel)).await;
            let master = asked.unwrap_or_else(|_| Err(RequestError::no_reply()))?;
            if self.is_replaced_by(&master, last.as_ref()).await {
                debug!(?master, "the Sentinels have a new master");
                return Ok(true);
            }
            last = Some(master);
            tokio::select! {
                () = notice.notified() => {}
                // The connection may be dead without a sign.
                () = tokio::time::sleep(recheck_pause(self.dialer.timeout)) => {}
                () = ended.cancelled() => return Ok(false),
            }
        }
    }

    /// Returns whether this is another master than the current one, and not that of a Sentinel that was cut off. `last`
    /// is what the same Sentinel has answered before.
    async fn is_replaced_by(&self, master: &Master, last: Option<&Master>) -> bool {
        match master.epoch.cmp(&self.current.epoch) {
            _ if master.address == self.current.address => false,
            Ordering::Greater => true,
            Ordering::Less if last != Some(master) => false,
            // The other Sentinels may have a later epoch, or be the majority.
            Ordering::Less | Ordering::Equal => {
                let (named, _) = self.sentinels.ask_all(&self.dialer).await;
                let agree = named.iter().filter(|named| *named == master).count();
                let count = self.sentinels.addresses.len();
                let is_of_most = count > 1 && 2 * agree > count;
                let Ok(found) = newest(named) else { return false };
                found.address != self.current.address
                    && (found.epoch >= self.current.epoch
                        || is_of_most && found == *master && self.is_a_master(&found.address).await)
            }
        }
    }

    /// Returns whether this server can be reached and has the role of a master.
    async fn is_a_master(&self, server: &Address) -> bool {
        let opened =
            tokio::time::timeout(self.servers.timeout, self.servers.open_master(server, |_| {})).await;
        opened.is_ok_and(|opened| opened.is_ok())
    }
}

/// Listens again and again, until there is another master. Pauses grow while no subscription succeeds.
async fn until_replaced<F>(mut listen_once: impl FnMut() -> F)
where
    F: Future<Output = Result<bool, RequestError>>,
{
    let mut pauses = retry_pauses();
    loop {
        match listen_once().await {
            Ok(true) => return,
            Ok(false) => pauses = retry_pauses(),
            Err(_) => {}
        }
        pauses.wait().await;
    }
}

/// Returns a random pause between two questions to a Sentinel: its clients do not ask in step.
fn recheck_pause(timeout: Duration) -> Duration {
    timeout.mul_f64(0.75 + fastrand::f64() / 2.0)
}

/// Returns the master that most Sentinels name among the answers with the highest epoch.
fn newest(named: Vec<Master>) -> Result<Master, RequestError> {
    let newest = named.iter().map(|master| master.epoch).max().unwrap_or_default();
    let mut votes: Vec<(usize, Master)> = Vec::new();
    for master in named.into_iter().filter(|master| master.epoch == newest) {
        match votes.iter_mut().find(|(_, known)| *known == master) {
            Some((count, _)) => *count += 1,
            None => votes.push((1, master)),
        }
    }
    votes.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    match &*votes {
        [] => Err(RequestError::unexpected("no Sentinel names a master")),
        [(most, one), (next, other), ..] if most == next => {
            let message =
                format!("the Sentinels disagree: {} or {} is the master", one.address, other.address);
            Err(RequestError::new(Effect::Busy, ErrorKind::Unavailable, message))
        }
        [(_, master), ..] => Ok(master.clone()),
    }
}

#[cfg(test)]
mod tests;
