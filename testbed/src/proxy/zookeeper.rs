//! What ZooKeeper's servers send to clients and to each other, split into messages.

use std::collections::VecDeque;

use super::{
    Proxy,
    rules::{Forwarded, Message, Rules},
};
use crate::sync::lock;

/// The length prefix of each packet.
const LENGTH_BYTES: usize = 4;

/// A larger length is the beginning of a reply in text, to a four-letter command.
const PACKET_BYTES_MAX: usize = 0x0fff_ffff;

/// The number of a packet that reports a watch event. Connection to pings and other internal requests are negative too.
const NOTIFICATION: i32 = -1;

/// The kind of a request that asks whether a node exists.
const EXISTS: i32 = 3;

/// The bytes of a reply without a body: number, transaction, error.
const HEADER_BYTES: usize = 16;

impl Proxy {
    /// ZooKeeper: refuses the next `count` requests of a kind (`ZooDefs.OpCode`) with this error
    /// (`KeeperException.Code`), until [`pass`](Self::pass). They have no effect, and count as dropped.
    pub fn refuse_requests(&self, kind: i32, error: i32, count: u64) {
        lock(&self.shared.rules).refuse_requests(kind, error, count);
    }
}

/// What one side sends on one connection of a client, split into packets.
#[derive(Debug, Default)]
struct Packets {
    buffered: Vec<u8>,
    /// The first packet, which has no number, has passed.
    is_greeted: bool,
    /// The connection carries a four-letter command or its reply.
    is_text: bool,
}

impl Packets {
    /// Returns the next packet that has arrived whole, and whether it has a number.
    fn next(&mut self) -> Option<(Vec<u8>, bool)> {
        let length = packet_length(&self.buffered)?;
        self.is_text |= length > PACKET_BYTES_MAX;
        if self.is_text || self.buffered.len() < LENGTH_BYTES + length {
            return None;
        }
        let packet = self.buffered.drain(..LENGTH_BYTES + length).collect();
        Some((packet, std::mem::replace(&mut self.is_greeted, true)))
    }

    /// Returns what has arrived of a text, which has no packets.
    fn text(&mut self) -> Vec<u8> {
        if self.is_text { std::mem::take(&mut self.buffered) } else { Vec::new() }
    }
}

/// What a client sends on one connection.
#[derive(Debug, Default)]
struct Requests {
    packets: Packets,
    /// The requests that were refused and not answered yet: their numbers and errors.
    refused: VecDeque<(i32, i32)>,
}

impl Requests {
    /// Takes bytes of the client; returns what is forwarded. A request that the rules refuse is replaced by one without
    /// effect, whose reply becomes the error: replies must keep the order of the requests.
    fn forwarded(&mut self, bytes: &[u8], rules: &mut Rules) -> Vec<u8> {
        self.packets.buffered.extend(bytes);
        let mut forwarded = Vec::new();
        while let Some((packet, is_numbered)) = self.packets.next() {
            let (number, kind) = (i32_at(&packet, LENGTH_BYTES), i32_at(&packet, 2 * LENGTH_BYTES));
            match number.zip(kind.filter(|_| is_numbered).and_then(|kind| rules.refuses(kind))) {
                Some((number, error)) => {
                    self.refused.push_back((number, error));
                    // The path of the root, and no watch.
                    let body =
                        [&number.to_be_bytes()[..], &EXISTS.to_be_bytes(), &[0, 0, 0, 1, b'/', 0]].concat();
                    forwarded.extend(packet_of(&body));
                }
                None => forwarded.extend(packet),
            }
        }
        forwarded.extend(self.packets.text());
        forwarded
    }

    /// Returns what the client gets instead of this reply, if its request was refused.
    fn refusal(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let number = i32_at(packet, LENGTH_BYTES);
        let (refused, error) = *self.refused.front()?;
        if Some(refused) != number {
            return None;
        }
        self.refused.pop_front();
        let header = packet.get(LENGTH_BYTES..LENGTH_BYTES + HEADER_BYTES - 4)?;
        Some(packet_of(&[header, &error.to_be_bytes()].concat()))
    }
}

fn packet_length(buffered: &[u8]) -> Option<usize> {
    buffered.first_chunk().map(|length| u32::from_be_bytes(*length) as usize)
}

fn packet_of(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], body].concat()
}

fn i32_at(packet: &[u8], offset: usize) -> Option<i32> {
    packet.get(offset..)?.first_chunk().map(|number| i32::from_be_bytes(*number))
}

/// What both sides send on one connection of a client.
#[derive(Debug, Default)]
pub(super) struct Connection {
    requests: Requests,
    packets: Packets,
    /// Notifications that are held.
    held: Vec<u8>,
}

impl Connection {
    /// Takes bytes of the client; returns what is forwarded.
    pub(super) fn requests(&mut self, bytes: &[u8], rules: &mut Rules) -> Vec<u8> {
        self.requests.forwarded(bytes, rules)
    }

    /// Takes bytes of the server; returns what is forwarded, or `None` if a reply is swallowed.
    pub(super) fn replies(&mut self, bytes: &[u8], rules: &mut Rules) -> Option<Forwarded> {
        self.packets.buffered.extend(bytes);
        let mut forwarded = Forwarded::default();
        while let Some((packet, is_numbered)) = self.packets.next() {
            let packet = self.requests.refusal(&packet).unwrap_or(packet);
            let number = i32_at(&packet, LENGTH_BYTES);
            match number.filter(|_| is_numbered) {
                Some(NOTIFICATION) if rules.drops(Message::Events) => {}
                Some(NOTIFICATION) if rules.holds_events => self.held.extend(packet),
                Some(0..) if !rules.lets_reply_pass() => return None,
                _ => forwarded.to_client.extend(packet),
            }
        }
        forwarded.to_client.extend(self.packets.text());
        Some(forwarded)
    }

