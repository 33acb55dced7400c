//! Why no session can be opened.
//!
//! The client crate reports only that no server is left. So each server is asked: by TCP, by ZooKeeper's command `srvr`,
//! and, if it closes the connection at that, by the beginning of a TLS handshake and by an HTTP request.
//!
//! The command is text that other servers refuse in a way of their own. Servers may refuse it too
//! (`4lw.commands.whitelist`), but then say so.
//!
//! Failure cases:
//!
//! * A server is silent: each of its answers is awaited for [`ANSWER_MAX`], all servers at the same time.
//! * It has recovered meanwhile: its answer says that it serves, and the keeper's next attempt succeeds.
//! * All servers speak another protocol: no retry can fix that, so the error is `InvalidConfig`. If only some do, the
//!   others may come back, and it is `Unavailable`.

use std::{io, time::Duration};

use lockkit_core::ErrorKind;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    Tls, ZkConfig,
    error::{Effect, RequestError},
};

/// Longest wait for one answer of a server that is asked why it opens no session.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// How much of an answer is read, in bytes.
const ANSWER_BYTES: usize = 64;

/// Why one server opens no session.
struct Finding {
    cause: Cause,
    why: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// It may open one later.
    Temporary,
    /// It is another program, or expects TLS where there is none, or the reverse.
    OtherProtocol,
    /// Client and server do not trust each other's certificates.
    Distrust,
}

/// Adds to `error` why each server opened no session.
pub(crate) async fn explained(config: &ZkConfig, error: RequestError) -> RequestError {
    let asked = config.servers.iter().map(|server| {
        let (server, tls, time_limit) = (server.clone(), config.tls.clone(), config.request_timeout);
        tokio::spawn(async move {
            let finding = ask(&server, tls.as_ref(), time_limit).await;
            (server, finding)
        })
    });
    let (mut causes, mut reasons) = (Vec::new(), Vec::new());
    for finding in asked.collect::<Vec<_>>() {
        let Ok((server, finding)) = finding.await else { continue };
        causes.push(finding.cause);
        reasons.push(format!("{server}: {}", finding.why));
    }
    let message = format!("{}: {}", error.message(), reasons.join("; "));
    match lasting(&causes) {
        None => error.with_message(message),
        Some(ErrorKind::InvalidConfig) => RequestError::invalid_config(message),
        Some(kind) => RequestError::new(Effect::Refused, kind, message),
    }
}

/// The kind of an error that lasts; `None` if a server may open a session later: a client that waits for the store must
/// not give up for the others.
fn lasting(causes: &[Cause]) -> Option<ErrorKind> {
    if causes.is_empty() || causes.contains(&Cause::Temporary) {
        return None;
    }
    let is_denied = causes.contains(&Cause::Distrust);
    Some(if is_denied { ErrorKind::Denied } else { ErrorKind::InvalidConfig })
}

async fn ask(server: &str, tls: Option<&Tls>, time_limit: Duration) -> Finding {
    let answer_max = time_limit.min(ANSWER_MAX);
    let temporary = |why: String| Finding { cause: Cause::Temporary, why };
    let connection = match timeout(answer_max, TcpStream::connect(server)).await {
        Err(_) => return temporary(format!("no connection within {answer_max:?}")),
        Ok(Err(cause)) => return temporary(cause.to_string()),
        Ok(Ok(connection)) => connection,
    };
    if let Some(tls) = tls
        && let Some(reason) = tls.refusal(server, None, time_limit).await
    {
        return Finding { cause: Cause::Distrust, why: format!("cannot connect: {reason}") };
    }
    match command(connection, answer_max).await {
        Ok(answer) if answer.is_empty() => {
            temporary("it accepts the connection and does not answer".to_owned())
        }
        Ok(answer) => Protocol::of(&answer).finding(tls.is_some()),
        Err(cause) => match other_protocol(server, answer_max).await {
            Some(protocol) => protocol.finding(tls.is_some()),
            None => temporary(format!(
                "it closes the connection ({cause}); is this ZooKeeper, and has it reached \
                maxClientCnxns?"
            )),
        },
    }
}

