//! Sentinels: who the master is, and that it has changed.
//!
//! * Sentinels disagree for a while after a failover: the answer with the highest epoch is the newest.
//! * The old master goes on taking writes until it hears of its demotion, for 10 s and more: so every Sentinel is
//!   listened to, and the connection is given up as soon as one of them names another master.
//! * A Sentinel goes away and comes back: it is listened to again, and asked first whether something was missed.
//! * A connection to a Sentinel is dead and looks alive, or a message is lost: each is asked again now and then.

use std::sync::Arc;

use lockkit_core::{ErrorKind, backend::retry_pauses, limits::RETRY_PAUSE_MAX};
use redis::{PushInfo, PushKind, aio::MultiplexedConnection};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    error::{Effect, Fault},
    node::{Address, Dialer, Login},
};

/// The channel on which Sentinels tell of a new master.
const SWITCHED: &str = "+switch-master";

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
    /// Where the master is, as the Sentinel says that knows of the latest failover.
    pub(crate) async fn find(&self, dialer: &Dialer) -> Result<Master, Fault> {
        let dialer = without_login(dialer);
        let answers = self.addresses.iter().map(|address| async {
            let opening = tokio::time::timeout(dialer.timeout / 2, async {
                let mut sentinel = dialer.open(address, |_| {}).await?;
                self.ask(&mut sentinel).await
            });
            opening.await.unwrap_or_else(|_| Err(Fault::no_reply()))
        });
        let (mut found, mut failed) = (None, None);
        for answer in futures_util::future::join_all(answers).await {
            match answer {
                Ok(master) if found.as_ref().is_none_or(|best: &Master| best.epoch < master.epoch) => {
                    found = Some(master);
                }
                Ok(_) => {}
                Err(fault) => failed = Some(fault),
            }
        }
        let unknown = || Fault::nonsense("no Sentinel is configured");
        found.ok_or_else(|| failed.unwrap_or_else(unknown))
    }

    /// Cancels `broken` when one of the Sentinels names another master than this.
    pub(crate) fn watch(&self, dialer: &Dialer, current: &Master, broken: &CancellationToken) -> Watch {
        let mut tasks = JoinSet::new();
        for address in &self.addresses {
            let listener = Listener {
                sentinels: self.clone(),
                dialer: without_login(dialer),
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
        let mut command = redis::cmd("SENTINEL");
        command.arg("MASTER").arg(&self.master);
        let fields: std::collections::HashMap<String, String> =
            command.query_async(sentinel).await.map_err(|error| self.not_known(error))?;
        let field = |name: &str| fields.get(name).ok_or_else(|| Fault::nonsense(format!("no {name:?}")));
        let number = |name: &'static str, text: &str| {
            text.parse::<u64>().map_err(|_| Fault::nonsense(format!("{name} {text:?}")))
        };
        let port = number("port", field("port")?)?;
        let port = u16::try_from(port).map_err(|_| Fault::nonsense("a port that is none"))?;
        Ok(Master {
            epoch: number("config-epoch", field("config-epoch")?)?,
            address: Address::Tcp(field("ip")?.clone(), port),
        })
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
            sentinel.subscribe(SWITCHED).await?;
            Ok::<_, Fault>(sentinel)
        });
        let mut sentinel = opened.await.unwrap_or_else(|_| Err(Fault::no_reply()))?;
        loop {
            let asked = tokio::time::timeout(self.dialer.timeout, self.sentinels.ask(&mut sentinel)).await;
            let master = asked.unwrap_or_else(|_| Err(Fault::no_reply()))?;
            if master.epoch > self.current.epoch && master.address != self.current.address {
                debug!(?master, "the Sentinels have a new master");
                return Ok(true);
            }
            tokio::select! {
                () = news.notified() => {}
                // A connection may be dead without a sign of it.
                () = tokio::time::sleep(self.dialer.timeout) => {}
                () = ended.cancelled() => return Ok(false),
            }
        }
    }
}

/// Sentinels have no databases, and other users.
fn without_login(dialer: &Dialer) -> Dialer {
    Dialer { login: Login::default(), ..dialer.clone() }
}
