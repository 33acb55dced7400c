//! Which process a connection belongs to.
//!
//! The kernel is asked for one socket, sock_diag(7). Its table of all of them, `/proc/net/tcp`, takes some milliseconds
//! to read, and may leave out a connection while others open and close.

use std::{
    ffi::OsString,
    fs, io,
    net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    sync::LazyLock,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, netlink, recv, send,
        socket_with,
    },
};

/// Whether this process owns the socket at the `own` end of the connection to `other`; `None` when no process owns it,
/// or the kernel does not say.
pub(crate) fn owns_socket(pid: u32, own: SocketAddr, other: SocketAddr) -> Option<bool> {
    // The testbed's servers have no other addresses.
    let (SocketAddr::V4(own), SocketAddr::V4(other)) = (own, other) else { return None };
    let inode = inode(own, other).ok().flatten()?;
    let link = OsString::from(format!("socket:[{inode}]"));
    let mut files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    Some(files.any(|file| fs::read_link(file.path()).is_ok_and(|target| target == link)))
}

/// Whether the kernel says who owns a socket. It is asked for a connection of this process: without the module
/// `tcp_diag`, it replies that there is no such connection.
pub(crate) fn owners_are_known() -> bool {
    static ARE_KNOWN: LazyLock<bool> = LazyLock::new(|| {
        let known = || {
            let listener = TcpListener::bind("127.0.0.1:0").ok()?;
            let client = TcpStream::connect(listener.local_addr().ok()?).ok()?;
            owns_socket(std::process::id(), client.local_addr().ok()?, client.peer_addr().ok()?)
        };
        known() == Some(true)
    });
    *ARE_KNOWN
}

/// `SOCK_DIAG_BY_FAMILY`, the type of a request and of its reply.
const BY_FAMILY: u16 = 20;
/// The type of a message with an error.
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = 16 + 56;
/// `struct nlmsghdr` and `struct inet_diag_msg`.
const REPLY_BYTES: usize = 16 + 72;

/// Where a reply has its fields.
const TYPE_AT: usize = 4;
const ERROR_AT: usize = 16;
const OTHER_PORT_AT: usize = 22;
const INODE_AT: usize = REPLY_BYTES - 4;

/// Returns the inode of the socket at the `own` end; `None` when there is none, or its process has closed it.
fn inode(own: SocketAddrV4, other: SocketAddrV4) -> io::Result<Option<u32>> {
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    send(&kernel, &request(own, other), SendFlags::empty())?;
    let mut reply = [0; 2 * REPLY_BYTES];
    let (_, length) = recv(&kernel, &mut reply, RecvFlags::empty())?;
    inode_in(&reply[..length], other.port())
}

fn request(own: SocketAddrV4, other: SocketAddrV4) -> Vec<u8> {
    let mut request = Vec::with_capacity(REQUEST_BYTES);
    request.extend((REQUEST_BYTES as u32).to_ne_bytes());
    request.extend([BY_FAMILY, NLM_F_REQUEST].map(u16::to_ne_bytes).concat());
    // Sequence number and port id: unused.
    request.extend([0; 8]);
    let tcp = ipproto::TCP.as_raw().get() as u8;
    request.extend([AddressFamily::INET.as_raw() as u8, tcp, 0, 0]);
    // In any state.
    request.extend(u32::MAX.to_ne_bytes());
    request.extend([own.port(), other.port()].map(u16::to_be_bytes).concat());
    for end in [own, other] {
        request.extend(end.ip().octets());
        // An address of IPv6 is longer.
        request.extend([0; 12]);
    }
    // Any interface, and any cookie.
    request.extend([0; 4]);
    request.extend([u8::MAX; 8]);
    request
}

fn inode_in(reply: &[u8], other_port: u16) -> io::Result<Option<u32>> {
    let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let at = |place: usize, length: usize| reply.get(place..place + length).ok_or_else(short);
    match u16::from_ne_bytes(at(TYPE_AT, 2)?.try_into().map_err(|_| short())?) {
        BY_FAMILY => {
            // Without a connection, the kernel looks for a listener at the local end.
            let is_connection = at(OTHER_PORT_AT, 2)? == other_port.to_be_bytes();
            let inode = u32::from_ne_bytes(at(INODE_AT, 4)?.try_into().map_err(|_| short())?);
            Ok((is_connection && inode != 0).then_some(inode))
        }
        NLMSG_ERROR => {
            let negative = i32::from_ne_bytes(at(ERROR_AT, 4)?.try_into().map_err(|_| short())?);
            let error = Errno::from_raw_os_error(negative.saturating_neg());
            if error == Errno::NOENT { Ok(None) } else { Err(error.into()) }
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn connection_belongs_to_the_process_that_opened_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        assert!(owners_are_known());
        assert_eq!(owns_socket(std::process::id(), own, other), Some(true));
        assert_eq!(owns_socket(1, own, other), Some(false));
        let accepted = listener.accept().unwrap();
        assert_eq!(owns_socket(std::process::id(), other, own), Some(true));
        drop((client, accepted));
        // A child process of another test has a copy of the socket until it executes its program.
        let dropped = Instant::now();
        while owns_socket(std::process::id(), own, other).is_some() {
            assert!(dropped.elapsed() < Duration::from_secs(60), "it still belongs to a process");
            thread::yield_now();
        }
    }

    #[test]
    fn listener_is_not_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        assert_eq!(owns_socket(std::process::id(), own, "127.0.0.1:1".parse().unwrap()), None);
    }

    #[test]
    fn refusal_and_a_short_reply_are_errors() {
        let message = |kind: u16, error: i32| {
            [&36_u32.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], &error.to_ne_bytes(), &[0; 16]]
                .concat()
        };
        assert_eq!(inode_in(&message(NLMSG_ERROR, -2), 1).unwrap(), None);
        assert_eq!(
            inode_in(&message(NLMSG_ERROR, -1), 1).unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
        for reply in [&message(BY_FAMILY, 0)[..], &[]] {
            assert_eq!(inode_in(reply, 0).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
        assert_eq!(inode_in(&message(3, 0), 1).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
