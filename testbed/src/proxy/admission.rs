//! Which new connections are served.

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
    Protocol, Shared,
    connection::{self, ClientConnection, ConnectionState},
    cut::Origin,
};
use crate::{socket_owner::owns_socket, sync::lock};

/// Longest time until a leader that was just elected opens its port.
const LEADER_MAX: Duration = Duration::from_secs(5);

/// Pause between two attempts to connect to it.
const LEADER_POLL: Duration = Duration::from_millis(10);

/// What happens to a new connection.
enum Admission {
    Served,
    Refused,
    /// Its origin is cut off.
    CutOff(Origin),
}

impl Shared {
    /// Decides on a connection that was just accepted.
    fn admission(&self, client: SocketAddr) -> Admission {
        let blocked = self.blocked.borrow().clone();
        let (mut cut_off, mut is_unknown) = (None, false);
        for origin in blocked {
            match self.comes_from(client, origin) {
                Some(true) => cut_off = Some(origin),
                Some(false) => {}
                None => is_unknown = true,
            }
        }
        // Read last: `refuse` may be called while the owner of the socket is looked up.
        if self.is_refusing.load(SeqCst) || is_unknown {
            Admission::Refused
        } else {
            cut_off.map_or(Admission::Served, Admission::CutOff)
        }
    }

    fn comes_from(&self, client: SocketAddr, origin: Origin) -> Option<bool> {
        match origin {
            Origin::Process(pid) => owns_socket(pid, client, self.address),
            Origin::Address(address) => Some(client.ip() == address),
        }
    }

    /// Connects to the server.
    ///
    /// A ZooKeeper leader opens its port when it is elected, and a follower may connect sooner. Without the proxy its
    /// connection would be refused and it would retry; here its connection is accepted already. If that were reset, the
    /// follower would look for another leader until this one, which has no followers, gives up after `initLimit`. So
    /// the proxy retries in its place.
    async fn reach_server(&self, connection: &ClientConnection) -> io::Result<TcpStream> {
        let until = Instant::now() + LEADER_MAX;
        loop {
            let reached = TcpStream::connect(&self.target).await;
            let waits =
                matches!(self.protocol, Protocol::Quorum) && connection.state() == ConnectionState::Open;
            if reached.is_ok() || !waits || Instant::now() >= until {
                return reached;
            }
            sleep(LEADER_POLL).await;
        }
    }
}

/// Accepts connections, without end.
pub(super) async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    while let Ok((client, address)) = listener.accept().await {
        shared.accepted.fetch_add(1, SeqCst);
        tokio::spawn(connect(client, address, Arc::clone(&shared)));
    }
}

async fn connect(client: TcpStream, address: SocketAddr, shared: Arc<Shared>) {
    let connection = Arc::new(ClientConnection::new(address));
    // First the list, then the decision: a concurrent `refuse` or cut finds the connection on the list, or is seen by
    // `admission`.
    lock(&shared.connections).push(Arc::clone(&connection));
    // It cannot fail: `shared` owns the sender.
    let _ = shared.is_holding_new.subscribe().wait_for(|is_holding| !is_holding).await;
    match shared.admission(address) {
        // From here on a cut or a refusal finds the connection on the list.
        Admission::Served => match shared.reach_server(&connection).await {
            Ok(server) => connection::serve(&connection, client, server, &shared).await,
            Err(_) => connection::reset(client),
        },
        Admission::Refused => connection::reset(client),
        Admission::CutOff(origin) => unanswered(client, origin, &shared).await,
    }
    lock(&shared.connections).retain(|other| !Arc::ptr_eq(other, &connection));
}

/// Keeps a connection whose origin is cut off, without a reply.
async fn unanswered(mut client: TcpStream, origin: Origin, shared: &Shared) {
    let (mut blocked, mut unread) = (shared.blocked.subscribe(), tokio::io::sink());
    select! {
        _ = blocked.wait_for(|blocked| !blocked.contains(&origin)) => {}
        // Until the client closes it.
        _ = tokio::io::copy(&mut client, &mut unread) => {}
    }
    connection::reset(client);
}

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read, Write},
        net::{TcpListener, TcpStream},
    };

    use crate::{Proxy, address::own_address, proxy::Protocol};

    #[test]
    fn follower_waits_until_its_leader_listens() {
        let address = TcpListener::bind((own_address(), 0)).unwrap().local_addr().unwrap();
        let proxy = Proxy::start_at(own_address(), address, Protocol::Quorum).unwrap();
        let mut follower = TcpStream::connect(proxy.endpoint()).unwrap();
        follower.write_all(b"hello").unwrap();
        // Long enough for a refusal, which would be a reset.
        follower.set_read_timeout(Some(super::LEADER_POLL * 10)).unwrap();
        assert_eq!(follower.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let (mut leader, _) = TcpListener::bind(address).unwrap().accept().unwrap();
        let mut received = [0; 5];
        leader.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"hello");
    }
}
