//! Loopback addresses and ports that no other test process uses.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, TcpListener},
    sync::atomic::{AtomicU8, Ordering},
};

/// Returns an address of 127.0.0.0/8, made of the process id and a counter.
///
/// A port is chosen before its server binds it. With an address of its own, no test of this or another process can take
/// the port in between.
pub(crate) fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    // Not 0 or 255: some tools take these for network and broadcast addresses.
    let host = NEXT.fetch_add(1, Ordering::Relaxed) % 254 + 1;
    Ipv4Addr::new(127, high, low, host)
}

/// Returns different ports that are free on this address now.
pub(crate) fn free_ports<const N: usize>(address: Ipv4Addr) -> io::Result<[u16; N]> {
    let mut ports = [0; N];
    let mut taken = Vec::with_capacity(N);
    for port in &mut ports {
        let listener = TcpListener::bind((IpAddr::V4(address), 0))?;
        *port = listener.local_addr()?.port();
        // Bound until all are found, so that no port is found twice.
        taken.push(listener);
    }
    Ok(ports)
}
