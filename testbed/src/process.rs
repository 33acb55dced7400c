//! Which process a connection belongs to.

use std::{
    collections::{HashMap, HashSet},
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

/// The connections of one process, as they were at one moment.
#[derive(Debug)]
pub(crate) struct Owned {
    /// The inodes of the process.
    inodes: HashSet<String>,
    /// The inodes of all connections, by their two ends.
    table: HashMap<[String; 2], Vec<String>>,
}

impl Owned {
    /// Looks at this process.
    pub(crate) fn by(pid: u32) -> Self {
        let mut table = HashMap::<_, Vec<_>>::new();
        for line in fs::read_to_string("/proc/net/tcp").unwrap_or_default().lines() {
            let row: Vec<&str> = line.split_whitespace().collect();
            if let [_, own, other, .., inode] = *row.get(..10).unwrap_or_default()
                && inode != "0"
            {
                table.entry([own.to_owned(), other.to_owned()]).or_default().push(inode.to_owned());
            }
        }
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let inodes = files.filter_map(|file| {
            let link = fs::read_link(file.path()).ok()?;
            Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        });
        Self { inodes: inodes.collect(), table }
    }

    /// As [`owns_socket`]; `None` for a connection that the table has left out.
    pub(crate) fn has(&self, own: SocketAddr, other: SocketAddr) -> Option<bool> {
        let inodes = self.table.get(&[in_table(own), in_table(other)])?;
        Some(inodes.iter().any(|inode| self.inodes.contains(inode)))
    }
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
        assert_eq!(Owned::by(std::process::id()).has(own, other), Some(true));
        assert_eq!(Owned::by(1).has(own, other), Some(false));
        assert_eq!(Owned::by(1).has(own, "127.0.0.1:1".parse().unwrap()), None);
        drop((client, listener));
        assert_eq!(owns_socket(std::process::id(), own, other), None);
    }
}
