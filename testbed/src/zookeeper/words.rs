//! Four-letter words: what a ZooKeeper server tells of itself to everybody.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

/// Longest time for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The same for a question that is asked again and again: a server that is just starting loses some.
const LOOK_MAX: Duration = Duration::from_millis(500);

/// What a server says that is up but has no leader, or is not up yet.
const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests";

/// Asks the server at this address.
#[derive(Debug)]
pub(super) struct Words(pub(super) SocketAddr);

/// What part a server has.
#[derive(Debug)]
pub(super) struct Role {
    /// `leader`, `follower` or `standalone`.
    pub(super) mode: String,
    /// Counts the leaders so far.
    pub(super) epoch: u64,
}

/// A connection of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The client's end.
    pub client: SocketAddr,
    /// Its session.
    pub session: i64,
}

impl Words {
    /// The answer to a word, of a server that serves.
    pub(super) fn ask(&self, word: &str) -> Result<String> {
        self.ask_within(ANSWER_MAX, word)
    }

    fn ask_within(&self, longest: Duration, word: &str) -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.0, longest)?;
        stream.set_read_timeout(Some(longest))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).with_context(|| format!("{word} to ZooKeeper at {}", self.0))?;
        ensure!(
            !answer.is_empty() && !answer.contains(NOT_SERVING),
            "ZooKeeper at {} does not serve",
            self.0
        );
        Ok(answer)
    }

    /// What part the server has.
    pub(super) fn role(&self) -> Result<Role> {
        let answer = self.ask_within(LOOK_MAX, "srvr")?;
        let after = |label| {
            let found = answer.lines().find_map(|line| line.strip_prefix(label));
            found.with_context(|| format!("no {label:?} in {answer:?}"))
        };
        let transaction = u64::from_str_radix(after("Zxid: 0x")?, 16)?;
        Ok(Role { mode: after("Mode: ")?.to_owned(), epoch: transaction >> 32 })
    }
}

/// The version in the answer to `srvr`, without what it was built from.
pub(super) fn version(answer: &str) -> Result<String> {
    let version = answer.strip_prefix("Zookeeper version: ").and_then(|rest| rest.split(['-', ',']).next());
    version.map(str::to_owned).with_context(|| format!("no version in {answer:?}"))
}

/// The number in the answer to `wchs`.
pub(super) fn watches(answer: &str) -> Result<u64> {
    let total = answer.lines().find_map(|line| line.strip_prefix("Total watches:"));
    Ok(total.with_context(|| format!("no watches in {answer:?}"))?.trim().parse()?)
}

/// The paths in the answer to `dump`, by session.
pub(super) fn ephemerals(answer: &str) -> Result<BTreeMap<i64, Vec<String>>> {
    let mut sessions = BTreeMap::<_, Vec<_>>::new();
    let mut session = None;
    for line in answer.lines().skip_while(|line| !line.starts_with("Sessions with Ephemerals")).skip(1) {
        match (line.strip_prefix('\t'), session) {
            (Some(path), Some(session)) => sessions.entry(session).or_default().push(path.to_owned()),
            // `0xID:`; what comes after the last one is not indented and no session.
            _ => match line.strip_suffix(':').and_then(|id| parse_session(id).ok()) {
                Some(id) => session = Some(id),
                None => break,
            },
        }
    }
    Ok(sessions)
}

/// When each session in the answer to `dump` ends unless its client is heard of, as a second of the day in UTC.
pub(super) fn expiries(answer: &str) -> BTreeMap<i64, u64> {
    let mut expiries = BTreeMap::new();
    let mut ends_at = None;
    for line in answer.lines().take_while(|line| !line.starts_with("ephemeral nodes dump")) {
        // `2 expire at Sat Nov 21 10:00:05 UTC 2026:`, and below it `\t0x1000`.
        match (line.strip_prefix('\t').and_then(|id| parse_session(id).ok()), ends_at) {
            (Some(session), Some(ends_at)) => drop(expiries.insert(session, ends_at)),
            _ => ends_at = line.split_once(" expire at ").and_then(|(_, date)| second_of_day(date)),
        }
    }
    expiries
}

fn second_of_day(date: &str) -> Option<u64> {
    let clock = date.split(' ').find(|word| word.contains(':'))?;
    clock.split(':').try_fold(0, |seconds, part| Some(seconds * 60 + part.parse::<u64>().ok()?))
}

