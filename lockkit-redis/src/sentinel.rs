//! Sentinels: who the master is, and that it has changed.
//!
//! * Sentinels disagree for a while after a failover: the answer with the highest epoch is the newest. Different answers
//!   with that epoch should not be; then the one that most Sentinels give counts, and where there is none the connection is
//!   refused.
//! * The Sentinel that leads a failover has the new epoch as soon as the replica is promoted, and says so on
//!   `+promoted-slave`. But until the other replicas follow it, SENTINEL MASTER goes on with the former master's address:
//!   only SENTINEL GET-MASTER-ADDR-BY-NAME has the new one.
//! * The former master goes on taking writes until it hears of its demotion, for 10 s and more: so every Sentinel is
//!   listened to, and the connection is given up as soon as one of them names another master.
//! * A Sentinel goes away and comes back: it is listened to again, and asked first whether something was missed.
//! * A connection to a Sentinel is dead and looks alive, or a message is lost: each is asked again now and then.

use std::{cmp::Ordering, collections::HashMap, sync::Arc};

use lockkit_core::{ErrorKind, backend::retry_pauses, limits::RETRY_PAUSE_MAX};
use redis::{PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    error::{Effect, Fault},
    node::{Address, Dialer},
};

/// The channels on which Sentinels tell of a new master: the one that leads the failover, and later all of them.
const NEWS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// What a Sentinel is asked, each with the name of the master. The state comes first: should a failover come between the
/// two, the address is newer than the epoch, and not the other way round.
const QUESTIONS: [&str; 2] = ["MASTER", "GET-MASTER-ADDR-BY-NAME"];

/// The Sentinels that watch over one master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentinels {
    pub(crate) addresses: Vec<Address>,
    /// What they call the master.
    pub(crate) master: String,
}

/// Where the master is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    /// Counts the failovers.
    epoch: u64,
    pub(crate) address: Address,
}

/// Listens to Sentinels; ends with the value.
#[derive(Debug)]
pub(crate) struct Watch {
    _tasks: JoinSet<()>,
}

impl Sentinels {
    /// Where the master is, as the Sentinels say that know of the latest failover.
    pub(crate) async fn find(&self, dialer: &Dialer) -> Result<Master, Fault> {
        let answers = self.addresses.iter().map(|address| async {
            let opening = tokio::time::timeout(dialer.timeout / 2, async {
                let mut sentinel = dialer.open(address, |_| {}).await?;
                self.ask(&mut sentinel).await
            });
            opening.await.unwrap_or_else(|_| Err(Fault::no_reply()))
        });
        let (mut named, mut failed) = (Vec::new(), None);
        for answer in futures_util::future::join_all(answers).await {
            match answer {
                Ok(master) => named.push(master),
                // A Sentinel that does not let us in says more than one that is away.
                Err(fault) if failed.is_none() || !fault.may_pass() => failed = Some(fault),
                Err(_) => {}
            }
        }
        if named.is_empty() {
            return Err(failed.map_or_else(|| Fault::nonsense("no Sentinel is configured"), of_login));
        }
        newest(named)
    }

    /// Cancels `broken` when one of the Sentinels names another master than this.
    pub(crate) fn watch(&self, dialer: &Dialer, current: &Master, broken: &CancellationToken) -> Watch {
        let mut tasks = JoinSet::new();
        for address in &self.addresses {
            let listener = Listener {
                sentinels: self.clone(),
                dialer: dialer.clone(),
                address: address.clone(),
                current: current.clone(),
            };
            let broken = broken.clone();
            tasks.spawn(async move {
                listener.listen().await;
                broken.cancel();
            });
        }
        Watch { _tasks: tasks }
    }

    async fn ask(&self, sentinel: &mut MultiplexedConnection) -> Result<Master, Fault> {
        let mut questions = redis::pipe();
        for question in QUESTIONS {
            questions.cmd("SENTINEL").arg(question).arg(&self.master);
        }
        let answers = sentinel.send_packed_commands(&questions, 0, QUESTIONS.len()).await?;
        let [state, place] = <[Value; 2]>::try_from(answers)
            .map_err(|_| Fault::nonsense("not one answer for each question to a Sentinel"))?;
        let state = state.extract_error().map_err(|error| self.not_known(error))?;
        let fields: HashMap<String, String> = redis::from_redis_value(state)?;
        let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        let place: Option<(String, u16)> = redis::from_redis_value(place.extract_error()?)?;
        match (epoch, place) {
            (Some(epoch), Some((host, port))) => Ok(Master { epoch, address: Address::Tcp(host, port) }),
            (None, _) => Err(Fault::nonsense("a master without an epoch")),
            (_, None) => Err(Fault::nonsense("a master without an address")),
        }
    }

    fn not_known(&self, error: redis::RedisError) -> Fault {
        if error.detail().is_some_and(|detail| detail.contains("No such master")) {
            let message = format!("the Sentinels know no master named {:?}", self.master);
            return Fault::new(Effect::Refused, ErrorKind::InvalidConfig, message);
        }
        error.into()
    }
}

/// What listens to one Sentinel.
struct Listener {
    sentinels: Sentinels,
    dialer: Dialer,
    address: Address,
    current: Master,
}

impl Listener {
    /// Returns when the Sentinel names another master.
    async fn listen(self) {
        let mut pause = retry_pauses();
        loop {
            match self.listen_once().await {
                Ok(true) => return,
                Ok(false) => pause = retry_pauses(),
                Err(fault) => debug!(?fault, address = ?self.address, "a Sentinel cannot be listened to"),
            }
            tokio::time::sleep(pause.next().unwrap_or(RETRY_PAUSE_MAX)).await;
        }
    }

