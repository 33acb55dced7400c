//! One connection of a client, and the one to the server that belongs to it.

use std::{io, net::SocketAddr, sync::atomic::Ordering::SeqCst};

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
    queue::{End, Next, Queue},
    rules::Inspector,
};

/// Bytes read at a time.
const READ_BYTES: usize = 16 << 10;

/// What a script has decided about a connection; there is no way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    Served,
    /// The client is gone, the server does not know.
    Left,
    /// The client is gone, and what it said comes to the server now.
    Late,
    Reset,
}

/// A connection, as scripts see it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: SocketAddr,
    pub(super) requests: Queue,
    replies: Queue,
    fate: watch::Sender<Fate>,
}

impl Link {
    pub(super) fn new(client: SocketAddr) -> Self {
        let fate = watch::Sender::new(Fate::Served);
        Self { client, requests: Queue::default(), replies: Queue::default(), fate }
    }

    pub(super) fn fate(&self) -> Fate {
        *self.fate.borrow()
    }

    pub(super) fn meets(&self, fate: Fate) {
        self.fate.send_if_modified(|met| std::mem::replace(met, fate.max(*met)) != *met);
    }

    async fn met(&self, is_met: impl FnMut(&Fate) -> bool) -> Fate {
        // The sender lives in this value.
        self.fate.subscribe().wait_for(is_met).await.map_or(Fate::Reset, |fate| *fate)
    }

    fn queue(&self, direction: Direction) -> &Queue {
        match direction {
            Direction::Requests => &self.requests,
            Direction::Replies => &self.replies,
        }
    }
}

/// Serves the connection to its end.
pub(super) async fn serve(link: &Link, mut client: TcpStream, mut server: TcpStream, shared: &Shared) {
    // What a proxy must not do is to wait for more.
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let inspector = Inspector::new(shared.speech);
    let end = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let both = async {
            tokio::try_join!(
                pump(link, Direction::Requests, from_client, to_server, shared, &inspector),
                pump(link, Direction::Replies, from_server, to_client, shared, &inspector),
            )
        };
        select! {
            fate = link.met(|&fate| fate != Fate::Served) => fate,
            end = both => match (end, link.fate()) {
                (Ok(_), _) => return,
                (Err(Gone), Fate::Served) => Fate::Reset,
                (Err(Gone), fate) => fate,
            },
        }
    };
    reset(client);
    if matches!(end, Fate::Left | Fate::Late) {
        outlive_client(link, &mut server, shared).await;
    }
    reset(server);
}

/// Ends a connection with a TCP reset.
pub(super) fn reset(connection: TcpStream) {
    // It fails where the other side has reset it already.
    let _ = connection.set_zero_linger();
}

/// The connection is at its end.
#[derive(Debug)]
struct Gone;

/// Moves the bytes of one direction, until their end has been passed on.
async fn pump(
    link: &Link,
    direction: Direction,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    shared: &Shared,
    inspector: &Inspector,
) -> Result<(), Gone> {
    let queue = link.queue(direction);
    let mut flow = shared.flow(direction).subscribe();
    let mut read = vec![0; READ_BYTES];
    loop {
        let set = *flow.borrow_and_update();
        let now = if shared.spares(link.client) { Flow::Pass } else { set };
        // Asked after the flow: what is held when a script says `leave` and then `pass` does not pass.
        if link.fate() != Fate::Served {
            return Err(Gone);
        }
        if direction == Direction::Replies {
            queue.push(&inspector.released(&super::lock(&shared.rules)));
        }
        let (due, bytes) = match queue.next(now) {
            Next::Send(bytes) => (None, Some(bytes)),
            Next::WaitUntil(due) => (Some(due), None),
            Next::Nothing => (None, None),
            Next::End(End::Reset) => return Err(Gone),
            Next::End(End::Finished) => {
                // Where it fails, that side's own end is on its way.
                let _ = to.shutdown().await;
                return Ok(());
            }
        };
        select! {
            biased;
            _ = flow.changed() => {}
            written = to.write(bytes.as_deref().unwrap_or_default()), if bytes.is_some() => match written {
                Ok(count) => {
                    queue.sent(count);
                    shared.delivered(direction).fetch_add(count as u64, SeqCst);
                }
                // The reader of that side tells it, when it may.
                Err(_) => return Ok(()),
            },
            count = from.read(&mut read), if queue.is_open() => {
                arrived(link, direction, count.map(|count| &read[..count]), shared, inspector)?;
            }
            // The other direction gives credit.
            () = queue.pushed() => {}
            () = sleep_until(due.unwrap_or_else(tokio::time::Instant::now)), if due.is_some() => {}
        }
    }
}

fn arrived(
    link: &Link,
    direction: Direction,
    read: io::Result<&[u8]>,
    shared: &Shared,
    inspector: &Inspector,
) -> Result<(), Gone> {
    match read {
        Err(_) => link.queue(direction).end(End::Reset),
        Ok([]) => link.queue(direction).end(End::Finished),
        Ok(bytes) => {
            let mut rules = super::lock(&shared.rules);
            match direction {
                Direction::Requests => {
                    let sent = inspector.requests(bytes, &mut rules);
                    if rules.holds(&sent) {
                        shared.requests.send_replace(Flow::Hold);
                    }
                    link.requests.push(&sent);
                }
                Direction::Replies => {
                    let arriving = inspector.replies(bytes, &mut rules).ok_or(Gone)?;
                    link.replies.push(&arriving.to_client);
                    link.requests.push(&arriving.credit);
                }
            }
        }
    }
    Ok(())
}

/// Keeps the connection to the server, whose replies nobody hears, and sends what is left when that is asked for.
async fn outlive_client(link: &Link, server: &mut TcpStream, shared: &Shared) {
    let (mut from, mut to) = server.split();
    let mut unheard = tokio::io::sink();
    let late = async {
        if link.met(|&fate| fate != Fate::Left).await == Fate::Late {
            let bytes = link.requests.take_all();
            // It fails where the server has ended the connection, which the reader sees.
            let _ = to.write_all(&bytes).await;
            shared.delivered(Direction::Requests).fetch_add(bytes.len() as u64, SeqCst);
        }
        link.met(|&fate| fate == Fate::Reset).await
    };
    select! {
        _ = late => {}
        // Read on, so that the server is not held up.
        _ = tokio::io::copy(&mut from, &mut unheard) => {}
    }
}
