//! What has come in one direction and is not sent on yet.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use tokio::{sync::Notify, time::Instant};

use super::{Flow, lock};

/// More than this is not taken: the sender meets a full connection.
const QUEUE_BYTES_MAX: usize = 16 << 20;

/// Bytes sent at a time.
const SEND_BYTES_MAX: usize = 64 << 10;

/// What has come in one direction and is not sent on yet, in order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    pushed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    bytes: VecDeque<u8>,
    /// When which number of bytes came, in the order of `bytes`.
    arrivals: VecDeque<(Instant, usize)>,
    /// What came after all bytes.
    end: Option<End>,
    /// Something was dropped.
    has_gap: bool,
    /// When the next lot of a trickle is due.
    next_lot: Option<Instant>,
}

/// How a side ends what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It will say no more.
    Finished,
    /// It is gone.
    Reset,
}

/// What is to be done now.
#[derive(Debug)]
pub(super) enum Next {
    Send(Vec<u8>),
    End(End),
    WaitUntil(Instant),
    Nothing,
}

impl Queue {
    pub(super) fn push(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut inner = lock(&self.inner);
        inner.arrivals.push_back((Instant::now(), bytes.len()));
        inner.bytes.extend(bytes);
        self.pushed.notify_one();
    }

    /// Resolves when something was pushed since the last time.
    pub(super) async fn pushed(&self) {
        self.pushed.notified().await;
    }

    pub(super) fn end(&self, end: End) {
        lock(&self.inner).end = Some(end);
    }

    /// Whether more may come.
    pub(super) fn is_open(&self) -> bool {
        let inner = lock(&self.inner);
        inner.end.is_none() && inner.bytes.len() < QUEUE_BYTES_MAX
    }

    pub(super) fn contains(&self, text: &[u8]) -> bool {
        lock(&self.inner).bytes.make_contiguous().windows(text.len()).any(|window| window == text)
    }

    /// Everything.
    pub(super) fn take_all(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.inner).bytes).into()
    }

    /// These many bytes were sent.
    pub(super) fn sent(&self, count: usize) {
        let mut inner = lock(&self.inner);
        inner.bytes.drain(..count);
        inner.forget_arrivals(count);
    }

    pub(super) fn next(&self, flow: Flow) -> Next {
        let mut inner = lock(&self.inner);
        if inner.has_gap && flow != Flow::Drop {
            return Next::End(End::Reset);
        }
        match flow {
            Flow::Pass => inner.send(SEND_BYTES_MAX),
            Flow::Delay(delay) => inner.delayed(delay),
            Flow::Trickle { bytes, every } => inner.lot(bytes, every),
            Flow::Hold => Next::Nothing,
            Flow::Drop => {
                inner.has_gap |= !inner.bytes.is_empty() || inner.end.is_some();
                inner.bytes.clear();
                inner.arrivals.clear();
                Next::Nothing
            }
        }
    }
}

impl Inner {
    fn send(&self, most: usize) -> Next {
        if self.bytes.is_empty() {
            return self.end.map_or(Next::Nothing, Next::End);
        }
        Next::Send(self.bytes.iter().take(most).copied().collect())
    }

    fn delayed(&self, delay: Duration) -> Next {
        let Some(&(arrival, bytes)) = self.arrivals.front() else { return self.send(0) };
        let due = arrival + delay;
        if due <= Instant::now() { self.send(bytes.min(SEND_BYTES_MAX)) } else { Next::WaitUntil(due) }
    }

    fn lot(&mut self, bytes: usize, every: Duration) -> Next {
        let now = Instant::now();
        match self.next_lot {
            Some(due) if due > now => Next::WaitUntil(due),
            _ => {
                if !self.bytes.is_empty() {
                    self.next_lot = Some(now + every);
                }
                self.send(bytes)
            }
        }
    }

    fn forget_arrivals(&mut self, mut count: usize) {
        while let Some(front) = self.arrivals.front_mut() {
            if count < front.1 {
                front.1 -= count;
                return;
            }
            count -= front.1;
            self.arrivals.pop_front();
        }
    }
}
