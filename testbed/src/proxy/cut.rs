//! Some of the clients of a proxy are cut off, the others are not.

use std::net::{IpAddr, SocketAddr};

use super::{Proxy, Shared, link::Fate, lock};
use crate::process::Owned;

/// Where connections come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Process(u32),
    Address(IpAddr),
}

impl Proxy {
    /// Resets all connections whose client is this process of the same machine; new ones are taken and never answered,
    /// until [`let_in`](Self::let_in) or [`pass`](Self::pass) resets them. (Refused, it would try again at once, without end.)
    pub fn cut_off(&self, pid: u32) {
        Self::cut_off_all([self], pid);
    }

    /// As [`cut_off`](Self::cut_off) at several proxies at once: the kernel's tables, which are long on a busy machine, are
    /// read once for all connections.
    pub(crate) fn cut_off_all<'a>(proxies: impl IntoIterator<Item = &'a Self>, pid: u32) {
        let proxies: Vec<&Self> = proxies.into_iter().collect();
        for proxy in &proxies {
            proxy.shared.block(Origin::Process(pid));
        }
        // The second one for what the first one has left out.
        let looks = [Owned::by(pid), Owned::by(pid)];
        for proxy in proxies {
            for link in proxy.links() {
                let is_of = looks.iter().find_map(|owned| owned.has(link.client, proxy.address));
                // In doubt too: it makes a new one.
                if is_of != Some(false) {
                    link.meets(Fate::Reset);
                }
            }
        }
    }

    /// As [`cut_off`](Self::cut_off), for all connections that come from this address.
    pub(crate) fn cut_off_address(&self, address: IpAddr) {
        self.shared.block(Origin::Address(address));
        for link in self.links().into_iter().filter(|link| link.client.ip() == address) {
            link.meets(Fate::Reset);
        }
    }

    /// Takes connections from this address again.
    pub(crate) fn let_in_address(&self, address: IpAddr) {
        self.shared.unblock(Origin::Address(address));
    }

    /// From now on connections from these addresses pass, whatever is [set](Self::set).
    pub(crate) fn spare(&self, addresses: &[IpAddr]) {
        *lock(&self.shared.spared) = addresses.to_vec();
    }

    /// Takes connections of this process again after [`cut_off`](Self::cut_off), and resets those that were not answered.
    pub fn let_in(&self, pid: u32) {
        self.shared.unblock(Origin::Process(pid));
    }
}

impl Shared {
    pub(super) fn spares(&self, client: SocketAddr) -> bool {
        lock(&self.spared).contains(&client.ip())
    }

    fn block(&self, origin: Origin) {
        self.blocked.send_modify(|blocked| blocked.push(origin));
    }

    fn unblock(&self, origin: Origin) {
        self.blocked.send_modify(|blocked| blocked.retain(|&other| other != origin));
    }
}
