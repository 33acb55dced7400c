//! Which process a connection belongs to.

use std::{
    collections::{HashMap, HashSet},
    fs,
    net::{IpAddr, SocketAddr},
    sync::{LazyLock, mpsc},
    thread,
};

use tokio::sync::oneshot;

/// How often the kernel's table is read for one connection. The table is not a snapshot: while other connections open
/// and close, it may leave some out.
const TABLE_READS_MAX: usize = 5;

/// Whether this process owns the socket at the `own` end of the connection to `other`; `None` when no process owns it,
/// or the kernel's table leaves it out.
///
/// Queries that arrive at the same time share one read of the table. A read takes long on a busy machine, and clients
/// that get no answer in time connect again, which adds queries.
pub(crate) async fn owns_socket(pid: u32, own: SocketAddr, other: SocketAddr) -> Option<bool> {
    static QUERIES: LazyLock<mpsc::Sender<OwnerQuery>> = LazyLock::new(|| {
        let (sender, queries) = mpsc::channel();
        // Without a thread every answer is `None`.
        let _ = thread::Builder::new().name("testbed-owners".to_owned()).spawn(|| answer(queries));
        sender
    });
    let (answer, answered) = oneshot::channel();
    QUERIES.send(OwnerQuery { pid, ends: [own, other], answer }).ok()?;
    answered.await.ok()?
}

/// Asks whether a process owns the socket at the first of these ends.
#[derive(Debug)]
struct OwnerQuery {
    pid: u32,
    ends: [SocketAddr; 2],
    answer: oneshot::Sender<Option<bool>>,
}

fn answer(queries: mpsc::Receiver<OwnerQuery>) {
    while let Ok(first) = queries.recv() {
        let mut open: Vec<OwnerQuery> = std::iter::once(first).chain(queries.try_iter()).collect();
        for _ in 0..TABLE_READS_MAX {
            let table = table();
            let mut of_processes = HashMap::new();
            let mut unanswered = Vec::new();
            for query in open {
                let inodes = of_processes.entry(query.pid).or_insert_with(|| inodes_of(query.pid));
                match has(&table, inodes, query.ends) {
                    // It fails when the receiver was dropped.
                    Some(has) => drop(query.answer.send(Some(has))),
                    None => unanswered.push(query),
                }
            }
            open = unanswered;
            if open.is_empty() {
                break;
            }
        }
    }
}

/// The sockets of one process at one moment.
#[derive(Debug)]
pub(crate) struct ProcessSockets {
    inodes: HashSet<String>,
    table: Table,
}

impl ProcessSockets {
    /// Reads the sockets of this process.
    pub(crate) fn by(pid: u32) -> Self {
        let table = table();
        Self { inodes: inodes_of(pid), table }
    }

    /// As [`owns_socket`], without further reads for a connection that the table left out.
    pub(crate) fn has(&self, own: SocketAddr, other: SocketAddr) -> Option<bool> {
        has(&self.table, &self.inodes, [own, other])
    }
}

/// The inodes of all connections, by their two ends. There may be several, because an earlier connection between the
/// same ends may linger.
type Table = HashMap<[String; 2], Vec<String>>;

/// The kernel's table of connections, proc_pid_net(5): columns 1 and 2 are the two ends, column 9 is the inode.
fn table() -> Table {
    let mut table = Table::new();
    for line in fs::read_to_string("/proc/net/tcp").unwrap_or_default().lines() {
        let mut row = line.split_ascii_whitespace();
        // A socket that no process owns any more has inode 0.
        if let (Some(own), Some(other), Some(inode)) = (row.nth(1), row.next(), row.nth(6))
            && inode != "0"
        {
            table.entry([own.to_owned(), other.to_owned()]).or_default().push(inode.to_owned());
        }
    }
    table
}

/// The inodes of a process; none when it has ended.
fn inodes_of(pid: u32) -> HashSet<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let inodes = files.filter_map(|file| {
        let link = fs::read_link(file.path()).ok()?;
        Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    });
    inodes.collect()
}

fn has(table: &Table, inodes: &HashSet<String>, ends: [SocketAddr; 2]) -> Option<bool> {
    let found = table.get(&ends.map(in_table))?;
    Some(found.iter().any(|inode| inodes.contains(inode)))
}

fn in_table(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port()),
        // These are in another table, and the testbed does not use them.
        IpAddr::V6(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn asked(pid: u32, own: SocketAddr, other: SocketAddr) -> Option<bool> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(owns_socket(pid, own, other))
    }

    #[test]
    fn connection_belongs_to_the_process_that_opened_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        assert_eq!(ProcessSockets::by(std::process::id()).has(own, other), Some(true));
        assert_eq!(ProcessSockets::by(1).has(own, other), Some(false));
        assert_eq!(ProcessSockets::by(1).has(own, "127.0.0.1:1".parse().unwrap()), None);
        let at_once = [(std::process::id(), true), (1, false)]
            .map(|(pid, is_own)| thread::spawn(move || assert_eq!(asked(pid, own, other), Some(is_own))));
        at_once.into_iter().for_each(|asked| asked.join().unwrap());
        drop((client, listener));
        assert_eq!(asked(std::process::id(), own, other), None);
    }
}
