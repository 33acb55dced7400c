//! Why no server serves a client. The client balances over all endpoints and reports one failure, often without
//! its cause ("transport error"). So each endpoint is probed once, all at the same time: a person who reads the error
//! must learn which address is wrong, and whether something else than etcd listens there.
//!
//! A probe changes nothing at the server. To a server that is configured with TLS nothing is sent in the clear.
//!
//! If client and servers do not trust each other, no retry can fix that, so the error is `Denied`. If only some of several
//! servers are not trusted, the others may come back, and it is `Unavailable`.

use std::{fmt, io, time::Duration};

use futures_util::future::join_all;
use lockkit_core::{ErrorKind, backend::tls::Tls};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    EtcdConfig,
    call::Server,
    error::{Effect, RequestError},
};

/// Longest time of a probe, if the time limit of a request is not shorter.
const PROBE_TIME_MAX: Duration = Duration::from_secs(2);

/// The beginning of every HTTP/2 connection: the preface, and a SETTINGS frame without settings (RFC 9113, section 3.4).
const HTTP2_BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A TLS handshake that is cut off; a server that speaks TLS answers with an alert (RFC 8446, section 5.1).
const TLS_BEGIN: &[u8] = &[0x16, 3, 1, 0, 4, 1, 0, 0, 0];

/// What a probe has found.
enum ProbeResult {
    /// The server speaks the protocol.
    Reachable,
    /// It cannot be reached, or is something else.
    Fault(String),
    /// Server and client do not trust each other.
    Distrust(String),
}

impl fmt::Display for ProbeResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reachable => f.write_str("reachable"),
            Self::Fault(why) | Self::Distrust(why) => f.write_str(why),
        }
    }
}

/// Adds to a fault which endpoints were tried and why each of them failed. A fault that another cause explains stays.
pub(crate) async fn explain(config: &EtcdConfig, fault: RequestError) -> RequestError {
    if !matches!(fault.effect, Effect::NotSent | Effect::Unknown | Effect::NotServing)
        || !matches!(fault.kind(), ErrorKind::Unavailable | ErrorKind::Denied)
    {
        return fault;
    }
    let limit = config.request_timeout.min(PROBE_TIME_MAX);
    let probes = config.endpoints.iter().map(|endpoint| async move {
        let probe = async {
            match &config.tls {
                Some(tls) => probe_tls(config, endpoint, tls, limit).await,
                None => probe_plain(endpoint).await,
            }
        };
        timeout(limit, probe)
            .await
            .unwrap_or_else(|_| ProbeResult::Fault(format!("no answer within {limit:?}")))
    });
    let found = join_all(probes).await;
    let kind = match &*found {
        // The request has met this one server: its failure says more than a later probe that found no distrust.
        [ProbeResult::Reachable | ProbeResult::Fault(_)] => fault.kind(),
        // Only if it is true of all: a client that waits for the store must not give up for one of its servers.
        all if all.iter().all(|found| matches!(found, ProbeResult::Distrust(_))) => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    };
    let reachable = found.iter().any(|found| matches!(found, ProbeResult::Reachable));
    // The request failed for another reason than the connection.
    let mut parts: Vec<String> = reachable.then(|| fault.message().to_owned()).into_iter().collect();
    let servers = config.endpoints.iter().zip(&found);
    parts.extend(servers.map(|(endpoint, found)| format!("{endpoint}: {found}")));
    RequestError::new(fault.effect, kind, parts.join("; "))
}

async fn probe_plain(endpoint: &str) -> ProbeResult {
    let fault = |why: &str| ProbeResult::Fault(why.to_owned());
    let answer = match answer_to(endpoint, HTTP2_BEGIN).await {
        Ok(answer) => answer,
        Err(cause) => return ProbeResult::Fault(format!("cannot connect: {cause}")),
    };
    match answer.as_slice() {
        // A SETTINGS frame of the connection.
        [_, _, _, 4, _, 0, 0, 0, 0, ..] => ProbeResult::Reachable,
        [b'H', b'T', b'T', b'P', b'/', b'1', ..] => {
            fault("answers with HTTP/1; is this etcd's port for clients?")
        }
        [b'-' | b'+', ..] => fault("answers as a Redis server does; is this etcd?"),
        // A server that wants TLS may close without an alert, because these bytes are no TLS at all.
        [] | [0x15, ..] => match answer_to(endpoint, TLS_BEGIN).await.as_deref() {
            Ok([0x15 | 0x16, 3, ..]) => fault("wants TLS (etcds:// or https://)"),
            _ => fault("closes the connection instead of answering; is this etcd?"),
        },
        _ => fault("does not answer with HTTP/2; is this etcd?"),
    }
}

