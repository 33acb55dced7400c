//! A custom backend: a toy key server, a lock backend for it, and the conformance suite on both.
//! `docs/adding-a-backend.md` walks through it.
//!
//! What can go wrong:
//!
//! * A reply is lost. The request is repeated, and the server returns the existing hold.
//! * A claim gives up. It frees whatever it may have been granted.
//! * A holder dies. The server removes a key that was not kept for one ttl.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    process::ExitCode,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use lockkit_conformance::{AnyBackend, Plain};
use lockkit_core::{
    Clock, Error, ErrorKind, FencingToken, LockName, Result,
    backend::{
        Acquired, Backend, BackendInfo, Claim, ClaimId, FailoverLoss, Grant, Lifetime, Loss, Promises,
        Renewal, Renewals, Session, TokenStrength,
    },
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// A connection that a busy server has no room for is tried again after a second.
const REQUEST_MAX: Duration = Duration::from_secs(3);
const POLL_PAUSE: Duration = Duration::from_millis(20);

fn main() -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?.to_string();
    runtime.spawn(serve(listener));
    let connect = |address: &str| Ok(AnyBackend::new(ToyBackend { server: address.parse()? }));
    Ok(lockkit_conformance::main(Plain::new("toy", &address, connect)?))
}

/// The data of the server.
struct Keys {
    by_name: BTreeMap<String, Key>,
    last_token: u64,
}

/// A held lock.
struct Key {
    holder: String,
    token: u64,
    ends_at: Instant,
}

static KEYS: Mutex<Keys> = Mutex::new(Keys { by_name: BTreeMap::new(), last_token: 0 });

/// Serves requests: a line in, the token of the hold or 0 out.
async fn serve(listener: TcpListener) -> std::io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (requests, mut replies) = stream.split();
            let mut lines = BufReader::new(requests).lines();
            while let Some(line) = lines.next_line().await? {
                replies.write_u64(carry_out(&line).unwrap_or(0)).await?;
            }
            std::io::Result::Ok(())
        });
    }
}

/// Carries out `take KEY HOLDER TTL_MS`, `keep KEY HOLDER TTL_MS` or `free HOLDER_PREFIX`. The space before the end of
/// the line shows that the request is complete.
fn carry_out(line: &str) -> Option<u64> {
    let words: Vec<&str> = line.strip_suffix(' ')?.split(' ').collect();
    let (mut keys, now) = (KEYS.lock().ok()?, Instant::now());
    keys.by_name.retain(|_, key| key.ends_at > now);
    match *words {
        ["free", prefix] => {
            keys.by_name.retain(|_, key| !key.holder.starts_with(prefix));
            None
        }
        [verb @ ("take" | "keep"), name, holder, ttl_ms] => {
            let ends_at = now + Duration::from_millis(ttl_ms.parse().ok()?);
            if verb == "take" && !keys.by_name.contains_key(name) {
                keys.last_token += 1;
                let key = Key { holder: holder.to_owned(), token: keys.last_token, ends_at };
                keys.by_name.insert(name.to_owned(), key);
            }
            let key = keys.by_name.get_mut(name).filter(|key| key.holder == holder)?;
            key.ends_at = ends_at;
            Some(key.token)
        }
        _ => None,
    }
}

#[derive(Debug)]
struct ToyBackend {
    server: SocketAddr,
}

#[async_trait]
impl Backend for ToyBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new("toy", Lifetime::Hold);
        info.ttl_min = Duration::from_secs(2);
        info
    }

    fn promises(&self) -> Promises {
        Promises::least().with_token(TokenStrength::History).with_failover(FailoverLoss::NoFailover)
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        let info = self.info();
        if ttl > info.ttl_max {
            return Err(Error::new(ErrorKind::InvalidConfig, "open session").with_message("ttl beyond a day"));
        }
        let session = ToySession {
            server: self.server,
            id: ClaimId::random(),
            ttl: ttl.max(info.ttl_min),
            clock,
            closed: CancellationToken::new(),
        };
        // Fails when the server cannot be reached.
        session.request("hello \n".to_owned()).await?;
        Ok(Arc::new(session))
    }
}

#[derive(Debug)]
struct ToySession {
    server: SocketAddr,
    id: ClaimId,
    ttl: Duration,
    clock: Clock,
    closed: CancellationToken,
}

impl ToySession {
    /// Sends requests over one connection; returns the reply to each.
    async fn requests(&self, lines: &[String]) -> Result<Vec<u64>> {
        let exchange = async {
            let mut stream = TcpStream::connect(self.server).await?;
            stream.write_all(lines.concat().as_bytes()).await?;
            let mut replies = Vec::new();
            for _ in lines {
                replies.push(stream.read_u64().await?);
            }
            std::io::Result::Ok(replies)
        };
        match timeout(REQUEST_MAX, exchange).await {
            Ok(Ok(replies)) => Ok(replies),
            _ => Err(Error::new(ErrorKind::Unavailable, "ask the key server")),
        }
    }

    async fn request(&self, line: String) -> Result<u64> {
        Ok(self.requests(&[line]).await?.iter().sum())
    }

    /// The request that takes or keeps the lock. The holder is the claim, so that a repeated one finds its own hold.
    fn hold(&self, verb: &str, name: &LockName, claim: ClaimId) -> String {
        format!("{verb} {} {}.{claim} {} \n", name.encode(255), self.id, self.ttl.as_millis())
    }

    async fn free(&self, claim: ClaimId) -> Result<()> {
        self.request(format!("free {}.{claim} \n", self.id)).await.map(drop)
    }
}

#[async_trait]
impl Session for ToySession {
    fn ttl(&self) -> Duration {
        self.ttl
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        loop {
            // Read before the request is sent: the lifetime must never be overstated.
            let armed_at = self.clock.now();
            let reply = self.request(self.hold("take", claim.name(), claim.id())).await;
            match reply {
                Ok(0) => claim.note_contended(),
                Ok(token) if !self.closed.is_cancelled() => {
                    return Ok(Acquired::Granted(Grant::new(&claim, FencingToken::new(token), armed_at)));
                }
                _ => {}
            }
            if !claim.wait() || claim.has_given_up() || self.closed.is_cancelled() {
                // The last request may have taken the lock although its reply was lost. After one ttl it has expired.
                while self.free(claim.id()).await.is_err() && self.clock.now() < armed_at.after(self.ttl) {
                    sleep(POLL_PAUSE).await;
                }
                return reply.map(|_| Acquired::GaveUp);
            }
            let _ = timeout(POLL_PAUSE, claim.give_up()).await;
        }
    }

    async fn renew(&self, held: &[Grant]) -> Renewals {
        let armed_at = self.clock.now();
        let lines: Vec<_> = held.iter().map(|grant| self.hold("keep", grant.name(), grant.claim())).collect();
        // All at once: one after another, many holds would take longer than their ttl.
        let kept = self.requests(&lines).await;
        let renewal = |number: usize| match &kept {
            Ok(tokens) if tokens.get(number) == Some(&0) => Renewal::Gone,
            Ok(_) => Renewal::Renewed { armed_at },
            Err(error) => Renewal::Unknown(error.clone()),
        };
        let holds = held.iter().enumerate().map(|(number, grant)| (grant.claim(), renewal(number)));
        Renewals::new(Renewal::Renewed { armed_at }, holds.collect())
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        self.free(grant.claim()).await
    }

    async fn lost(&self) -> Loss {
        self.closed.cancelled().await;
        Loss::Session
    }

    async fn close(&self) -> Result<()> {
        self.closed.cancel();
        self.request(format!("free {} \n", self.id)).await.map(drop)
    }
}
