//! gRPC over HTTP/2, as far as to drop single messages of etcd.
//!
//! Names of methods are in compressed headers, which pass untouched and unread; what a stream is for is told by what
//! runs on it. For a dropped message the server gets the flow control credit that the client would have given for it (the
//! client does not know that there was anything); a dropped event among others is renamed to a field that no schema
//! knows.

use std::collections::HashMap;

use super::{
    http2::{DATA, Frame, Frames, HEADERS, RST_STREAM, write_credit, write_data},
    protobuf::{Value, fields},
    rules::{Arriving, Message, Rules},
};

/// One byte for "compressed", four for the length.
const PREFIX_BYTES: usize = 5;

/// Longer messages pass unread: to gather them could use up the flow control window, and what is dropped is short.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// In a `WatchResponse`: its events.
const EVENTS: u64 = 11;

/// In an `Event`: its type, and that of a deletion.
const EVENT_TYPE: u64 = 1;
const DELETION: u64 = 1;

/// The tag of field 15, which no message on a watch stream has, and which is as long as that of the events.
const UNKNOWN_FIELD: u8 = 15 << 3 | 2;

/// The fields that lead to the lease of a key: in a `RangeResponse` its keys; in a `TxnResponse` its answers, of each the
/// `RangeResponse`, of that its keys.
const LEASE_IN_RANGE: [u64; 2] = [2, 6];
const LEASE_IN_TXN: [u64; 4] = [3, 1, 2, 6];

/// The tag of field 15 as a number, which no key has, and which is as long as that of the lease.
const UNKNOWN_VARINT: u8 = 15 << 3;

/// The tag of the first field of a keep-alive: the lease's id. On a watch stream the first field is a message.
const LEASE_ID: u8 = 1 << 3;

/// One connection.
#[derive(Debug, Default)]
pub(super) struct Grpc {
    has_begun: bool,
    requests: Frames,
    replies: Frames,
    streams: HashMap<u32, Stream>,
}

#[derive(Debug, Default)]
struct Stream {
    /// The client has said all: it waits for a reply, not for messages.
    is_asked: bool,
    /// The first byte of the first request's body.
    first_tag: Option<u8>,
    /// Bodies of requests seen, up to the first tag.
    request_bytes: usize,
    /// What has come of a message that is not complete.
    gathered: Vec<u8>,
    /// What is still to come of a message that passes unread.
    unread: usize,
    /// Messages that are kept, and what came behind them.
    kept: Vec<u8>,
}

impl Grpc {
    /// Learns from what a client says; gives what of it is to be sent on, in whole frames.
    pub(super) fn requests(&mut self, bytes: &[u8], rules: &mut Rules) -> Vec<u8> {
        let mut sent = Vec::new();
        self.requests.push(bytes);
        if !self.has_begun {
            let Some(preface) = self.requests.take_preface() else { return sent };
            self.has_begun = true;
            sent.extend(preface);
        }
        while let Some(frame) = self.requests.next() {
            rules.calls += u64::from(frame.kind == HEADERS);
            match frame.kind {
                HEADERS | DATA => self.streams.entry(frame.stream).or_default().asks(&frame),
                RST_STREAM => drop(self.streams.remove(&frame.stream)),
                _ => {}
            }
            sent.extend(frame.bytes);
        }
        sent
    }

    /// What of the server's bytes arrives; `None`: a reply is swallowed.
    pub(super) fn replies(&mut self, bytes: &[u8], rules: &mut Rules) -> Option<Arriving> {
        self.replies.push(bytes);
        let mut arriving = Arriving::default();
        while let Some(frame) = self.replies.next() {
            match self.streams.get_mut(&frame.stream) {
                Some(stream) if frame.kind == DATA => stream.answers(&frame, rules, &mut arriving)?,
                stream => {
                    // What ends a stream does not overtake what it has said.
                    if let Some(stream) = stream.filter(|_| frame.ends_stream()) {
                        write_data(&mut arriving.to_client, frame.stream, &std::mem::take(&mut stream.kept));
                    }
                    arriving.to_client.extend(&frame.bytes);
                }
            }
            if frame.ends_stream() || frame.kind == RST_STREAM {
                self.streams.remove(&frame.stream);
            }
        }
        Some(arriving)
    }

    /// What was kept, in whole frames.
    pub(super) fn released(&mut self) -> Vec<u8> {
        let mut to = Vec::new();
        for (id, stream) in &mut self.streams {
            write_data(&mut to, *id, &std::mem::take(&mut stream.kept));
        }
        to
    }
}

impl Stream {
    fn asks(&mut self, frame: &Frame) {
        self.is_asked |= frame.ends_stream();
        if frame.kind == DATA && self.first_tag.is_none() {
            let (body, _) = frame.data();
            self.first_tag =
                PREFIX_BYTES.checked_sub(self.request_bytes).and_then(|at| body.get(at).copied());
            self.request_bytes += body.len();
        }
    }

