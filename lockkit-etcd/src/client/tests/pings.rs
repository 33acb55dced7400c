//! HTTP/2 pings, which the scripted channel does not send.

use std::time::Duration;

use lockkit_conformance::direct::bounded;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::client::ConnectOptions;

/// What a client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame without a payload: no settings of the server.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

const PING_TYPE: u8 = 6;

/// Otherwise the first request over a connection that has died meanwhile would find it.
#[tokio::test]
async fn connection_without_a_request_is_pinged() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = ConnectOptions::new().with_keep_alive(Duration::from_millis(20), Duration::from_secs(600));
    let endpoint = options.endpoint(&listener.local_addr().unwrap().to_string()).unwrap();
    let connecting = tokio::spawn(async move { endpoint.connect().await });
    let pinged = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut preface = [0; PREFACE.len()];
        stream.read_exact(&mut preface).await.unwrap();
        assert_eq!(preface, PREFACE);
        stream.write_all(&SETTINGS).await.unwrap();
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let [high, middle, low, kind, ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
            stream.read_exact(&mut payload).await.unwrap();
            if kind == PING_TYPE {
                return stream;
            }
        }
    };
    let _stream = bounded(pinged).await;
    bounded(connecting).await.unwrap().expect("it is connected");
}