/// Sends ZooKeeper's command; returns the beginning of the answer, which is empty if there is none in time.
///
/// # Errors
///
/// If the server ends the connection without an answer.
async fn command(mut connection: TcpStream, answer_max: Duration) -> io::Result<Vec<u8>> {
    let mut answer = [0; ANSWER_BYTES];
    // Other servers wait for the end of a line; ZooKeeper must not get more than the command.
    for sent in [&b"srvr"[..], b"\r\n"] {
        connection.write_all(sent).await?;
        match timeout(answer_max, connection.read(&mut answer)).await {
            Err(_) => {}
            Ok(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => return Ok(answer[..length?].to_vec()),
        }
    }
    Ok(Vec::new())
}

/// Returns what a server speaks that closes the connection at a command in plain text.
async fn other_protocol(server: &str, answer_max: Duration) -> Option<Protocol> {
    for request in [&client_hello()[..], b"GET / HTTP/1.0\r\n\r\n"] {
        let exchange = async {
            let mut connection = TcpStream::connect(server).await?;
            connection.write_all(request).await?;
            let mut answer = [0; ANSWER_BYTES];
            let length = connection.read(&mut answer).await?;
            io::Result::Ok(Protocol::of(&answer[..length]))
        };
        if let Ok(Ok(protocol)) = timeout(answer_max, exchange).await
            && protocol != Protocol::Unknown
        {
            return Some(protocol);
        }
    }
    None
}

/// Returns the beginning of a TLS 1.2 handshake with one cipher suite and no extension. A TLS server answers it with a
/// record, in most cases an alert.
fn client_hello() -> Vec<u8> {
    // A record of 45 bytes; in it, a message of 41 bytes for version 3.3.
    let head = [0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3];
    let random = [0; 32];
    // No session, one cipher suite, no compression.
    [&head[..], &random, &[0, 0, 2, 0xc0, 0x2f, 1, 0]].concat()
}

/// Returns whether these bytes begin a TLS alert or a part of a handshake.
fn is_tls_record(bytes: &[u8]) -> bool {
    matches!(bytes, [0x15 | 0x16, 3, ..])
}

/// What a server speaks, by its answer to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// ZooKeeper, which serves.
    Serving,
    /// ZooKeeper, which does not serve.
    NotServing,
    /// ZooKeeper, which may serve.
    Silenced,
    Tls,
    Redis,
    Http,
    Unknown,
}

impl Protocol {
    fn of(answer: &[u8]) -> Self {
        // The beginning of a frame with HTTP/2's settings: a length of three bytes, and type 4.
        let is_http2 = matches!(answer, [0, 0, _, 4, ..]);
        match answer {
            _ if answer.starts_with(b"Zookeeper version") => Self::Serving,
            _ if answer.starts_with(b"This ZooKeeper instance is not") => Self::NotServing,
            _ if answer.starts_with(b"srvr is not executed") => Self::Silenced,
            _ if is_tls_record(answer) => Self::Tls,
            [b'-', ..] => Self::Redis,
            _ if is_http2 || answer.starts_with(b"HTTP/") => Self::Http,
            _ => Self::Unknown,
        }
    }

