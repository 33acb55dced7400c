//! A minimal client for Redis, for commands as an operator sends them.

use std::{
    io::{BufRead, BufReader, ErrorKind, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

/// Longest time until the reply to a command.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Longest text of one reply, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// A reply of a Redis server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple or a bulk string. Bytes that are not UTF-8 are replaced.
    Text(String),
    /// An integer.
    Number(i64),
    /// An array.
    List(Vec<Reply>),
    /// A null.
    Nil,
}

impl Reply {
    /// Returns the text; empty for other replies.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            _ => "",
        }
    }

    /// Returns the number of an integer, or of a text that is one.
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// Returns the elements; empty for other replies than arrays.
    pub fn list(&self) -> &[Reply] {
        match self {
            Self::List(replies) => replies,
            _ => &[],
        }
    }
}

/// A command that was sent, and whose reply is not read yet.
#[derive(Debug)]
pub struct Pending(TcpStream);

impl Pending {
    /// Waits for the reply.
    ///
    /// # Errors
    ///
    /// When the server does not answer, or replies with an error.
    pub fn reply(self) -> Result<Reply> {
        match read(&mut BufReader::new(&self.0)) {
            Err(error) if error.downcast_ref().is_some_and(is_timeout) => bail!("the server does not answer"),
            reply => reply,
        }
    }
}

/// Sends one command on a connection of its own.
pub(crate) fn send(endpoint: &str, words: &[impl AsRef<[u8]>]) -> Result<Pending> {
    let mut connection =
        TcpStream::connect(endpoint).with_context(|| format!("cannot connect to {endpoint}"))?;
    connection.set_read_timeout(Some(ANSWER_MAX))?;
    connection.set_write_timeout(Some(ANSWER_MAX))?;
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    connection.write_all(&request)?;
    Ok(Pending(connection))
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Reads one reply, or one request, in RESP version 2.
pub(crate) fn read(from: &mut impl BufRead) -> Result<Reply> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let line = line.strip_suffix("\r\n").context("the connection ended")?;
    let (kind, rest) = line.split_at_checked(1).context("an empty reply")?;
    match kind {
        "+" => Ok(Reply::Text(rest.to_owned())),
        "-" => bail!("{rest}"),
        ":" => Ok(Reply::Number(rest.parse()?)),
        "$" | "*" if rest == "-1" => Ok(Reply::Nil),
        "$" => {
            let length: usize = rest.parse()?;
            ensure!(length <= TEXT_BYTES_MAX, "a text of {length} bytes");
            let mut text = vec![0; length + 2];
            from.read_exact(&mut text)?;
            text.truncate(length);
            Ok(Reply::Text(String::from_utf8_lossy(&text).into_owned()))
        }
        "*" => (0..rest.parse::<usize>()?).map(|_| read(from)).collect::<Result<_>>().map(Reply::List),
        _ => bail!("a reply that begins with {kind:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Reply> {
        read(&mut text.as_bytes())
    }

    #[test]
    fn replies_of_every_kind() {
        assert_eq!(parsed("+OK\r\n").unwrap(), Reply::Text("OK".to_owned()));
        assert_eq!(parsed("$3\r\na\nb\r\n").unwrap().text(), "a\nb");
        assert_eq!(parsed("$-1\r\n").unwrap(), Reply::Nil);
        let list = parsed("*2\r\n:7\r\n$1\r\n8\r\n").unwrap();
        assert_eq!(list.list().iter().filter_map(Reply::number).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(parsed("-WRONGTYPE no\r\n").unwrap_err().to_string(), "WRONGTYPE no");
        assert!(parsed("").is_err());
    }
}
