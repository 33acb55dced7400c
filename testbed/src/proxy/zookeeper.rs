//! What ZooKeeper's servers say to clients and to each other, as far as to drop or change single messages.

use super::rules::{Arriving, Message, Rules};

/// In front of each packet.
const LENGTH_BYTES: usize = 4;

/// No packet is as long as this: it is the beginning of an answer in text, to a four-letter word.
const PACKET_BYTES_MAX: usize = 0x0fff_ffff;

/// The number of a packet that tells of a watch; those of answers to pings and other house-keeping are negative too.
const NOTIFICATION: i32 = -1;

/// One connection of a client: the server's side.
#[derive(Debug, Default)]
pub(super) struct Packets {
    gathered: Vec<u8>,
    /// The first packet, which has no number, has passed.
    is_greeted: bool,
    /// It answers a four-letter word.
    is_text: bool,
    /// Notifications that are kept.
    kept: Vec<u8>,
}

impl Packets {
    /// What of the server's bytes arrives; `None`: a reply is swallowed.
    pub(super) fn replies(&mut self, bytes: &[u8], rules: &mut Rules) -> Option<Arriving> {
        self.gathered.extend(bytes);
        let mut arriving = Arriving::default();
        while let Some(length) =
            self.gathered.first_chunk().map(|length| u32::from_be_bytes(*length) as usize)
        {
            self.is_text |= length > PACKET_BYTES_MAX;
            if self.is_text || self.gathered.len() < LENGTH_BYTES + length {
                break;
            }
            let packet: Vec<u8> = self.gathered.drain(..LENGTH_BYTES + length).collect();
            let is_numbered = std::mem::replace(&mut self.is_greeted, true);
            let number = packet[LENGTH_BYTES..].first_chunk().map(|number| i32::from_be_bytes(*number));
            match number.filter(|_| is_numbered) {
                Some(NOTIFICATION) if rules.drops(Message::Events) => {}
                Some(NOTIFICATION) if rules.holds_events => self.kept.extend(packet),
                Some(0..) if !rules.lets_reply_pass() => return None,
                _ => arriving.to_client.extend(packet),
            }
        }
        if self.is_text {
            arriving.to_client.append(&mut self.gathered);
        }
        Some(arriving)
    }

    /// What was kept.
    pub(super) fn released(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.kept)
    }
}

/// A connection between members that elect, from the side that made it.
///
/// It begins with a version, the id of the member, and the address at which it wants to be called back, which would lead
/// past the proxies: with the id alone, as members before 3.5 began, it is called back where the configuration says.
#[derive(Debug, Default)]
pub(super) struct Election {
    gathered: Vec<u8>,
    has_begun: bool,
}

impl Election {
    /// What of these bytes is sent on.
    pub(super) fn requests(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.has_begun {
            return bytes.to_vec();
        }
        self.gathered.extend(bytes);
        let Some((beginning, rest)) = self.gathered.split_first_chunk::<20>() else { return Vec::new() };
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

    fn packet(body: &[u8]) -> Vec<u8> {
        [&(body.len() as u32).to_be_bytes()[..], body].concat()
    }

    fn numbered(number: i32) -> Vec<u8> {
        packet(&[&number.to_be_bytes()[..], &[7; 12]].concat())
    }

    /// What arrives of these packets, byte by byte, as a network may deliver them; `None`: one was swallowed.
    fn arriving(packets: &[Vec<u8>], rules: &mut Rules) -> Option<Vec<u8>> {
        let mut connection = Packets::default();
        let bytes = packets.concat();
        let arriving = bytes.iter().map(|byte| Some(connection.replies(&[*byte], rules)?.to_client));
        arriving.collect::<Option<Vec<_>>>().map(|parts| parts.concat())
    }

    /// The greeting begins like a notification: protocol version and timeout.
    fn greeting() -> Vec<u8> {
        packet(&[0xff; 36])
    }

    #[test]
    fn notifications_are_dropped_and_nothing_else() {
        let mut rules = Rules::default();
        rules.drop_messages(Message::Events, Box::new(|_| true));
        let sent =
            [greeting(), numbered(1), numbered(-1), numbered(-2), numbered(-8), numbered(-1), numbered(2)];
        let expected = [&sent[0][..], &sent[1], &sent[3], &sent[4], &sent[6]].concat();
        assert_eq!(arriving(&sent, &mut rules).unwrap(), expected);
        assert_eq!(rules.dropped, 2);
    }

    #[test]
    fn notifications_that_are_held_come_late_and_once() {
        let (mut rules, mut connection) = (Rules::default(), Packets::default());
        rules.holds_events = true;
        let sent = [greeting(), numbered(-1), numbered(1), numbered(-1), numbered(-2)];
        let arriving = connection.replies(&sent.concat(), &mut rules).unwrap();
        assert_eq!(arriving.to_client, [&sent[0][..], &sent[2], &sent[4]].concat());
        assert_eq!(connection.released(), sent[1].repeat(2));
        assert_eq!(connection.released(), b"");
    }

    #[test]
    fn answers_to_requests_are_replies() {
        let mut rules = Rules::default();
        rules.swallow_reply(2);
        assert!(arriving(&[greeting(), numbered(1), numbered(-2), numbered(-1)], &mut rules).is_some());
        assert_eq!(arriving(&[greeting(), numbered(2)], &mut rules), None);
        assert_eq!(rules.dropped, 1);
    }

    #[test]
    fn text_passes() {
        let text = b"zk_version\t3.8.0\n".to_vec();
        assert_eq!(arriving(std::slice::from_ref(&text), &mut Rules::default()).unwrap(), text);
    }

    #[test]
    fn a_member_tells_its_id_and_no_address() {
        let (version, id) = ((-65536_i64).to_be_bytes(), 2_i64.to_be_bytes());
        let said = [&version[..], &id, &packet(b"127.0.0.1:1"), b"more"].concat();
        let mut connection = Election::default();
        let sent: Vec<u8> = said.iter().flat_map(|byte| connection.requests(&[*byte])).collect();
        assert_eq!(sent, [&id[..], b"more"].concat());
    }
}
