//! gRPC over HTTP/2, as far as it takes to drop or hold single messages of etcd.
//!
//! Method names are in compressed headers, which pass unread. The parser recognises the method of a stream by its
//! messages. For a dropped message the proxy sends the flow control credit that the client would have sent. A dropped
//! event among others is renamed to a field that no schema has.

use std::collections::HashMap;

use super::{
    http2::{DATA, Frame, Frames, HEADERS, RST_STREAM, write_credit, write_data},
    protobuf::{Value, fields},
    rules::{Forwarded, Message, Rules},
};

/// The prefix of a message: one byte for "compressed", four for the length.
const PREFIX_BYTES: usize = 5;

/// Longer messages pass unread: to buffer them could use up the flow control window, and messages to drop are short.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// The field number of the events in a `WatchResponse`.
const EVENTS: u64 = 11;

/// The field number of the type in an `Event`, and its value for a deletion.
const EVENT_TYPE: u64 = 1;
const DELETION: u64 = 1;

/// The tag of field 15: no message on a watch stream has this field, and the tag is as long as that of the events.
const UNKNOWN_FIELD: u8 = 15 << 3 | 2;

/// The path of field numbers to the lease of a key: in a `RangeResponse` via the keys, in a `TxnResponse` via the
/// responses, their `RangeResponse` and its keys.
const LEASE_IN_RANGE: [u64; 2] = [2, 6];
const LEASE_IN_TXN: [u64; 4] = [3, 1, 2, 6];

/// The tag of field 15 as a number: no key has this field, and the tag is as long as that of the lease.
const UNKNOWN_VARINT: u8 = 15 << 3;

/// The tag of the first field of a keep-alive, the id of the lease. On a watch stream the first field is a message.
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
    /// The client has ended its side: it waits for one reply, not for a stream of messages.
    awaits_reply: bool,
    /// The first byte of the first request's body.
    first_tag: Option<u8>,
    /// Length of the request bodies seen, up to the first tag.
    request_bytes: usize,
    /// The beginning of a message that is not complete.
    buffered: Vec<u8>,
    /// How many bytes are missing of a message that passes unread.
    unread: usize,
    /// Messages that are held, and all that followed them.
    held: Vec<u8>,
}

impl Grpc {
    /// Takes bytes of the client; returns what is forwarded, in whole frames.
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
                HEADERS | DATA => self.streams.entry(frame.stream).or_default().request(&frame),
                RST_STREAM => drop(self.streams.remove(&frame.stream)),
                _ => {}
            }
            sent.extend(frame.bytes);
        }
        sent
    }

    /// Takes bytes of the server; returns what is forwarded, or `None` if a reply is swallowed.
    pub(super) fn replies(&mut self, bytes: &[u8], rules: &mut Rules) -> Option<Forwarded> {
        self.replies.push(bytes);
        let mut forwarded = Forwarded::default();
        while let Some(frame) = self.replies.next() {
            match self.streams.get_mut(&frame.stream) {
                Some(stream) if frame.kind == DATA => stream.reply(&frame, rules, &mut forwarded)?,
                stream => {
                    // The end of a stream must not overtake its held messages.
                    if let Some(stream) = stream.filter(|_| frame.ends_stream()) {
                        write_data(&mut forwarded.to_client, frame.stream, &std::mem::take(&mut stream.held));
                    }
                    forwarded.to_client.extend(&frame.bytes);
                }
            }
            if frame.ends_stream() || frame.kind == RST_STREAM {
                self.streams.remove(&frame.stream);
            }
        }
        Some(forwarded)
    }

    /// Takes what was held, in whole frames.
    pub(super) fn released(&mut self) -> Vec<u8> {
        let mut to = Vec::new();
        for (id, stream) in &mut self.streams {
            write_data(&mut to, *id, &std::mem::take(&mut stream.held));
        }
        to
    }
}

impl Stream {
    fn request(&mut self, frame: &Frame) {
        self.awaits_reply |= frame.ends_stream();
        if frame.kind == DATA && self.first_tag.is_none() {
            let (body, _) = frame.data();
            self.first_tag =
                PREFIX_BYTES.checked_sub(self.request_bytes).and_then(|at| body.get(at).copied());
            self.request_bytes += body.len();
        }
    }

    /// Takes a frame of the server, and forwards its complete messages; `None` if a reply is swallowed.
    fn reply(&mut self, frame: &Frame, rules: &mut Rules, forwarded: &mut Forwarded) -> Option<()> {
        let Forwarded { to_client: to, credit } = forwarded;
        if frame.ends_stream() {
            // gRPC servers end streams with headers. This is something else: it passes.
            write_data(to, frame.stream, &std::mem::take(&mut self.buffered));
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
        self.buffered.extend(body);
        while let Some(length) = self.message_length() {
            if PREFIX_BYTES + length > MESSAGE_BYTES_MAX {
                let there = self.buffered.len().min(PREFIX_BYTES + length);
                self.unread = PREFIX_BYTES + length - there;
                write_data(to, frame.stream, &self.buffered.drain(..there).collect::<Vec<_>>());
                continue;
            }
            if self.buffered.len() < PREFIX_BYTES + length {
                break;
            }
            let mut message: Vec<u8> = self.buffered.drain(..PREFIX_BYTES + length).collect();
            // Keep-alives are on a stream, but each has its own reply.
            let is_reply = self.awaits_reply || self.first_tag == Some(LEASE_ID);
            if is_reply && !rules.lets_reply_pass() {
                return None;
            }
            if self.awaits_reply && rules.hides_leases {
                hide_leases(&mut message[PREFIX_BYTES..]);
            }
            if !self.awaits_reply && self.drops(&mut message[PREFIX_BYTES..], rules) {
                write_credit(credit, frame.stream, message.len());
            } else if rules.holds_events
                && (!self.held.is_empty() || has_events(&message[PREFIX_BYTES..]) && !is_reply)
            {
                self.held.extend(&message);
            } else {
                write_data(to, frame.stream, &message);
            }
        }
        Some(())
    }

    fn message_length(&self) -> Option<usize> {
        let prefix = self.buffered.get(..PREFIX_BYTES)?;
        Some(u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize)
    }

    /// Removes dropped events from a message; returns whether the whole message is dropped.
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

/// Renames the lease of every key in a reply to a read, alone or in a transaction, to a field that no schema has.
fn hide_leases(message: &mut [u8]) {
    let mut tags = Vec::new();
    for path in [&LEASE_IN_RANGE, &LEASE_IN_TXN[..]] {
        find_varints(message, path, 0, &mut tags);
    }
    tags.into_iter().for_each(|tag| message[tag] = UNKNOWN_VARINT);
}

/// Finds the tags of the fields at the end of this path of field numbers.
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

fn has_events(message: &[u8]) -> bool {
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
    fn only_leases_of_keys_are_hidden() {
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
