//! Which process a connection belongs to.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
};

/// How often the kernel's table is read for one connection: it is no snapshot, and while others come and go it leaves
/// some out.
const LOOKS_MAX: usize = 5;

/// Whether this process has the socket at the `own` end of the connection to `other`; `None` when nobody has it, or the
/// kernel would not say.
pub(crate) fn owns_socket(pid: u32, own: SocketAddr, other: SocketAddr) -> Option<bool> {
    let links = (0..LOOKS_MAX).find_map(|_| {
        let links: Vec<String> = inodes_of(own, other).map(|inode| format!("socket:[{inode}]")).collect();
        (!links.is_empty()).then_some(links)
    })?;
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Some(false) };
    let mut targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    Some(targets.any(|target| links.iter().any(|link| target.as_os_str() == &**link)))
}

/// From the kernel's table of connections, proc_pid_net(5): columns 1 and 2 are the two ends, column 9 is the inode.
/// (More than one, because an earlier connection between the same ends may linger.)
fn inodes_of(own: SocketAddr, other: SocketAddr) -> impl Iterator<Item = String> {
    let ends = [own, other].map(in_table);
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let rows: Vec<String> = table.lines().filter_map(|line| inode_of(line, &ends)).collect();
    // One that nobody has any more has none.
    rows.into_iter().filter(|inode| inode != "0")
}

fn inode_of(line: &str, ends: &[String; 2]) -> Option<String> {
    // Before the rest is looked at: there may be thousands.
    line.contains(&*ends[0]).then_some(())?;
    let row: Vec<&str> = line.split_whitespace().collect();
    (row.get(1..3)? == ends).then(|| row.get(9).map(|&inode| inode.to_owned()))?
}

fn in_table(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port()),
        // Those are in another table, and nothing here uses them.
        IpAddr::V6(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_belongs_to_the_process_that_made_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        assert_eq!(owns_socket(std::process::id(), own, other), Some(true));
        assert_eq!(owns_socket(1, own, other), Some(false));
        drop((client, listener));
        assert_eq!(owns_socket(std::process::id(), own, other), None);
    }
}
