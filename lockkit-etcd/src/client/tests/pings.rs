//! HTTP/2 pings, which the scripted channel does not send.

use std::time::Duration;

use lockkit_conformance::direct::bounded;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
    time::timeout,
};

use crate::client::{
    ConnectOptions,
    pb::etcdserverpb::{StatusRequest, maintenance_client::MaintenanceClient},
};

/// What a client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame without a payload: no settings of the server.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

const PING_TYPE: u8 = 6;

/// Accepts a connection, and sends the type of each frame that it receives.
async fn serve(listener: TcpListener, types: mpsc::UnboundedSender<u8>) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept().await?;
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).await?;
    assert_eq!(preface, PREFACE);
    stream.write_all(&SETTINGS).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [high, middle, low, kind, ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
        stream.read_exact(&mut payload).await?;
        let _ = types.send(kind);
    }
}

/// A server of gRPC closes a connection that is pinged without one.
#[tokio::test]
async fn connection_is_pinged_only_during_a_request() {
    const INTERVAL: Duration = Duration::from_millis(20);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = ConnectOptions::new().with_keep_alive(INTERVAL, Duration::from_secs(600));
    let endpoint = options.endpoint(&listener.local_addr().unwrap().to_string()).unwrap();
    let (types, mut received) = mpsc::unbounded_channel();
    tokio::spawn(serve(listener, types));
    let connection = bounded(endpoint.connect()).await.expect("it is connected");
    let mut pinged = async || while received.recv().await.expect("it is open") != PING_TYPE {};
    timeout(10 * INTERVAL, pinged()).await.expect_err("it is pinged without a request");
    let mut maintenance = MaintenanceClient::new(connection);
    let _unanswered = tokio::spawn(async move { maintenance.status(StatusRequest {}).await });
    bounded(pinged()).await;
}
