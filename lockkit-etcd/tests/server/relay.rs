//! A TCP relay between a client and the server, for replies that get lost and requests that come late.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Notify,
};
use tokio_util::sync::CancellationToken;

use crate::common::{bounded, until};

/// A relay; connections that are made through it behave as it says.
#[derive(Debug)]
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// What the client sends is kept here instead of going to the server.
    hold_requests: AtomicBool,
    held: Mutex<Vec<u8>>,
    flush: Notify,
    /// What the server sends is thrown away.
    swallow_replies: AtomicBool,
    /// New connections are closed at once.
    refuse: AtomicBool,
    /// Closes the client's side of all connections there are.
    cut: Mutex<CancellationToken>,
}

impl Relay {
    pub(crate) async fn start(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let accepting = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !accepting.refuse.load(Ordering::SeqCst) {
                    relay(client, &server, &accepting).await;
                }
            }
        });
        Self { address, shared }
    }

    /// The URL of the server through this relay.
    pub(crate) fn url(&self) -> String {
        format!("etcd://{}/?request_timeout=500ms", self.address)
    }

    /// From now on requests stay here.
    pub(crate) fn hold_requests(&self) {
        self.shared.hold_requests.store(true, Ordering::SeqCst);
    }

    /// Waits until a request that contains this text is here.
    pub(crate) async fn holds(&self, text: &str) {
        let holds = || {
            let held = self.shared.held.lock().unwrap();
            held.windows(text.len()).any(|window| window == text.as_bytes())
        };
        until("the relay holds the request", async || holds()).await;
    }

    /// From now on replies are lost.
    pub(crate) fn swallow_replies(&self) {
        self.shared.swallow_replies.store(true, Ordering::SeqCst);
    }

    /// Closes the client's side of all connections, not the server's; new ones work.
    pub(crate) fn cut(&self) {
        self.shared.hold_requests.store(false, Ordering::SeqCst);
        self.shared.swallow_replies.store(false, Ordering::SeqCst);
        self.shared.refuse.store(false, Ordering::SeqCst);
        self.renew_cut();
    }

    /// Closes all connections and lets none in until [`cut`](Self::cut).
    pub(crate) fn part(&self) {
        self.shared.refuse.store(true, Ordering::SeqCst);
        self.renew_cut();
    }

    /// Sends what was held to the server, over the connections that it was meant for.
    pub(crate) fn flush(&self) {
        self.shared.flush.notify_waiters();
    }

    fn renew_cut(&self) {
        let mut cut = self.shared.cut.lock().unwrap();
        std::mem::take(&mut *cut).cancel();
    }
}

async fn relay(client: TcpStream, server: &str, shared: &Arc<Shared>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    let cut = shared.cut.lock().unwrap().clone();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::spawn(requests(from_client, to_server, Arc::clone(shared), cut.clone()));
    tokio::spawn(replies(from_server, to_client, Arc::clone(shared), cut));
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: Arc<Shared>,
    cut: CancellationToken,
) {
    let mut held = Vec::new();
    let mut bytes = vec![0; 65_536];
    loop {
        let read = tokio::select! {
            read = from.read(&mut bytes) => read.unwrap_or(0),
            () = cut.cancelled() => 0,
        };
        if read == 0 {
            break;
        }
        if shared.hold_requests.load(Ordering::SeqCst) {
            held.extend_from_slice(&bytes[..read]);
            shared.held.lock().unwrap().extend_from_slice(&bytes[..read]);
        } else if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
    drop(from);
    if !held.is_empty() {
        bounded(shared.flush.notified()).await;
        let _ = to.write_all(&held).await;
        // The server serves what it has got as long as the connection stays.
        std::future::pending::<()>().await;
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: Arc<Shared>,
    cut: CancellationToken,
) {
    let mut bytes = vec![0; 65_536];
    let mut client_there = true;
    loop {
        let read = tokio::select! {
            read = from.read(&mut bytes) => read.unwrap_or(0),
            () = cut.cancelled(), if client_there => {
                client_there = false;
                let _ = to.shutdown().await;
                continue;
            }
        };
        if read == 0 {
            return;
        }
        // Read on when nobody wants it, so that the server is not held up.
        if client_there && !shared.swallow_replies.load(Ordering::SeqCst) {
            client_there = to.write_all(&bytes[..read]).await.is_ok();
        }
    }
}
