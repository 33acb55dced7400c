//! Who is let in.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    select,
    time::{Instant, sleep},
};

use super::{
    Shared, Speech,
    cut::Origin,
    link::{self, Fate, Link},
    lock,
};
use crate::process::owns_socket;

/// Longest time in which a leader that has just been elected opens its port.
const LEADER_MAX: Duration = Duration::from_secs(5);

/// Pause between two tries to reach it.
const LEADER_POLL: Duration = Duration::from_millis(10);

/// What becomes of a new connection.
enum Entry {
    Served,
    Refused,
    /// From here, which is cut off.
    CutOff(Origin),
}

impl Shared {
    /// What becomes of a connection that has just been taken.
    async fn entry(&self, client: SocketAddr) -> Entry {
        let blocked = self.blocked.borrow().clone();
        let (mut cut_off, mut is_unknown) = (None, false);
        for origin in blocked {
            match self.comes_from(client, origin).await {
                Some(true) => cut_off = Some(origin),
                Some(false) => {}
                None => is_unknown = true,
            }
        }
        // The last question: a refusal meanwhile is seen.
        if self.is_refusing.load(SeqCst) || is_unknown {
            Entry::Refused
        } else {
            cut_off.map_or(Entry::Served, Entry::CutOff)
        }
    }

    async fn comes_from(&self, client: SocketAddr, origin: Origin) -> Option<bool> {
        match origin {
            Origin::Process(pid) => owns_socket(pid, client, self.address).await,
            Origin::Address(address) => Some(client.ip() == address),
        }
    }

    /// The connection to the server.
    ///
    /// A leader opens its port when it is elected, and who follows it may be sooner. It would be refused and try again;
    /// but here it is taken already. Reset, it would look for another leader until this one, whom nobody follows, gives
    /// up (after `initLimit`): so it waits here.
    async fn reach_server(&self, link: &Link) -> io::Result<TcpStream> {
        let until = Instant::now() + LEADER_MAX;
        loop {
            let reached = TcpStream::connect(&self.target).await;
            let waits = matches!(self.speech, Speech::Quorum) && link.fate() == Fate::Served;
            if reached.is_ok() || !waits || Instant::now() >= until {
                return reached;
            }
            sleep(LEADER_POLL).await;
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
    match shared.entry(address).await {
        // A cut or a refusal from here on finds the link on the list.
        Entry::Served => match shared.reach_server(&link).await {
            Ok(server) => link::serve(&link, client, server, &shared).await,
            Err(_) => link::reset(client),
        },
        Entry::Refused => link::reset(client),
        Entry::CutOff(origin) => unanswered(client, origin, &shared).await,
    }
    lock(&shared.links).retain(|other| !Arc::ptr_eq(other, &link));
}

/// Holds a connection from where nothing may come.
async fn unanswered(mut client: TcpStream, origin: Origin, shared: &Shared) {
    let (mut blocked, mut unread) = (shared.blocked.subscribe(), tokio::io::sink());
    select! {
        _ = blocked.wait_for(|blocked| !blocked.contains(&origin)) => {}
        // Until its end.
        _ = tokio::io::copy(&mut client, &mut unread) => {}
    }
    link::reset(client);
}

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read, Write},
        net::{TcpListener, TcpStream},
    };

    use crate::{Proxy, address::own_address, proxy::Speech};

    #[test]
    fn who_follows_a_leader_waits_until_it_listens() {
        let address = TcpListener::bind((own_address(), 0)).unwrap().local_addr().unwrap();
        let proxy = Proxy::start_at(own_address(), address, Speech::Quorum).unwrap();
        let mut follower = TcpStream::connect(proxy.endpoint()).unwrap();
        follower.write_all(b"hello").unwrap();
        // Long enough to be refused: that is told by a reset.
        follower.set_read_timeout(Some(super::LEADER_POLL * 10)).unwrap();
        assert_eq!(follower.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let (mut leader, _) = TcpListener::bind(address).unwrap().accept().unwrap();
        let mut heard = [0; 5];
        leader.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    }
}
