//! One connection of a client, with its connection to the server.

use std::{
    io,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    select,
    sync::watch,
    time::sleep_until,
};

use super::{
    Direction, Flow, Shared,
    queue::{ByteQueue, NextStep, StreamEnd},
    rules::Inspector,
};
use crate::sync::lock;

/// Bytes read at a time.
const READ_BYTES: usize = 16 << 10;

/// What the test has decided about a connection. It only moves to later states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConnectionState {
    Open,
    /// Reset to the client, still open to the server.
    ClientReset,
    /// Reset to the client; its held requests are sent to the server now.
    DeliverLate,
    Reset,
}

/// A client's connection, as the test controls it.
#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) client: SocketAddr,
    /// Its requests are held, whatever the flow is.
    pub(super) is_stalled: AtomicBool,
    pub(super) requests: ByteQueue,
    replies: ByteQueue,
    state: watch::Sender<ConnectionState>,
}

impl ClientConnection {
    pub(super) fn new(client: SocketAddr) -> Self {
        let state = watch::Sender::new(ConnectionState::Open);
        Self {
            client,
            is_stalled: AtomicBool::new(false),
            requests: ByteQueue::default(),
            replies: ByteQueue::default(),
            state,
        }
    }

    pub(super) fn state(&self) -> ConnectionState {
        *self.state.borrow()
    }

    pub(super) fn advance_to(&self, state: ConnectionState) {
        self.state.send_if_modified(|current| std::mem::replace(current, state.max(*current)) != *current);
    }

    async fn wait_for_state(&self, is_awaited: impl FnMut(&ConnectionState) -> bool) -> ConnectionState {
        // It cannot fail: this value owns the sender.
        self.state.subscribe().wait_for(is_awaited).await.map_or(ConnectionState::Reset, |state| *state)
    }

    fn queue(&self, direction: Direction) -> &ByteQueue {
        match direction {
            Direction::Requests => &self.requests,
            Direction::Replies => &self.replies,
        }
    }
}

/// Serves the connection to its end.
pub(super) async fn serve(
    connection: &ClientConnection,
    mut client: TcpStream,
    mut server: TcpStream,
    shared: &Shared,
) {
    // A proxy must not delay small writes.
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let inspector = Inspector::new(shared.protocol);
    let end = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let both = async {
            tokio::try_join!(
                pump(connection, Direction::Requests, from_client, to_server, shared, &inspector),
                pump(connection, Direction::Replies, from_server, to_client, shared, &inspector),
            )
        };
        select! {
            state = connection.wait_for_state(|&state| state != ConnectionState::Open) => state,
            end = both => match (end, connection.state()) {
                (Ok(_), _) => return,
                (Err(ConnectionEnded), ConnectionState::Open) => ConnectionState::Reset,
                (Err(ConnectionEnded), state) => state,
            },
        }
    };
    reset(client);
    if matches!(end, ConnectionState::ClientReset | ConnectionState::DeliverLate) {
        outlive_client(connection, &mut server, shared).await;
    }
    reset(server);
}

/// Ends a connection with a TCP reset.
pub(super) fn reset(connection: TcpStream) {
    // It fails if the peer has reset the connection already.
    let _ = connection.set_zero_linger();
}

/// The connection is to be closed on both sides.
#[derive(Debug)]
struct ConnectionEnded;

/// Forwards the bytes of one direction, until their end was forwarded too.
async fn pump(
    connection: &ClientConnection,
    direction: Direction,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    shared: &Shared,
    inspector: &Inspector,
) -> Result<(), ConnectionEnded> {
    let queue = connection.queue(direction);
    let mut flow = shared.flow(direction).subscribe();
    let mut read = vec![0; READ_BYTES];
    loop {
        let set = *flow.borrow_and_update();
        let now = match direction {
            _ if shared.is_exempt(connection.client) => Flow::Pass,
            Direction::Requests if connection.is_stalled.load(SeqCst) => Flow::Hold,
            _ => set,
        };
        // Read after the flow: bytes that are held while a test calls `reset_clients` and then `pass` must not pass.
        if connection.state() != ConnectionState::Open {
            return Err(ConnectionEnded);
        }
        if direction == Direction::Replies {
            queue.push(&inspector.released(&lock(&shared.rules)));
        }
        let (due, bytes) = match queue.next(now) {
            NextStep::Send(bytes) => (None, bytes),
            NextStep::WaitUntil(due) => (Some(due), 0),
            NextStep::Nothing => (None, 0),
            NextStep::End(StreamEnd::Reset) => return Err(ConnectionEnded),
            NextStep::End(StreamEnd::Finished) => {
                // If it fails, the reader of that side sees its end.
                let _ = to.shutdown().await;
                return Ok(());
            }
        };
        select! {
            biased;
            _ = flow.changed() => {}
            _ = to.writable(), if bytes > 0 => match queue.send(bytes, |bytes| to.try_write(bytes)) {
                Ok(count) => {
                    shared.delivered(direction).fetch_add(count as u64, SeqCst);
                }
                Err(fault) if fault.kind() == io::ErrorKind::WouldBlock => {}
                // The reader of that side sees the error too, and forwards it when the flow allows.
                Err(_) => return Ok(()),
            },
            count = from.read(&mut read), if queue.is_open() => {
                enqueue(connection, direction, count.map(|count| &read[..count]), shared, inspector)?;
            }
            // The other direction adds flow control credit.
            () = queue.pushed() => {}
            () = sleep_until(due.unwrap_or_else(tokio::time::Instant::now)), if due.is_some() => {}
        }
    }
}

/// Queues what was read, as far as the rules let it pass.
fn enqueue(
    connection: &ClientConnection,
    direction: Direction,
    read: io::Result<&[u8]>,
    shared: &Shared,
    inspector: &Inspector,
) -> Result<(), ConnectionEnded> {
    match read {
        Err(_) => connection.queue(direction).end(StreamEnd::Reset),
        Ok([]) => connection.queue(direction).end(StreamEnd::Finished),
        Ok(bytes) => {
            let mut rules = lock(&shared.rules);
            match direction {
                Direction::Requests => {
                    let sent = inspector.requests(bytes, &mut rules);
                    if rules.holds(&sent) {
                        shared.requests.send_replace(Flow::Hold);
                    }
                    connection.requests.push(&sent);
                }
                Direction::Replies => {
                    let forwarded = inspector.replies(bytes, &mut rules).ok_or(ConnectionEnded)?;
                    connection.replies.push(&forwarded.to_client);
                    connection.requests.push(&forwarded.credit);
                }
            }
        }
    }
    Ok(())
}

/// Keeps the connection to the server open without its client, discards its replies, and sends the held requests when
/// the test asks for it.
async fn outlive_client(connection: &ClientConnection, server: &mut TcpStream, shared: &Shared) {
    let (mut from, mut to) = server.split();
    let mut discarded = tokio::io::sink();
    let late = async {
        if connection.wait_for_state(|&state| state != ConnectionState::ClientReset).await
            == ConnectionState::DeliverLate
        {
            let bytes = connection.requests.take_all();
            // It fails if the server has closed the connection, which the reader sees.
            let _ = to.write_all(&bytes).await;
            shared.delivered(Direction::Requests).fetch_add(bytes.len() as u64, SeqCst);
        }
        connection.wait_for_state(|&state| state == ConnectionState::Reset).await
    };
    select! {
        _ = late => {}
        // Keep reading: a full connection would block the server.
        _ = tokio::io::copy(&mut from, &mut discarded) => {}
    }
}
