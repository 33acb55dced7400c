//! The replies of a Redis server (RESP2 and RESP3), split into values.

use super::rules::{Forwarded, Message, Rules};

/// The first item of a published message, which is an array or a push.
const PUBLISHED: [&[u8]; 3] = [b"message", b"pmessage", b"smessage"];

/// What the server sends on one connection.
#[derive(Debug, Default)]
pub(super) struct Values {
    buffered: Vec<u8>,
    /// Published messages that are held.
    held: Vec<u8>,
    /// It is another protocol, perhaps encrypted: everything passes.
    is_foreign: bool,
}

/// Why the end of a value is not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParseError {
    /// It is not complete.
    Incomplete,
    /// It is not a value of this protocol.
    Foreign,
}

impl Values {
    /// Takes bytes of the server; returns what is forwarded, or `None` if a reply is swallowed.
    pub(super) fn replies(&mut self, bytes: &[u8], rules: &mut Rules) -> Option<Forwarded> {
        self.buffered.extend(bytes);
        let mut forwarded = Forwarded { to_client: self.released(rules), ..Forwarded::default() };
        while !self.is_foreign {
            let length = match value_end(&self.buffered, 0) {
                Ok(length) => length,
                Err(ParseError::Incomplete) => return Some(forwarded),
                Err(ParseError::Foreign) => {
                    self.is_foreign = true;
                    break;
                }
            };
            let value: Vec<u8> = rules.hosts.replaced(self.buffered.drain(..length).collect());
            if PUBLISHED.contains(&first_item(&value)) {
                if rules.drops(Message::Events) {
                    continue;
                }
                if rules.holds_events {
                    self.held.extend(value);
                    continue;
                }
            } else if !rules.lets_reply_pass() {
                return None;
            }
            forwarded.to_client.extend(value);
        }
        forwarded.to_client.append(&mut self.buffered);
        Some(forwarded)
    }

    /// Returns the held values that may be forwarded now.
    pub(super) fn released(&mut self, rules: &Rules) -> Vec<u8> {
        if rules.holds_events { Vec::new() } else { std::mem::take(&mut self.held) }
    }
}

/// Returns the position after the value that begins at `start`.
fn value_end(bytes: &[u8], start: usize) -> Result<usize, ParseError> {
    let rest = bytes.get(start..).unwrap_or_default();
    let kind = *rest.first().ok_or(ParseError::Incomplete)?;
    let line = rest.windows(2).position(|window| window == b"\r\n").ok_or(ParseError::Incomplete)?;
    let end = start + line + 2;
    let count = || {
        let count = std::str::from_utf8(&rest[1..line]).ok().and_then(|count| count.parse::<i64>().ok());
        // -1 is a null.
        count.map(|count| usize::try_from(count).unwrap_or_default()).ok_or(ParseError::Foreign)
    };
    match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Ok(end),
        b'$' if &rest[1..line] == b"-1" => Ok(end),
        b'$' | b'!' | b'=' => {
            let end = end.saturating_add(count()? + 2);
            if end <= bytes.len() { Ok(end) } else { Err(ParseError::Incomplete) }
        }
        b'*' | b'~' | b'>' => values_end(bytes, end, count()?),
        b'%' => values_end(bytes, end, 2 * count()?),
        // Attributes precede the value that they belong to.
        b'|' => values_end(bytes, end, 2 * count()? + 1),
        _ => Err(ParseError::Foreign),
    }
}

fn values_end(bytes: &[u8], start: usize, count: usize) -> Result<usize, ParseError> {
    (0..count).try_fold(start, |at, _| value_end(bytes, at))
}

/// Returns the text of the first item of an array or a push; empty for other values.
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

    /// What is forwarded of these bytes, sent one by one; `None` if a reply was swallowed.
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
    fn only_published_messages_are_dropped_in_both_versions() {
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
    fn published_messages_are_held_while_replies_pass() {
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
    fn published_messages_do_not_count_as_replies() {
        let mut rules = Rules::default();
        rules.swallow_reply(2);
        let message = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n";
        assert!(arrives(&format!("+a\r\n{message}"), &mut rules).is_some());
        assert_eq!(arrives("+b\r\n", &mut rules), None);
        assert!(arrives("+c\r\n", &mut rules).is_some());
    }

    #[test]
    fn other_protocols_pass() {
        for wire in ["HTTP/1.1 200 OK\r\n\r\n", "$x\r\n>1\r\n"] {
            assert_eq!(arrives(wire, &mut dropping()).unwrap(), wire);
        }
    }
}