/// Connects, sends this, and returns the beginning of the answer; nothing if the server closes the connection.
async fn answer_to(endpoint: &str, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut connection = TcpStream::connect(endpoint).await?;
    let mut answer = vec![0; 9];
    let mut read = 0;
    // A reset is an answer too: the server has accepted the connection.
    if connection.write_all(bytes).await.is_ok() {
        while read < answer.len() {
            match connection.read(&mut answer[read..]).await {
                Ok(more) if more > 0 => read += more,
                _ => break,
            }
        }
    }
    answer.truncate(read);
    Ok(answer)
}

async fn probe_tls(config: &EtcdConfig, endpoint: &str, tls: &Tls, limit: Duration) -> ProbeResult {
    let mut alone = config.clone();
    (alone.endpoints, alone.login) = (vec![endpoint.to_owned()], None);
    let asked = async { Server::connect(&alone).await?.version().await };
    // A server that refuses the request, because the probe has not logged in, can be reached.
    let Err(fault) = asked.await else { return ProbeResult::Reachable };
    if fault.kind() == ErrorKind::Denied {
        return ProbeResult::Distrust(fault.message().to_owned());
    }
    // The server may have refused the client's certificate after the handshake, in a message that was lost.
    match tls.refusal(endpoint, Some("h2"), limit).await {
        Some(end) => ProbeResult::Distrust(RequestError::not_connected(&end).message().to_owned()),
        _ if fault.is_failed_handshake() => {
            ProbeResult::Fault(format!("{}; does it speak TLS?", fault.message()))
        }
        _ => ProbeResult::Fault(fault.message().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, time::Instant};

    use super::*;

    /// An address where nothing listens.
    const CLOSED: &str = "127.0.0.1:1";

    /// A request may take longer than a person who waits for the reason of a failure likes to.
    #[tokio::test(start_paused = true)]
    async fn probe_of_a_silent_server_ends_soon() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = silent.local_addr().unwrap().to_string();
        for (request, limit) in [(60, 2), (1, 1)] {
            let config = EtcdConfig::new([&endpoint]).unwrap().request_timeout(Duration::from_secs(request));
            let since = Instant::now();
            let fault = explain(&config, RequestError::no_reply()).await;
            assert_eq!(since.elapsed().as_secs(), limit);
            assert!(fault.message().contains(&format!("no answer within {limit}s")), "{}", fault.message());
        }
    }

    /// An operator must learn both: why the one that answers does not serve, and which one does not answer.
    #[tokio::test]
    async fn failure_of_a_request_is_named_also_if_only_one_of_several_servers_can_be_reached() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let alive = listener.local_addr().unwrap().to_string();
        let answering = async {
            let (mut connection, _) = listener.accept().await.unwrap();
            connection.read_exact(&mut [0; HTTP2_BEGIN.len()]).await.unwrap();
            connection.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
            connection
        };
        let config = EtcdConfig::new([CLOSED, &*alive]).unwrap();
        let no_leader = RequestError::new(Effect::NotServing, ErrorKind::Unavailable, "no leader");
        let (fault, _connection) = tokio::join!(explain(&config, no_leader), answering);
        let text = fault.message();
        assert!(text.starts_with("no leader; ") && text.ends_with(&format!("{alive}: reachable")), "{text}");
    }

    /// The probe comes later. That one of several servers is not trusted says nothing about the others.
    #[tokio::test]
    async fn lack_of_trust_that_the_request_has_met_is_final_if_there_is_one_server() {
        for (servers, kind) in [(1, ErrorKind::Denied), (2, ErrorKind::Unavailable)] {
            let config = EtcdConfig::new(vec![CLOSED; servers]).unwrap();
            let distrust = RequestError::new(Effect::NotSent, ErrorKind::Denied, "not trusted");
            assert_eq!(explain(&config, distrust).await.kind(), kind);
        }
    }
}
