//! A backend of one's own: a toy key server, locks in it, and the conformance suite on them. Its story is told in
//! `docs/adding-a-backend.md`.
//!
//! What can go wrong, first. A reply is lost: whoever asks again is told of the hold that it has. A claim gives up: it
//! frees what it may have. A holder dies: the server forgets what was not kept for a ttl.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::{collections::HashMap, process::ExitCode, sync::Arc, time::Duration, time::Instant};

use async_trait::async_trait;
use lockkit_conformance::{AnyBackend, Plain};
use lockkit_core::{Clock, Error, ErrorKind, FencingToken, LockName, Result, backend::*};
use tokio::{io::AsyncReadExt, io::AsyncWriteExt, net::TcpStream, time::sleep, time::timeout};
use tokio_util::sync::CancellationToken;

const REQUEST_MAX: Duration = Duration::from_millis(300);
const POLL_PAUSE: Duration = Duration::from_millis(20);

fn main() -> anyhow::Result<ExitCode> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    std::thread::spawn(move || serve(&listener));
    let toy = Plain::new("toy", &address, |address| Ok(AnyBackend::new(Toy(address.parse()?))))?;
    Ok(lockkit_conformance::main(toy))
}

/// The server: a line in, the token of the hold out, or 0. One connection after the other.
fn serve(listener: &TcpListener) {
    let (mut keys, mut last_token) = (HashMap::<String, (String, u64, Instant)>::new(), 0);
    for mut stream in listener.incoming().flatten() {
        let (mut line, now, mut told) = (String::new(), Instant::now(), 0);
        let _ = stream.set_read_timeout(Some(REQUEST_MAX));
        let _ = BufReader::new(&stream).read_line(&mut line);
        keys.retain(|_, (_, _, end)| *end > now);
        match *line.split(' ').collect::<Vec<_>>() {
            [verb @ ("take" | "keep"), key, asking, ttl_ms, "\n"] => {
                if verb == "take" && !keys.contains_key(key) {
                    last_token += 1;
                    keys.insert(key.to_owned(), (asking.to_owned(), last_token, now));
                }
                if let Some((_, token, end)) = keys.get_mut(key).filter(|(holder, ..)| holder == asking) {
                    *end = now + Duration::from_millis(ttl_ms.parse().unwrap_or(0));
                    told = *token;
                }
            }
            ["free", asking, "\n"] => keys.retain(|_, (holder, ..)| !holder.starts_with(asking)),
            _ => {}
        }
        let _ = write!(stream, "{told}");
    }
}

#[derive(Debug)]
struct Toy(SocketAddr);

#[async_trait]
impl Backend for Toy {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            scheme: "toy",
            ttl_min: Duration::from_secs(2),
            ttl_max: Duration::from_secs(24 * 3600),
            beat: BeatInterval::PerTtl(3),
            lifetime: Lifetime::Hold,
            queue: QueueKind::Unordered,
            token: TokenStrength::History,
            loss: LossDetection::Beat,
            failover: FailoverLoss::NoFailover,
        }
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
            let mut told = String::new();
            stream.read_to_string(&mut told).await?;
            anyhow::Ok(told.parse()?)
        };
        let told = timeout(REQUEST_MAX, talk).await.ok().and_then(anyhow::Result::ok);
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
        let mut beat = Beat { session: Renewal::Renewed { armed_at }, holds: Vec::new() };
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
