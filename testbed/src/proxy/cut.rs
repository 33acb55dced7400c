//! Cuts off some of the clients of a proxy.

use std::net::{IpAddr, SocketAddr};

use super::{Proxy, Shared, connection::ConnectionState};
use crate::{
    socket_owner::{owners_are_known, owns_socket},
    sync::lock,
};

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Process(u32),
    Address(IpAddr),
}

impl Proxy {
    /// Resets all connections of this process, which runs on the same machine. New ones are accepted and never
    /// answered, until [`let_in`](Self::let_in) or [`pass`](Self::pass) resets them. (If they were refused, the client
    /// would retry at once, without end.)
    ///
    /// # Panics
    ///
    /// When the kernel does not say which process owns a socket.
    pub fn cut_off(&self, pid: u32) {
        Self::cut_off_all(&[self], pid);
    }

    /// As [`cut_off`](Self::cut_off) at several proxies: none serves a new connection when the first one is reset.
    pub(crate) fn cut_off_all(proxies: &[&Self], pid: u32) {
        assert!(
            owners_are_known(),
            "this kernel does not say who owns a socket: it lacks tcp_diag, sock_diag(7)"
        );
        for proxy in proxies {
            proxy.shared.block(Origin::Process(pid));
        }
        for proxy in proxies {
            for connection in proxy.connections() {
                // Also reset in doubt: another process just reconnects.
                if owns_socket(pid, connection.client, proxy.address) != Some(false) {
                    connection.advance_to(ConnectionState::Reset);
                }
            }
        }
    }

    /// As [`cut_off`](Self::cut_off), for all connections from this address.
    pub(crate) fn cut_off_address(&self, address: IpAddr) {
        self.shared.block(Origin::Address(address));
        for connection in
            self.connections().into_iter().filter(|connection| connection.client.ip() == address)
        {
            connection.advance_to(ConnectionState::Reset);
        }
    }

    /// Serves connections from this address again.
    pub(crate) fn let_in_address(&self, address: IpAddr) {
        self.shared.unblock(Origin::Address(address));
    }

    /// Exempts connections from these addresses from what is [set](Self::set).
    pub(crate) fn set_exempt(&self, addresses: &[IpAddr]) {
        *lock(&self.shared.exempt) = addresses.to_vec();
    }

    /// Serves connections of this process again after [`cut_off`](Self::cut_off), and resets those that were accepted
    /// meanwhile.
    pub fn let_in(&self, pid: u32) {
        self.shared.unblock(Origin::Process(pid));
    }
}

impl Shared {
    pub(super) fn is_exempt(&self, client: SocketAddr) -> bool {
        lock(&self.exempt).contains(&client.ip())
    }

    fn block(&self, origin: Origin) {
        self.blocked.send_modify(|blocked| blocked.push(origin));
    }

    fn unblock(&self, origin: Origin) {
        self.blocked.send_modify(|blocked| blocked.retain(|&other| other != origin));
    }
}