    /// Takes what was held.
    pub(super) fn released(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

/// What a member sends on an election connection that it opened.
///
/// It begins with a version, the id of the member, and the address at which the other member should connect back. That
/// address would bypass the proxies. With the id alone, as versions before 3.5 sent it, the other member connects back
/// to the configured address.
#[derive(Debug, Default)]
pub(super) struct Election {
    buffered: Vec<u8>,
    has_begun: bool,
}

impl Election {
    /// Takes bytes of the member; returns what is forwarded.
    pub(super) fn requests(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.has_begun {
            return bytes.to_vec();
        }
        self.buffered.extend(bytes);
        let Some((beginning, rest)) = self.buffered.split_first_chunk::<20>() else { return Vec::new() };
        let address_bytes = u32::from_be_bytes([beginning[16], beginning[17], beginning[18], beginning[19]]);
        let Some(rest) = rest.get(address_bytes as usize..) else { return Vec::new() };
        let sent = [&beginning[8..16], rest].concat();
        self.has_begun = true;
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(number: i32) -> Vec<u8> {
        packet_of(&[&number.to_be_bytes()[..], &[7; 12]].concat())
    }

    /// What is forwarded of these packets, sent byte by byte; `None` if one was swallowed.
    fn forwarded(packets: &[Vec<u8>], rules: &mut Rules) -> Option<Vec<u8>> {
        let mut connection = Connection::default();
        let bytes = packets.concat();
        let forwarded = bytes.iter().map(|byte| Some(connection.replies(&[*byte], rules)?.to_client));
        forwarded.collect::<Option<Vec<_>>>().map(|parts| parts.concat())
    }

    /// The greeting begins like a notification: protocol version and timeout.
    fn greeting() -> Vec<u8> {
        packet_of(&[0xff; 36])
    }

    #[test]
    fn only_notifications_are_dropped() {
        let mut rules = Rules::default();
        rules.drop_messages(Message::Events, Box::new(|_| true));
        let sent =
            [greeting(), numbered(1), numbered(-1), numbered(-2), numbered(-8), numbered(-1), numbered(2)];
        let expected = [&sent[0][..], &sent[1], &sent[3], &sent[4], &sent[6]].concat();
        assert_eq!(forwarded(&sent, &mut rules).unwrap(), expected);
        assert_eq!(rules.dropped, 2);
    }

    #[test]
    fn held_notifications_arrive_late_and_once() {
        let (mut rules, mut connection) = (Rules::default(), Connection::default());
        rules.holds_events = true;
        let sent = [greeting(), numbered(-1), numbered(1), numbered(-1), numbered(-2)];
        let forwarded = connection.replies(&sent.concat(), &mut rules).unwrap();
        assert_eq!(forwarded.to_client, [&sent[0][..], &sent[2], &sent[4]].concat());
        assert_eq!(connection.released(), sent[1].repeat(2));
        assert_eq!(connection.released(), b"");
    }

    #[test]
    fn only_answers_to_requests_count_as_replies() {
        let mut rules = Rules::default();
        rules.swallow_reply(2);
        assert!(forwarded(&[greeting(), numbered(1), numbered(-2), numbered(-1)], &mut rules).is_some());
        assert_eq!(forwarded(&[greeting(), numbered(2)], &mut rules), None);
        assert_eq!(rules.dropped, 1);
    }

    #[test]
    fn refused_request_has_no_effect_and_is_answered_in_its_turn() {
        const CREATE: i32 = 15;
        let request = |number: i32, kind: i32| {
            packet_of(&[&number.to_be_bytes()[..], &kind.to_be_bytes(), b"\0\0\0\x05/lock"].concat())
        };
        let (mut rules, mut connection) = (Rules::default(), Connection::default());
        rules.refuse_requests(CREATE, -127, 1);
        let sent = [greeting(), request(1, 12), request(2, CREATE), request(3, CREATE)];
        let forwarded: Vec<u8> =
            sent.concat().iter().flat_map(|byte| connection.requests(&[*byte], &mut rules)).collect();
        let harmless =
            packet_of(&[&2_i32.to_be_bytes()[..], &EXISTS.to_be_bytes(), b"\0\0\0\x01/\0"].concat());
        assert_eq!(forwarded, [&sent[0][..], &sent[1], &harmless, &sent[3]].concat());
        let replies = [greeting(), numbered(1), numbered(2), numbered(3)];
        let answered = connection.replies(&replies.concat(), &mut rules).unwrap().to_client;
        let refusal = packet_of(&[&2_i32.to_be_bytes()[..], &[7; 8], &(-127_i32).to_be_bytes()].concat());
        assert_eq!(answered, [&replies[0][..], &replies[1], &refusal, &replies[3]].concat());
    }

    #[test]
    fn text_passes() {
        let text = b"zk_version\t3.8.0\n".to_vec();
        assert_eq!(forwarded(std::slice::from_ref(&text), &mut Rules::default()).unwrap(), text);
    }

    #[test]
    fn member_sends_its_id_and_no_address() {
        let (version, id) = ((-65536_i64).to_be_bytes(), 2_i64.to_be_bytes());
        let said = [&version[..], &id, &packet_of(b"127.0.0.1:1"), b"more"].concat();
        let mut connection = Election::default();
        let sent: Vec<u8> = said.iter().flat_map(|byte| connection.requests(&[*byte])).collect();
        assert_eq!(sent, [&id[..], b"more"].concat());
    }
}
