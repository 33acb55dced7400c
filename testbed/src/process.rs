//! Which process a connection belongs to.

use std::{fs, net::SocketAddr};

/// Whether this process has the socket whose own end of a connection is `address`.
pub(crate) fn owns_socket(pid: u32, address: SocketAddr) -> bool {
    let Some(inode) = inode_of(address) else { return false };
    let link = format!("socket:[{inode}]");
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == &*link))
}

/// From the kernel's table of connections, proc_pid_net(5): column 1 is the own address, column 9 the inode.
fn inode_of(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    let own = format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port());
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|row| row.get(1) == Some(&own.as_str()))?.get(9).map(|&inode| inode.to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_belongs_to_the_process_that_made_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(owns_socket(std::process::id(), client.local_addr().unwrap()));
        assert!(!owns_socket(1, client.local_addr().unwrap()));
        let gone = client.local_addr().unwrap();
        drop((client, listener));
        assert!(!owns_socket(std::process::id(), gone));
    }
}
