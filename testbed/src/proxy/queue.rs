//! The bytes that were received in one direction and not forwarded yet.

use std::{collections::VecDeque, io, sync::Mutex, time::Duration};

use tokio::{sync::Notify, time::Instant};

use super::Flow;
use crate::sync::lock;

/// Longest queue in bytes. When it is full, the proxy stops reading, and the sender's connection fills up.
const QUEUE_BYTES_MAX: usize = 16 << 20;

/// Bytes sent at a time.
const SEND_BYTES_MAX: usize = 64 << 10;

/// The bytes that were received in one direction and not forwarded yet, in order.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    inner: Mutex<ByteQueueState>,
    pushed: Notify,
}

#[derive(Debug, Default)]
struct ByteQueueState {
    bytes: VecDeque<u8>,
    /// When how many bytes arrived, in the order of `bytes`.
    arrivals: VecDeque<(Instant, usize)>,
    /// How the sender ended the stream after all bytes.
    end: Option<StreamEnd>,
    /// Some bytes were dropped.
    has_gap: bool,
    /// When the next chunk of a trickle is due.
    next_chunk_at: Option<Instant>,
}

/// How a sender ends its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// It sends no more bytes.
    Finished,
    /// Its connection is broken.
    Reset,
}

/// What the proxy does next.
#[derive(Debug)]
pub(super) enum NextStep {
    /// This many bytes.
    Send(usize),
    End(StreamEnd),
    WaitUntil(Instant),
    Nothing,
}

impl ByteQueue {
    pub(super) fn push(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut inner = lock(&self.inner);
        inner.arrivals.push_back((Instant::now(), bytes.len()));
        inner.bytes.extend(bytes);
        self.pushed.notify_one();
    }

    /// Waits until bytes are pushed; returns at once if some were since the last call.
    pub(super) async fn pushed(&self) {
        self.pushed.notified().await;
    }

    pub(super) fn end(&self, end: StreamEnd) {
        lock(&self.inner).end = Some(end);
    }

    /// Whether the proxy may read more.
    pub(super) fn is_open(&self) -> bool {
        let inner = lock(&self.inner);
        inner.end.is_none() && inner.bytes.len() < QUEUE_BYTES_MAX
    }

    pub(super) fn contains(&self, text: &[u8]) -> bool {
        lock(&self.inner).bytes.make_contiguous().windows(text.len()).any(|window| window == text)
    }

    /// Takes all bytes.
    pub(super) fn take_all(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.inner).bytes).into()
    }

    /// Sends the first `count` bytes, or as many as `write` takes now, and returns how many. Nobody sees the queue
    /// between: it does not contain what its receiver has.
    pub(super) fn send(
        &self,
        count: usize,
        write: impl FnOnce(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut inner = lock(&self.inner);
        let sent = write(&inner.bytes.make_contiguous()[..count])?;
        inner.bytes.drain(..sent);
        inner.forget_arrivals(sent);
        Ok(sent)
    }

    pub(super) fn next(&self, flow: Flow) -> NextStep {
        let mut inner = lock(&self.inner);
        if inner.has_gap && flow != Flow::Drop {
            return NextStep::End(StreamEnd::Reset);
        }
        match flow {
            Flow::Pass => inner.send(SEND_BYTES_MAX),
            Flow::Delay(delay) => inner.delayed(delay),
            Flow::Trickle { bytes, every } => inner.chunk(bytes, every),
            Flow::Hold => NextStep::Nothing,
            Flow::Drop => {
                inner.has_gap |= !inner.bytes.is_empty() || inner.end.is_some();
                inner.bytes.clear();
                inner.arrivals.clear();
                NextStep::Nothing
            }
        }
    }
}

impl ByteQueueState {
    fn send(&self, most: usize) -> NextStep {
        if self.bytes.is_empty() {
            return self.end.map_or(NextStep::Nothing, NextStep::End);
        }
        NextStep::Send(self.bytes.len().min(most))
    }

    fn delayed(&self, delay: Duration) -> NextStep {
        let Some(&(arrival, bytes)) = self.arrivals.front() else { return self.send(0) };
        let due = arrival + delay;
        if due <= Instant::now() { self.send(bytes.min(SEND_BYTES_MAX)) } else { NextStep::WaitUntil(due) }
    }

    fn chunk(&mut self, bytes: usize, every: Duration) -> NextStep {
        let now = Instant::now();
        match self.next_chunk_at {
            Some(due) if due > now => NextStep::WaitUntil(due),
            _ => {
                if !self.bytes.is_empty() {
                    self.next_chunk_at = Some(now + every);
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
