//! The proxy on connections without a protocol.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use lockkit_testbed::{Direction, Flow, HANG, Proxy, until};

/// How long a test waits to see that nothing arrives. Bytes that arrive later are missed, so a slow machine fails no
/// test.
const SILENCE: Duration = Duration::from_millis(100);

/// Starts a server that sends back what it receives, on each connection; it ends with the test process.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            std::thread::spawn(move || {
                let (mut from, mut to) = (client.as_ref().unwrap(), client.as_ref().unwrap());
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

fn connect(proxy: &Proxy) -> TcpStream {
    let client = TcpStream::connect(proxy.endpoint()).unwrap();
    client.set_read_timeout(Some(HANG)).unwrap();
    client
}

fn send(client: &TcpStream, text: &str) {
    let mut client = client;
    client.write_all(text.as_bytes()).unwrap();
}

#[track_caller]
fn receive(client: &TcpStream, text: &str) {
    let mut client = client;
    let mut received = vec![0; text.len()];
    client.read_exact(&mut received).unwrap();
    assert_eq!(received, text.as_bytes());
}

#[track_caller]
fn receive_nothing(client: &TcpStream) {
    let mut client = client;
    client.set_read_timeout(Some(SILENCE)).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    client.set_read_timeout(Some(HANG)).unwrap();
}

#[track_caller]
fn expect_reset(client: &TcpStream) {
    let mut client = client;
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn bytes_pass_and_are_counted() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    send(&client, "hello");
    receive(&client, "hello");
    let counts = proxy.counts();
    assert_eq!((counts.accepted, counts.open, counts.to_server), (1, 1, 5));
    until("all bytes have arrived", || proxy.counts().to_client == 5);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&client).read(&mut [0]).unwrap(), 0, "the end is not forwarded");
    until("the connection is closed", || proxy.counts().open == 0);
}

#[test]
fn large_transfer_arrives_in_order() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| n.wrapping_mul(n) as u8).collect();
    let mut received = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&client).write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        (&client).read_to_end(&mut received).unwrap();
    });
    assert!(received == sent);
}

#[test]
fn delay_applies_to_each_byte_and_keeps_their_order() {
    let delay = Duration::from_millis(50);
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    proxy.set(Direction::Replies, Flow::Delay(delay));
    let started = Instant::now();
    send(&client, "one ");
    send(&client, "two");
    receive(&client, "one two");
    assert!(started.elapsed() >= delay);
    // A new flow ends a delay that is under way.
    proxy.set(Direction::Replies, Flow::Delay(HANG));
    send(&client, "three");
    receive_nothing(&client);
    proxy.pass();
    receive(&client, "three");
}

#[test]
fn trickle_sends_chunks_at_intervals() {
    let every = Duration::from_millis(20);
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    proxy.set(Direction::Requests, Flow::Trickle { bytes: 2, every });
    let started = Instant::now();
    send(&client, "seven by");
    receive(&client, "seven by");
    assert!(started.elapsed() >= 3 * every);
}

#[test]
fn held_direction_is_delivered_by_pass() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    proxy.set(Direction::Requests, Flow::Hold);
    send(&client, "a request");
    until("the request is held", || proxy.holds("request"));
    assert_eq!(proxy.counts().to_server, 0);
    proxy.pass();
    receive(&client, "a request");
    assert!(!proxy.holds("request"));

    proxy.set(Direction::Replies, Flow::Hold);
    send(&client, "another");
    until("all bytes have arrived", || proxy.counts().to_server == 16);
    receive_nothing(&client);
    proxy.pass();
    receive(&client, "another");
}

#[test]
fn request_that_the_server_has_is_not_held() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap()).unwrap();
    let client = connect(&proxy);
    let (server, _) = server.accept().unwrap();
    for _ in 0..2000 {
        send(&client, "a request");
        receive(&server, "a request");
        assert!(!proxy.holds("request"));
    }
}

#[test]
fn requests_are_held_from_the_first_match_on() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    proxy.hold_requests_from("second");
    send(&client, "first");
    receive(&client, "first");
    send(&client, "the second");
    until("the second one is held", || proxy.holds("second"));
    send(&client, ", third");
    receive_nothing(&client);
    proxy.pass();
    receive(&client, "the second, third");
}

