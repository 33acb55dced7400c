//! Loopback addresses and ports that no other run uses.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, TcpListener},
    sync::atomic::{AtomicU8, Ordering},
};

/// An address of 127.0.0.0/8 made of the process id and a counter: tests that run side by side, also those of other
/// processes, cannot take each other's ports between the choice of a port and the start of its server.
pub(crate) fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    // 0 and 255 are left out: they are network and broadcast addresses to some tools.
    let host = NEXT.fetch_add(1, Ordering::Relaxed) % 254 + 1;
    Ipv4Addr::new(127, high, low, host)
}

/// Different ports that are free on this address at the moment.
pub(crate) fn free_ports<const N: usize>(address: Ipv4Addr) -> io::Result<[u16; N]> {
    let mut ports = [0; N];
    let mut taken = Vec::with_capacity(N);
    for port in &mut ports {
        let listener = TcpListener::bind((IpAddr::V4(address), 0))?;
        *port = listener.local_addr()?.port();
        // Kept until all are found, so that none is found twice.
        taken.push(listener);
    }
    Ok(ports)
}