    fn finding(self, with_tls: bool) -> Finding {
        let is_plain = matches!(self, Self::Serving | Self::NotServing | Self::Silenced);
        let is_wrong = if with_tls { self != Self::Tls } else { !is_plain };
        let why = match self {
            _ if is_plain && with_tls => {
                "it speaks ZooKeeper without TLS here; use zk:// instead of zks://, or the port for TLS (secureClientPort)"
            }
            Self::Serving => "it serves, and opened no session in time",
            Self::NotServing => {
                "it is ZooKeeper and does not serve: it is starting, or its ensemble has no quorum"
            }
            Self::Silenced => {
                "it is ZooKeeper and opened no session in time: it may be starting or have no quorum"
            }
            Self::Tls if with_tls => "it speaks TLS, and opened no session in time",
            Self::Tls => {
                "it speaks TLS here; use zks:// instead of zk://, or the port without TLS (clientPort)"
            }
            Self::Redis => "it speaks Redis, not ZooKeeper; is the port right?",
            Self::Http => "it speaks HTTP (etcd?), not ZooKeeper; is the port right?",
            Self::Unknown => "it speaks another protocol than ZooKeeper; is the port right?",
        };
        let cause = if is_wrong { Cause::OtherProtocol } else { Cause::Temporary };
        Finding { cause, why: why.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// A caller with a long time limit does not wait for that long only to get an error. Time passes while all sleep.
    #[tokio::test(start_paused = true)]
    async fn silent_server_is_awaited_for_two_answers() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = silent.local_addr().unwrap().to_string();
        let started = Instant::now();
        let finding = ask(&server, None, 60 * ANSWER_MAX).await;
        assert_eq!(finding.why, "it accepts the connection and does not answer");
        assert!(started.elapsed() < 3 * ANSWER_MAX, "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn silent_server_is_awaited_no_longer_than_the_time_limit() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = silent.local_addr().unwrap().to_string();
        let (started, time_limit) = (Instant::now(), ANSWER_MAX / 10);
        ask(&server, None, time_limit).await;
        assert!(started.elapsed() < 3 * time_limit, "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn silent_servers_are_asked_at_the_same_time() {
        let silent: Vec<_> = (0..3).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let servers = silent.iter().map(|server| server.local_addr().unwrap().to_string());
        let config = ZkConfig::new(servers).unwrap();
        let started = Instant::now();
        let explained = explained(&config, RequestError::no_reply()).await;
        assert_eq!(explained.message().matches("does not answer").count(), 3, "{}", explained.message());
        assert!(started.elapsed() < 3 * ANSWER_MAX, "{:?}", started.elapsed());
    }

    #[test]
    fn error_lasts_if_no_server_may_open_a_session_later() {
        use Cause::{Distrust, OtherProtocol, Temporary};
        for (causes, kind) in [
            (&[][..], None),
            (&[Distrust, Temporary], None),
            (&[Temporary, OtherProtocol], None),
            (&[OtherProtocol, OtherProtocol], Some(ErrorKind::InvalidConfig)),
            (&[Distrust, OtherProtocol], Some(ErrorKind::Denied)),
        ] {
            assert_eq!(lasting(causes), kind);
        }
    }

    /// As a server may do that has no TLS.
    #[tokio::test]
    async fn server_that_resets_a_handshake_is_asked_by_http() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap().to_string();
        let serve = async {
            let (handshake, _) = listener.accept().await.unwrap();
            handshake.set_zero_linger().unwrap();
            drop(handshake);
            let (mut answered, _) = listener.accept().await.unwrap();
            answered.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            std::future::pending::<()>().await;
        };
        let protocol = tokio::select! {
            protocol = other_protocol(&server, 60 * ANSWER_MAX) => protocol,
            () = serve => None,
        };
        assert_eq!(protocol, Some(Protocol::Http));
    }

    #[test]
    fn protocols_are_recognised_by_their_answers() {
        for (answer, protocol) in [
            (&b"Zookeeper version: 3.8.0"[..], Protocol::Serving),
            (b"This ZooKeeper instance is not currently serving requests\n", Protocol::NotServing),
            (b"srvr is not executed because it is not in the whitelist.\n", Protocol::Silenced),
            (&[0x15, 3, 1, 0, 2, 2, 40], Protocol::Tls),
            (b"-ERR unknown command 'srvr'", Protocol::Redis),
            (b"-NOAUTH Authentication required.", Protocol::Redis),
            (b"HTTP/1.1 400 Bad Request", Protocol::Http),
            (&[0, 0, 12, 4, 0, 0, 0, 0, 0], Protocol::Http),
            (b"220 mail.example ESMTP", Protocol::Unknown),
        ] {
            assert_eq!(Protocol::of(answer), protocol);
        }
    }

    /// A client gives up at once at a server of another protocol. One that hides its state may serve later.
    #[test]
    fn only_another_protocol_is_final() {
        for (protocol, with_tls, is_final) in [
            (Protocol::Serving, false, false),
            (Protocol::NotServing, false, false),
            (Protocol::Silenced, false, false),
            (Protocol::Tls, false, true),
            (Protocol::Redis, false, true),
            (Protocol::Http, false, true),
            (Protocol::Unknown, false, true),
            (Protocol::Serving, true, true),
            (Protocol::NotServing, true, true),
            (Protocol::Silenced, true, true),
            (Protocol::Tls, true, false),
            (Protocol::Unknown, true, true),
        ] {
            let finding = protocol.finding(with_tls);
            let is_of_another_protocol = finding.cause == Cause::OtherProtocol;
            assert_eq!(is_of_another_protocol, is_final, "{protocol:?}, with TLS: {with_tls}");
        }
    }
}