#[test]
fn next_replies_are_swallowed_with_their_connections() {
    let proxy = Proxy::start(echo()).unwrap();
    proxy.swallow_next(2);
    for _ in 0..2 {
        let client = connect(&proxy);
        send(&client, "lost");
        expect_reset(&client);
    }
    let client = connect(&proxy);
    send(&client, "third");
    receive(&client, "third");
    assert_eq!(proxy.counts().dropped, 2);
}

#[test]
fn hold_hides_the_end_of_the_stream() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap()).unwrap();
    let client = connect(&proxy);
    let accepted = server.accept().unwrap().0;
    proxy.set(Direction::Replies, Flow::Hold);
    drop(accepted);
    receive_nothing(&client);
    proxy.pass();
    assert_eq!((&client).read(&mut [0]).unwrap(), 0);
}

#[test]
fn connection_that_lost_bytes_is_reset_by_pass() {
    let proxy = Proxy::start(echo()).unwrap();
    let (client, other) = (connect(&proxy), connect(&proxy));
    proxy.set(Direction::Replies, Flow::Drop);
    send(&client, "lost");
    receive_nothing(&client);
    proxy.pass();
    expect_reset(&client);
    send(&other, "nothing was lost here");
    receive(&other, "nothing was lost here");
}

#[test]
fn reset_reaches_both_sides_and_new_connections_work() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap()).unwrap();
    let client = connect(&proxy);
    let accepted = server.accept().unwrap().0;
    until("the connection is open", || proxy.counts().open == 1);
    proxy.reset();
    expect_reset(&client);
    expect_reset(&accepted);
    let client = connect(&proxy);
    send(&client, "again");
    receive(&server.accept().unwrap().0, "again");
}

#[test]
fn connections_are_refused_until_pass() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    send(&client, "in");
    receive(&client, "in");
    proxy.refuse();
    expect_reset(&client);
    expect_reset(&connect(&proxy));
    proxy.pass();
    let client = connect(&proxy);
    send(&client, "in");
    receive(&client, "in");
}

#[test]
fn held_new_connections_wait_while_others_continue() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    send(&client, "in");
    receive(&client, "in");
    proxy.hold_new();
    let late = connect(&proxy);
    send(&late, "late");
    receive_nothing(&late);
    send(&client, "still in");
    receive(&client, "still in");
    proxy.pass();
    receive(&late, "late");
}

#[test]
fn only_one_process_is_cut_off() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    proxy.cut_off(1);
    send(&client, "in");
    receive(&client, "in");
    proxy.cut_off(std::process::id());
    expect_reset(&client);
    let client = connect(&proxy);
    send(&client, "in");
    receive_nothing(&client);
    proxy.let_in(1);
    receive_nothing(&client);
    proxy.let_in(std::process::id());
    expect_reset(&client);
    proxy.cut_off(std::process::id());
    let client = connect(&proxy);
    receive_nothing(&client);
    proxy.pass();
    expect_reset(&client);
    let client = connect(&proxy);
    send(&client, "in");
    receive(&client, "in");
}

#[test]
fn connection_without_a_server_is_reset() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = Proxy::start(nobody).unwrap();
    expect_reset(&connect(&proxy));
}

#[test]
fn request_of_a_reset_client_is_delivered_late() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap()).unwrap();
    proxy.set(Direction::Requests, Flow::Hold);
    let client = connect(&proxy);
    let accepted = server.accept().unwrap().0;
    accepted.set_read_timeout(Some(HANG)).unwrap();
    send(&client, "late");
    until("the late one is held", || proxy.holds("late"));
    proxy.reset_clients();
    expect_reset(&client);
    proxy.pass();
    receive_nothing(&accepted);
    proxy.deliver_late();
    receive(&accepted, "late");
    proxy.reset();
    expect_reset(&accepted);
}

#[test]
fn second_reply_is_swallowed_with_its_connection() {
    let proxy = Proxy::start(echo()).unwrap();
    let (client, other) = (connect(&proxy), connect(&proxy));
    proxy.swallow_reply(2);
    send(&other, "first");
    receive(&other, "first");
    send(&client, "second");
    expect_reset(&client);
    send(&other, "third");
    receive(&other, "third");
    assert_eq!(proxy.counts().dropped, 1);
}