    /// Listens until something happens; whether there is another master.
    async fn listen_once(&self) -> Result<bool, Fault> {
        let news = Arc::new(Notify::new());
        let ended = CancellationToken::new();
        let pushes = {
            let (news, ended) = (Arc::clone(&news), ended.clone());
            move |push: PushInfo| match push.kind {
                // Of whichever master: the question that follows is about ours.
                PushKind::Message => news.notify_one(),
                PushKind::Disconnection => ended.cancel(),
                _ => {}
            }
        };
        let opened = tokio::time::timeout(self.dialer.timeout, async {
            let mut sentinel = self.dialer.open(&self.address, pushes).await?;
            sentinel.subscribe(&NEWS).await?;
            Ok::<_, Fault>(sentinel)
        });
        let mut sentinel = opened.await.unwrap_or_else(|_| Err(Fault::no_reply()))?;
        loop {
            let asked = tokio::time::timeout(self.dialer.timeout, self.sentinels.ask(&mut sentinel)).await;
            let master = asked.unwrap_or_else(|_| Err(Fault::no_reply()))?;
            if self.is_followed_by(&master).await {
                debug!(?master, "the Sentinels have a new master");
                return Ok(true);
            }
            tokio::select! {
                () = news.notified() => {}
                // A connection may be dead without a sign of it.
                () = tokio::time::sleep(self.dialer.timeout.mul_f64(0.75 + fastrand::f64() / 2.0)) => {}
                () = ended.cancelled() => return Ok(false),
            }
        }
    }

    /// Whether this is another master than the current one, and not one of before.
    async fn is_followed_by(&self, master: &Master) -> bool {
        match master.epoch.cmp(&self.current.epoch) {
            _ if master.address == self.current.address => false,
            Ordering::Less => false,
            Ordering::Greater => true,
            // The others may have a later epoch, or be more.
            Ordering::Equal => {
                let found = self.sentinels.find(&self.dialer).await;
                found.is_ok_and(|found| found.address != self.current.address)
            }
        }
    }
}

/// Of the answers with the highest epoch, the one that most Sentinels give.
fn newest(named: Vec<Master>) -> Result<Master, Fault> {
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
        [] => Err(Fault::nonsense("no Sentinel names a master")),
        [(most, one), (next, other), ..] if most == next => {
            let message =
                format!("the Sentinels disagree: {} or {} is the master", one.address, other.address);
            Err(Fault::new(Effect::Busy, ErrorKind::Unavailable, message))
        }
        [(_, master), ..] => Ok(master.clone()),
    }
}

/// Sentinels have users of their own.
fn of_login(fault: Fault) -> Fault {
    if fault.kind() != ErrorKind::Denied {
        return fault;
    }
    let message =
        format!("a Sentinel refuses the login (sentinel_user, sentinel_password): {}", fault.message());
    Fault::new(Effect::Refused, ErrorKind::Denied, message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkit_conformance::by_hand::{HANG, until};
    use lockkit_testbed::{Redis, RedisSentinels};

    use super::*;
    use crate::node::Login;

    /// Nobody looks by itself before the test is over.
    const NEVER: Duration = Duration::from_secs(24 * 60 * 60);

    fn address_of(server: &Redis) -> Address {
        let endpoint = server.endpoint();
        let (host, port) = endpoint.split_once(':').unwrap();
        Address::Tcp(host.to_owned(), port.parse().unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failover_is_heard_of_although_nobody_asks() {
        let servers = RedisSentinels::start().unwrap();
        let addresses = servers.sentinels().iter().map(address_of).collect();
        let sentinels = Sentinels { addresses, master: RedisSentinels::NAME.to_owned() };
        let dialer = Dialer { login: Login::default(), tls: None, timeout: NEVER };
        let master = sentinels.find(&dialer).await.unwrap();
        let broken = CancellationToken::new();
        let _watch = sentinels.watch(&dialer, &master, &broken);
        // It subscribes, and asks once.
        let has_asked = |sentinel: &Redis| {
            let clients = sentinel.cli(&["CLIENT", "LIST"]).unwrap();
            clients.text().lines().any(|line| line.contains(" sub=2 ") && line.contains(" cmd=sentinel"))
        };
        until("it listens to all", async || servers.sentinels().iter().all(has_asked)).await;
        servers.failover().unwrap();
        let heard = tokio::time::timeout(HANG, broken.cancelled()).await;
        heard.expect("the Sentinels tell of the new master");
    }

    fn master(epoch: u64, port: u16) -> Master {
        Master { epoch, address: Address::Tcp("h".to_owned(), port) }
    }

    #[test]
    fn the_latest_failover_counts_and_not_the_first_answer() {
        let newest = |named: &[(u64, u16)]| {
            newest(named.iter().map(|&(epoch, port)| master(epoch, port)).collect())
                .map(|master| master.address)
        };
        let at = |port| Address::Tcp("h".to_owned(), port);
        assert_eq!(newest(&[(1, 1), (1, 1), (2, 2)]).unwrap(), at(2));
        assert_eq!(newest(&[(2, 1), (2, 2), (2, 2)]).unwrap(), at(2));
        assert_eq!(newest(&[(2, 2), (2, 1), (2, 2), (3, 3)]).unwrap(), at(3));
        for disagreement in [&[(2, 1), (2, 2)][..], &[(2, 2), (2, 1), (1, 1)]] {
            let fault = newest(disagreement).unwrap_err();
            assert!(fault.may_pass() && fault.message().contains("h:1"), "{fault:?}");
        }
    }
}