/// What is left at `now` (since 1970) of a time that ends within the next half day, in a second that is not over.
pub(super) fn left_of_day(second_of_day: u64, now: Duration) -> Duration {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let now = Duration::new(now.as_secs() % DAY.as_secs(), now.subsec_nanos());
    let end = Duration::from_secs(second_of_day + 1);
    let left = (end + DAY).saturating_sub(now);
    let left = if left >= DAY { left - DAY } else { left };
    // It ended a moment ago, and was not seen to yet.
    if left > DAY / 2 { Duration::ZERO } else { left }
}

/// The connections in the answer to `cons`, without those that ask such questions.
pub(super) fn connections(answer: &str) -> Result<Vec<Connection>> {
    // ` /127.0.0.1:40000[1](queued=0,recved=2,sent=2,sid=0x1000,...)`
    let of_sessions = answer.lines().filter(|line| line.contains("sid=0x"));
    of_sessions
        .map(|line| {
            let client = line.trim_start_matches([' ', '/']).split('[').next().unwrap_or_default();
            let session = line.split("sid=").nth(1).and_then(|rest| rest.split(',').next());
            Ok(Connection { client: client.parse()?, session: parse_session(session.unwrap_or_default())? })
        })
        .collect()
}

/// A session id as ZooKeeper writes it, `0x` and hexadecimal digits.
fn parse_session(id: &str) -> Result<i64> {
    let digits = id.strip_prefix("0x").with_context(|| format!("{id:?} is no session"))?;
    Ok(u64::from_str_radix(digits, 16)?.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_stands_at_the_beginning() {
        assert_eq!(version("Zookeeper version: 3.8.0-abc, built on 2024-12-29\n").unwrap(), "3.8.0");
    }

    #[test]
    fn watches_are_counted() {
        assert_eq!(watches("2 connections watching 3 paths\nTotal watches:4\n").unwrap(), 4);
        assert!(watches("nothing").is_err());
    }

    #[test]
    fn ephemerals_are_listed_by_session() {
        let answer = "SessionTracker dump:\nSession Sets (1)/(1):\n1 expire at Sat Nov 21:\n\t0x1\n\
                      ephemeral nodes dump:\nSessions with Ephemerals (2):\n\
                      0x1:\n\t/a\n\t/b:c\n0xf000000000000001:\n\t/d\n\
                      Connections dump:\nConnections Sets (1)/(1):\n";
        let paths = |paths: &[&str]| paths.iter().map(ToString::to_string).collect::<Vec<_>>();
        let expected =
            [(1, paths(&["/a", "/b:c"])), (0xf000_0000_0000_0001_u64.cast_signed(), paths(&["/d"]))];
        assert_eq!(ephemerals(answer).unwrap(), BTreeMap::from(expected));
        assert!(ephemerals("ephemeral nodes dump:\nSessions with Ephemerals (0):\n").unwrap().is_empty());
    }

    #[test]
    fn expiries_are_seconds_of_the_day() {
        let answer = "SessionTracker dump:\nSession Sets (2)/(3):\n\
                      2 expire at Sat Nov 21 10:00:05 UTC 2026:\n\t0x1\n\t0xf000000000000001\n\
                      1 expire at Sun Nov 22 00:00:01 UTC 2026:\n\t0x2\n\
                      ephemeral nodes dump:\nSessions with Ephemerals (1):\n0x1:\n\t/a\n";
        let (ten, last) = (36_005, 0xf000_0000_0000_0001_u64.cast_signed());
        assert_eq!(expiries(answer), BTreeMap::from([(1, ten), (2, 1), (last, ten)]));
        assert!(expiries("").is_empty());
    }

    #[test]
    fn what_is_left_of_a_time_may_pass_midnight() {
        let (day, ms) = (24 * 60 * 60 * 1000, Duration::from_millis);
        assert_eq!(left_of_day(5, ms(3 * day + 2_500)), ms(3_500));
        assert_eq!(left_of_day(1, ms(4 * day - 2_000)), ms(4_000), "tomorrow");
        assert_eq!(left_of_day(5, ms(day + 6_001)), ms(0), "just over");
        assert_eq!(left_of_day(24 * 60 * 60 - 1, ms(day + 10)), ms(0), "just over, yesterday");
    }

    #[test]
    fn connections_have_a_session() {
        let answer = " /127.0.0.1:58158[0](queued=0,recved=1,sent=0)\n \
                      /127.0.0.1:40000[1](queued=0,recved=2,sent=2,sid=0x1000,lop=PING,est=1)\n";
        let client = "127.0.0.1:40000".parse().unwrap();
        assert_eq!(connections(answer).unwrap(), [Connection { client, session: 0x1000 }]);
    }
}
