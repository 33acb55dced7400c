//! Who is let in.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::SeqCst},
};

use tokio::{
    net::{TcpListener, TcpStream},
    select,
};

use super::{
    Shared,
    link::{self, Link},
    lock,
};
use crate::process::owns_socket;

/// What becomes of a new connection.
enum Entry {
    Served,
    Refused,
    CutOff,
}

impl Shared {
    /// Whether a connection is this process's; `None` where nobody can tell.
    pub(super) fn is_of(&self, pid: u32, client: SocketAddr) -> Option<bool> {
        owns_socket(pid, client, self.address)
    }

    /// What becomes of a connection that has just been taken.
    fn entry_of(&self, client: SocketAddr) -> Entry {
        let blocked = self.blocked.borrow().clone();
        let is_of: Vec<_> = blocked.into_iter().map(|pid| self.is_of(pid, client)).collect();
        // The last question: a refusal meanwhile is seen.
        if self.is_refusing.load(SeqCst) || is_of.contains(&None) {
            Entry::Refused
        } else if is_of.contains(&Some(true)) {
            Entry::CutOff
        } else {
            Entry::Served
        }
    }
}

/// Takes connections, without end.
pub(super) async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    while let Ok((client, address)) = listener.accept().await {
        shared.accepted.fetch_add(1, SeqCst);
        tokio::spawn(connect(client, address, Arc::clone(&shared)));
    }
}

async fn connect(client: TcpStream, address: SocketAddr, shared: Arc<Shared>) {
    let link = Arc::new(Link::new(address));
    // First on the list, then the question: a refusal meanwhile is seen by one of the two.
    lock(&shared.links).push(Arc::clone(&link));
    // The sender lives as long as this.
    let _ = shared.is_holding_new.subscribe().wait_for(|is_holding| !is_holding).await;
    // Beside the other connections: whose it is takes a look into long tables.
    let asked = tokio::task::spawn_blocking({
        let shared = Arc::clone(&shared);
        move || shared.entry_of(address)
    });
    match (asked.await, TcpStream::connect(&shared.target).await) {
        (Ok(Entry::Served), Ok(server)) => link::serve(&link, client, server, &shared).await,
        (Ok(Entry::CutOff), _) => unanswered(client, &shared).await,
        _ => link::reset(client),
    }
    lock(&shared.links).retain(|other| !Arc::ptr_eq(other, &link));
}

/// Holds the connection of a process that is cut off.
async fn unanswered(mut client: TcpStream, shared: &Shared) {
    let (mut blocked, mut unread) = (shared.blocked.subscribe(), tokio::io::sink());
    select! {
        _ = blocked.wait_for(Vec::is_empty) => {}
        // Until its end.
        _ = tokio::io::copy(&mut client, &mut unread) => {}
    }
    link::reset(client);
}
