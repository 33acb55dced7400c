//! What a Redis server says to a client (RESP2 and RESP3), as far as to tell single values apart.

use super::rules::{Arriving, Message, Rules};

/// The kinds of a published message, in the first item of its array or push.
const PUBLISHED: [&[u8]; 3] = [b"message", b"pmessage", b"smessage"];

/// One connection: the server's side.
#[derive(Debug, Default)]
pub(super) struct Values {
    gathered: Vec<u8>,
    /// Published messages that are held.
    kept: Vec<u8>,
    /// It is something else, perhaps encrypted: all of it passes.
    is_foreign: bool,
}

/// Why a value has no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoEnd {
    /// More is to come.
    Incomplete,
    /// This is no value.
    Foreign,
}

impl Values {
    /// What of the server's bytes arrives; `None`: a reply is swallowed.
    pub(super) fn replies(&mut self, bytes: &[u8], rules: &mut Rules) -> Option<Arriving> {
        self.gathered.extend(bytes);
        let mut arriving = Arriving { to_client: self.released(rules), ..Arriving::default() };
        while !self.is_foreign {
            let length = match value_end(&self.gathered, 0) {
                Ok(length) => length,
                Err(NoEnd::Incomplete) => return Some(arriving),
                Err(NoEnd::Foreign) => {
                    self.is_foreign = true;
                    break;
                }
            };
            let value: Vec<u8> = self.gathered.drain(..length).collect();
            if PUBLISHED.contains(&first_item(&value)) {
                if rules.drops(Message::Events) {
                    continue;
                }
                if rules.holds_events {
                    self.kept.extend(value);
                    continue;
                }
            } else if !rules.lets_reply_pass() {
                return None;
            }
            arriving.to_client.extend(value);
        }
        arriving.to_client.append(&mut self.gathered);
        Some(arriving)
    }

    /// What was held and may arrive now, in whole values.
    pub(super) fn released(&mut self, rules: &Rules) -> Vec<u8> {
        if rules.holds_events { Vec::new() } else { std::mem::take(&mut self.kept) }
    }
}

/// Behind the value that begins here.
fn value_end(bytes: &[u8], start: usize) -> Result<usize, NoEnd> {
    let rest = bytes.get(start..).unwrap_or_default();
    let kind = *rest.first().ok_or(NoEnd::Incomplete)?;
    let line = rest.windows(2).position(|window| window == b"\r\n").ok_or(NoEnd::Incomplete)?;
    let end = start + line + 2;
    let count = || {
        let count = std::str::from_utf8(&rest[1..line]).ok().and_then(|count| count.parse::<i64>().ok());
        // -1: nothing there.
        count.map(|count| usize::try_from(count).unwrap_or_default()).ok_or(NoEnd::Foreign)
    };
    match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Ok(end),
        b'$' if &rest[1..line] == b"-1" => Ok(end),
        b'$' | b'!' | b'=' => {
            let end = end.saturating_add(count()? + 2);
            if end <= bytes.len() { Ok(end) } else { Err(NoEnd::Incomplete) }
        }
        b'*' | b'~' | b'>' => values_end(bytes, end, count()?),
        b'%' => values_end(bytes, end, 2 * count()?),
        // Attributes stand before the value that they belong to.
        b'|' => values_end(bytes, end, 2 * count()? + 1),
        _ => Err(NoEnd::Foreign),
    }
}

fn values_end(bytes: &[u8], start: usize, count: usize) -> Result<usize, NoEnd> {
    (0..count).try_fold(start, |at, _| value_end(bytes, at))
}

/// The text of the first item of an array or a push; empty where there is none.
fn first_item(value: &[u8]) -> &[u8] {
    if !matches!(value.first(), Some(b'*' | b'>')) {
        return &[];
    }
    let mut lines = value.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.nth(2).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes through byte by byte, as a network may deliver it; `None`: a reply was swallowed.
    fn arrives(wire: &str, rules: &mut Rules) -> Option<String> {
        let mut values = Values::default();
        let mut arrived = Vec::new();
        for byte in wire.bytes() {
            arrived.extend(values.replies(&[byte], rules)?.to_client);
        }
        Some(String::from_utf8(arrived).unwrap())
    }

    fn dropping() -> Rules {
        let mut rules = Rules::default();
        rules.drop_messages(Message::Events, Box::new(|_| true));
        rules
    }

    #[test]
    fn values_of_all_kinds_pass() {
        let wire = "+OK\r\n-ERR no\r\n:1\r\n_\r\n,1.5\r\n#t\r\n(99\r\n$-1\r\n*-1\r\n$4\r\na\r\nb\r\n=5\r\ntxt:a\r\n!1\r\nx\r\n\
            *2\r\n*0\r\n$0\r\n\r\n~1\r\n:1\r\n%1\r\n+a\r\n:1\r\n|1\r\n+a\r\n:1\r\n+b\r\n>2\r\n+invalidate\r\n_\r\n";
        assert_eq!(arrives(wire, &mut dropping()).unwrap(), wire);
    }

    #[test]
    fn published_messages_of_both_versions_are_dropped_and_nothing_else() {
        let published = [
            ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n",
            "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n",
            ">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\nc\r\n$2\r\nhi\r\n",
            ">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n",
        ];
        let mut rules = dropping();
        for message in published {
            assert_eq!(arrives(&format!("+a\r\n{message}+b\r\n"), &mut rules).unwrap(), "+a\r\n+b\r\n");
        }
        assert_eq!(rules.dropped, 4);
        let others = ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n*1\r\n$3\r\nmsg\r\n$7\r\nmessage\r\n";
        assert_eq!(arrives(others, &mut rules).unwrap(), others);
        let mut rules = Rules::default();
        assert_eq!(
            arrives(published[0], &mut rules).unwrap(),
            published[0],
            "without a rule everything passes"
        );
    }

    #[test]
    fn published_messages_are_held_while_replies_pass_and_arrive_later() {
        let message = |text: &str| format!(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n{text}\r\n");
        let mut values = Values::default();
        let mut rules = Rules::default();
        rules.holds_events = true;
        let mut arrives = |wire: String, rules: &mut Rules| {
            String::from_utf8(values.replies(wire.as_bytes(), rules).unwrap().to_client).unwrap()
        };
        assert_eq!(arrives(format!("{}+a\r\n{}", message("1"), message("2")), &mut rules), "+a\r\n");
        assert_eq!(arrives("+b\r\n".to_owned(), &mut rules), "+b\r\n");
        rules.clear();
        let all = [message("1"), message("2"), message("3")].concat();
        assert_eq!(arrives(message("3"), &mut rules), all, "nothing overtakes what is held");
        assert_eq!(rules.dropped, 0);
    }

    #[test]
    fn only_values_that_are_not_published_count_as_replies() {
        let mut rules = Rules::default();
        rules.swallow_reply(2);
        let message = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n";
        assert!(arrives(&format!("+a\r\n{message}"), &mut rules).is_some());
        assert_eq!(arrives("+b\r\n", &mut rules), None);
        assert!(arrives("+c\r\n", &mut rules).is_some());
    }

    #[test]
    fn what_is_not_the_protocol_passes() {
        for wire in ["HTTP/1.1 200 OK\r\n\r\n", "$x\r\n>1\r\n"] {
            assert_eq!(arrives(wire, &mut dropping()).unwrap(), wire);
        }
    }
}
