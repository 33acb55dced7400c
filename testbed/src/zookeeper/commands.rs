//! ZooKeeper's four-letter commands: what a server reports of itself without a session.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

/// Longest time until a reply: generous, because most tests take a failure for the end.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The same for a command that is repeated until it succeeds: a server that is just starting may never reply.
const POLL_ANSWER_MAX: Duration = Duration::from_millis(500);

/// The reply of a server that has no leader, or has not finished starting.
const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests";

/// Sends commands to the server at this address.
#[derive(Debug)]
pub(super) struct FourLetterCommands(pub(super) SocketAddr);

/// The role of a server in its ensemble.
#[derive(Debug)]
pub(super) struct Role {
    /// `leader`, `follower` or `standalone`.
    pub(super) mode: String,
    /// Rises with each new leader.
    pub(super) epoch: u64,
}

/// A client's connection to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The client's end.
    pub client: SocketAddr,
    /// Its session.
    pub session: i64,
}

impl FourLetterCommands {
    /// Returns the reply to a command. An error when the server does not serve.
    pub(super) fn ask(&self, command: &str) -> Result<String> {
        self.ask_within(ANSWER_MAX, command)
    }

    fn ask_within(&self, time_max: Duration, command: &str) -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.0, time_max)?;
        stream.set_read_timeout(Some(time_max))?;
        stream.write_all(command.as_bytes())?;
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        read.with_context(|| format!("{command} to ZooKeeper at {}", self.0))?;
        ensure!(
            !answer.is_empty() && !answer.contains(NOT_SERVING),
            "ZooKeeper at {} does not serve",
            self.0
        );
        Ok(answer)
    }

    /// Returns the role of the server.
    pub(super) fn role(&self) -> Result<Role> {
        let answer = self.ask_within(POLL_ANSWER_MAX, "srvr")?;
        let after = |label| {
            let found = answer.lines().find_map(|line| line.strip_prefix(label));
            found.with_context(|| format!("no {label:?} in {answer:?}"))
        };
        let transaction = u64::from_str_radix(after("Zxid: 0x")?, 16)?;
        Ok(Role { mode: after("Mode: ")?.to_owned(), epoch: transaction >> 32 })
    }
}

/// The version in the answer to `srvr`, without the build.
pub(super) fn version(answer: &str) -> Result<String> {
    let version = answer.strip_prefix("Zookeeper version: ").and_then(|rest| rest.split(['-', ',']).next());
    version.map(str::to_owned).with_context(|| format!("no version in {answer:?}"))
}

/// The number of watches in the answer to `mntr`.
pub(super) fn watches(answer: &str) -> Result<u64> {
    let total = answer.lines().find_map(|line| line.strip_prefix("zk_watch_count"));
    Ok(total.with_context(|| format!("no watches in {answer:?}"))?.trim().parse()?)
}

/// The paths in the answer to `dump`, by session.
pub(super) fn ephemerals(answer: &str) -> Result<BTreeMap<i64, Vec<String>>> {
    let mut sessions = BTreeMap::<_, Vec<_>>::new();
    let mut session = None;
    for line in answer.lines().skip_while(|line| !line.starts_with("Sessions with Ephemerals")).skip(1) {
        match (line.strip_prefix('\t'), session) {
            (Some(path), Some(session)) => sessions.entry(session).or_default().push(path.to_owned()),
            // `0xID:`. After the last session comes a line that is neither indented nor a session.
            _ => match line.strip_suffix(':').and_then(|id| parse_session(id).ok()) {
                Some(id) => session = Some(id),
                None => break,
            },
        }
    }
    Ok(sessions)
}

/// When each session in the answer to `dump` expires if its client stays silent, as a second of the day in UTC.
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

/// The time from `now` (since 1970) to the end of a second of the day, which lies within the next half day.
pub(super) fn left_of_day(second_of_day: u64, now: Duration) -> Duration {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let now = Duration::new(now.as_secs() % DAY.as_secs(), now.subsec_nanos());
    let end = Duration::from_secs(second_of_day + 1);
    let left = (end + DAY).saturating_sub(now);
    let left = if left >= DAY { left - DAY } else { left };
    // It ended a moment ago, and the server has not removed it yet.
    if left > DAY / 2 { Duration::ZERO } else { left }
}

/// The connections in the answer to `cons`, without those that send four-letter commands: these have no session.
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
    let digits = id.strip_prefix("0x").with_context(|| format!("{id:?} is not a session"))?;
    Ok(u64::from_str_radix(digits, 16)?.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_at_the_beginning() {
        assert_eq!(version("Zookeeper version: 3.8.0-abc, built on 2024-12-29\n").unwrap(), "3.8.0");
    }

    #[test]
    fn watches_are_counted() {
        assert_eq!(watches("zk_znode_count\t9\nzk_watch_count\t4\n").unwrap(), 4);
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
    fn time_left_may_pass_midnight() {
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
