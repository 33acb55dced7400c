//! A backend of one's own: a toy key server, locks in it, and the conformance suite on them. Its story is told in
//! `docs/adding-a-backend.md`.
//!
//! What can go wrong, first. A reply is lost: whoever asks again is told of the hold that it has. A claim gives up: it
//! frees what it may have. A holder dies: the server forgets what was not kept for a ttl.

use std::{collections::BTreeMap, net::SocketAddr, process::ExitCode, sync::*, time::*};

use async_trait::async_trait;
use lockkit_conformance::{AnyBackend, Plain};
use lockkit_core::{Clock, Error, ErrorKind, FencingToken, LockName, Result, backend::*};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::{net::TcpListener, net::TcpStream, time::sleep, time::timeout};
use tokio_util::sync::CancellationToken;

const REQUEST_MAX: Duration = Duration::from_secs(1);
const POLL_PAUSE: Duration = Duration::from_millis(20);

fn main() -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?.to_string();
    runtime.spawn(serve(listener));
    let toy = Plain::new("toy", &address, |address| Ok(AnyBackend::new(Toy(address.parse()?))))?;
    Ok(lockkit_conformance::main(toy))
}

/// Of each lock: its holder, its token, and when the server forgets it.
type Keys = BTreeMap<String, (String, u64, Instant)>;

/// What the server knows: the keys, and the last token.
static SERVER: Mutex<(Keys, u64)> = Mutex::new((Keys::new(), 0));

/// The server: a line in, the token of the hold out, or 0. A client that stands still holds up no other.
async fn serve(listener: TcpListener) -> std::io::Result<()> {
    loop {
        let (mut stream, mut line) = (listener.accept().await?.0, String::new());
        tokio::spawn(async move {
            BufReader::new(&mut stream).read_line(&mut line).await?;
            stream.write_u64(answer(&line).unwrap_or(0)).await
        });
    }
}

fn answer(line: &str) -> Option<u64> {
    let words: Vec<&str> = line.strip_suffix(" \n")?.split(' ').collect();
    let ((keys, last_token), now) = (&mut *SERVER.lock().ok()?, Instant::now());
    keys.retain(|_, (_, _, end)| *end > now);
    if let ["free", asking] = *words {
        keys.retain(|_, (holder, ..)| !holder.starts_with(asking));
    }
    let [verb @ ("take" | "keep"), key, asking, ttl_ms] = *words else { return None };
    if verb == "take" && !keys.contains_key(key) {
        *last_token += 1;
        keys.insert(key.to_owned(), (asking.to_owned(), *last_token, now));
    }
    let (_, token, end) = keys.get_mut(key).filter(|(holder, ..)| holder == asking)?;
    *end = now + Duration::from_millis(ttl_ms.parse().ok()?);
    Some(*token)
}

#[derive(Debug)]
struct Toy(SocketAddr);

#[async_trait]
impl Backend for Toy {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new("toy", Lifetime::Hold);
        info.ttl_min = Duration::from_secs(2);
        info.token = TokenStrength::History;
        info.failover = FailoverLoss::NoFailover;
        info
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        if ttl > self.info().ttl_max {
            return Err(Error::new(ErrorKind::InvalidConfig, "open session").with_message("ttl beyond a day"));
        }
        let (ttl, id, closed) = (ttl.max(self.info().ttl_min), ClaimId::random(), CancellationToken::new());
        let session = ToySession { server: self.0, id, ttl, clock, closed };
        session.ask("hello".to_owned()).await?;
        Ok(Arc::new(session))
    }

    fn admin(&self) -> Option<&dyn Admin> {
        None
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
    async fn ask(&self, line: String) -> Result<u64> {
        let talk = async {
            let mut stream = TcpStream::connect(self.server).await?;
            stream.write_all(format!("{line} \n").as_bytes()).await?;
            stream.read_u64().await
        };
        let told = timeout(REQUEST_MAX, talk).await.ok().and_then(std::io::Result::ok);
        told.ok_or_else(|| Error::new(ErrorKind::Unavailable, "ask the key server"))
    }

    async fn hold(&self, verb: &str, name: &LockName, claim: ClaimId) -> Result<u64> {
        self.ask(format!("{verb} {} {}.{claim} {}", name.encode(255), self.id, self.ttl.as_millis())).await
    }

    async fn free(&self, claim: ClaimId) -> Result<u64> {
        self.ask(format!("free {}.{claim}", self.id)).await
    }
}

#[async_trait]
impl Session for ToySession {
    fn ttl(&self) -> Duration {
        self.ttl
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        loop {
            let armed_at = self.clock.now();
            let told = self.hold("take", claim.name(), claim.id()).await;
            match told {
                Ok(0) => claim.note_contended(),
                Ok(token) if !self.closed.is_cancelled() => {
                    return Ok(Acquired::Granted(Grant::new(&claim, FencingToken::new(token), armed_at)));
                }
                _ => {}
            }
            if !claim.wait() || claim.has_given_up() || self.closed.is_cancelled() {
                while self.free(claim.id()).await.is_err() && self.clock.now() < armed_at.after(self.ttl) {
                    sleep(POLL_PAUSE).await;
                }
                return told.map(|_| Acquired::GaveUp);
            }
            let _ = timeout(POLL_PAUSE, claim.give_up()).await;
        }
    }

    async fn renew(&self, held: &[Grant]) -> Beat {
        let armed_at = self.clock.now();
        let mut beat = Beat::new(Renewal::Renewed { armed_at }, Vec::new());
        for grant in held {
            let renewal = match self.hold("keep", grant.name(), grant.claim()).await {
                Ok(0) => Renewal::Gone,
                Ok(_) => Renewal::Renewed { armed_at },
                Err(error) => Renewal::Unknown(error),
            };
            beat.holds.push((grant.claim(), renewal));
        }
        beat
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        self.free(grant.claim()).await.map(drop)
    }

    async fn lost(&self) -> Loss {
        self.closed.cancelled().await;
        Loss::Session
    }

    async fn close(&self) -> Result<()> {
        self.closed.cancel();
        self.ask(format!("free {}", self.id)).await.map(drop)
    }
}