    /// Takes a frame of messages to the client in, and writes what is complete; `None`: a reply is swallowed.
    fn answers(&mut self, frame: &Frame, rules: &mut Rules, arriving: &mut Arriving) -> Option<()> {
        let Arriving { to_client: to, credit } = arriving;
        if frame.ends_stream() {
            // gRPC ends its streams with headers; what is this?
            write_data(to, frame.stream, &std::mem::take(&mut self.gathered));
            to.extend(&frame.bytes);
            return Some(());
        }
        let (mut body, padding) = frame.data();
        write_credit(credit, frame.stream, padding);
        if self.unread > 0 {
            let (unread, rest) = body.split_at(self.unread.min(body.len()));
            write_data(to, frame.stream, unread);
            self.unread -= unread.len();
            body = rest;
        }
        self.gathered.extend(body);
        while let Some(length) = self.message_length() {
            if PREFIX_BYTES + length > MESSAGE_BYTES_MAX {
                let there = self.gathered.len().min(PREFIX_BYTES + length);
                self.unread = PREFIX_BYTES + length - there;
                write_data(to, frame.stream, &self.gathered.drain(..there).collect::<Vec<_>>());
                continue;
            }
            if self.gathered.len() < PREFIX_BYTES + length {
                break;
            }
            let mut message: Vec<u8> = self.gathered.drain(..PREFIX_BYTES + length).collect();
            // A keep-alive is a call, though on a stream.
            let is_reply = self.is_asked || self.first_tag == Some(LEASE_ID);
            if is_reply && !rules.lets_reply_pass() {
                return None;
            }
            if self.is_asked && rules.hides_leases {
                hide_leases(&mut message[PREFIX_BYTES..]);
            }
            if !self.is_asked && self.drops(&mut message[PREFIX_BYTES..], rules) {
                write_credit(credit, frame.stream, message.len());
            } else if rules.holds_events
                && (!self.kept.is_empty() || tells_events(&message[PREFIX_BYTES..]) && !is_reply)
            {
                self.kept.extend(&message);
            } else {
                write_data(to, frame.stream, &message);
            }
        }
        Some(())
    }

    fn message_length(&self) -> Option<usize> {
        let prefix = self.gathered.get(..PREFIX_BYTES)?;
        Some(u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize)
    }

    /// Takes out what is dropped; whether that is all of the message.
    fn drops(&self, message: &mut [u8], rules: &mut Rules) -> bool {
        if self.first_tag == Some(LEASE_ID) {
            return rules.drops(Message::KeepAlives);
        }
        let events: Vec<(usize, bool)> = fields(message)
            .filter(|field| field.number == EVENTS)
            .filter_map(|field| match field.value {
                Value::Bytes(event) => Some((field.tag, is_deletion(&message[event]))),
                _ => None,
            })
            .collect();
        if events.is_empty() {
            return false;
        }
        if rules.drops(Message::Events) {
            return true;
        }
        let mut left = events.len();
        for (tag, _) in events.into_iter().filter(|&(_, is_deletion)| is_deletion) {
            if rules.drops(Message::Deletions) {
                message[tag] = UNKNOWN_FIELD;
                left -= 1;
            }
        }
        left == 0
    }
}

/// Renames the lease of every key that a read answers, alone or in a transaction, to a field that no schema knows.
fn hide_leases(message: &mut [u8]) {
    let mut tags = Vec::new();
    for path in [&LEASE_IN_RANGE, &LEASE_IN_TXN[..]] {
        find_varints(message, path, 0, &mut tags);
    }
    tags.into_iter().for_each(|tag| message[tag] = UNKNOWN_VARINT);
}

/// Where the tags of the fields stand that this path of field numbers leads to.
fn find_varints(message: &[u8], path: &[u64], start: usize, tags: &mut Vec<usize>) {
    let Some((number, rest)) = path.split_first() else { return };
    for field in fields(message).filter(|field| field.number == *number) {
        match field.value {
            Value::Varint(_) if rest.is_empty() => tags.push(start + field.tag),
            Value::Bytes(bytes) => find_varints(&message[bytes.clone()], rest, start + bytes.start, tags),
            _ => {}
        }
    }
}

fn tells_events(message: &[u8]) -> bool {
    fields(message).any(|field| field.number == EVENTS)
}

fn is_deletion(event: &[u8]) -> bool {
    fields(event).any(|field| field.number == EVENT_TYPE && field.value == Value::Varint(DELETION))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(number: u8, body: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, body.len() as u8], body].concat()
    }

    #[test]
    fn leases_of_keys_are_hidden_and_nothing_else() {
        // A key with its create revision and its lease.
        let key = |lease_tag: u8| [&bytes(1, b"k")[..], &[2 << 3, 7, lease_tag, 9]].concat();
        let range = |lease_tag| [bytes(1, &[1 << 3, 6]), bytes(2, &key(lease_tag)), vec![4 << 3, 1]].concat();
        let txn = |lease_tag| [vec![2 << 3, 1], bytes(3, &bytes(1, &range(lease_tag)))].concat();
        let answers = |lease_tag| [range(lease_tag), txn(lease_tag)];
        for (mut message, hidden) in answers(6 << 3).into_iter().zip(answers(UNKNOWN_VARINT)) {
            hide_leases(&mut message);
            assert_eq!(message, hidden);
        }
        // The ttl of a lease, whose id is field 2.
        let ttl = [&bytes(1, &[6 << 3, 1])[..], &[2 << 3, 6, 3 << 3, 6]].concat();
        let mut same = ttl.clone();
        hide_leases(&mut same);
        assert_eq!(same, ttl);
    }
}
