//! What the proxy does to connections between plain programs.
#![cfg(test)]

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use lockkit_testbed::{Direction, Flow, Proxy};

/// Generous bound against hangs.
const HANG: Duration = Duration::from_secs(20);

/// Long enough to see that nothing comes: too short to fail when something might, so that no good run depends on it.
const SILENCE: Duration = Duration::from_millis(100);

/// A server that sends back what it gets, on each connection; ends with the test process.
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

fn say(client: &TcpStream, text: &str) {
    let mut client = client;
    client.write_all(text.as_bytes()).unwrap();
}

#[track_caller]
fn hear(client: &TcpStream, text: &str) {
    let mut client = client;
    let mut heard = vec![0; text.len()];
    client.read_exact(&mut heard).unwrap();
    assert_eq!(heard, text.as_bytes());
}

#[track_caller]
fn hear_nothing(client: &TcpStream) {
    let mut client = client;
    client.set_read_timeout(Some(SILENCE)).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    client.set_read_timeout(Some(HANG)).unwrap();
}

#[track_caller]
fn is_reset(client: &TcpStream) {
    let mut client = client;
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[track_caller]
fn until(so: impl Fn() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < HANG, "it never came about");
        std::thread::yield_now();
    }
}

#[test]
fn bytes_pass_and_are_counted() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    say(&client, "hello");
    hear(&client, "hello");
    let counts = proxy.counts();
    assert_eq!((counts.accepted, counts.open, counts.to_server), (1, 1, 5));
    until(|| proxy.counts().to_client == 5);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&client).read(&mut [0]).unwrap(), 0, "an end is passed on");
    until(|| proxy.counts().open == 0);
}

#[test]
fn much_passes_in_order() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| n.wrapping_mul(n) as u8).collect();
    let mut heard = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&client).write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        (&client).read_to_end(&mut heard).unwrap();
    });
    assert!(heard == sent);
}

#[test]
fn a_delay_holds_each_byte_up_and_keeps_their_order() {
    let delay = Duration::from_millis(50);
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    proxy.set(Direction::Replies, Flow::Delay(delay));
    let started = Instant::now();
    say(&client, "one ");
    say(&client, "two");
    hear(&client, "one two");
    assert!(started.elapsed() >= delay);
    // Neither waits for the other.
    proxy.set(Direction::Replies, Flow::Delay(HANG));
    say(&client, "three");
    hear_nothing(&client);
    proxy.pass();
    hear(&client, "three");
}

#[test]
fn a_trickle_takes_its_time() {
    let every = Duration::from_millis(20);
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    proxy.set(Direction::Requests, Flow::Trickle { bytes: 2, every });
    let started = Instant::now();
    say(&client, "seven by");
    hear(&client, "seven by");
    assert!(started.elapsed() >= 3 * every);
}

#[test]
fn one_direction_is_held_and_heals() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    proxy.set(Direction::Requests, Flow::Hold);
    say(&client, "a request");
    until(|| proxy.holds("request"));
    assert_eq!(proxy.counts().to_server, 0);
    proxy.pass();
    hear(&client, "a request");
    assert!(!proxy.holds("request"));

    proxy.set(Direction::Replies, Flow::Hold);
    say(&client, "another");
    until(|| proxy.counts().to_server == 16);
    hear_nothing(&client);
    proxy.pass();
    hear(&client, "another");
}

#[test]
fn requests_are_held_from_a_certain_one_on() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    proxy.hold_at("second");
    say(&client, "first");
    hear(&client, "first");
    say(&client, "the second");
    until(|| proxy.holds("second"));
    say(&client, ", third");
    hear_nothing(&client);
    proxy.pass();
    hear(&client, "the second, third");
}

#[test]
fn some_replies_are_swallowed_one_after_the_other() {
    let proxy = Proxy::start(echo()).unwrap();
    proxy.swallow_next(2);
    for _ in 0..2 {
        let client = connect(&proxy);
        say(&client, "lost");
        is_reset(&client);
    }
    let client = connect(&proxy);
    say(&client, "third");
    hear(&client, "third");
    assert_eq!(proxy.counts().dropped, 2);
}

#[test]
fn a_black_hole_hides_the_end_of_the_other_side() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap()).unwrap();
    let client = connect(&proxy);
    let accepted = server.accept().unwrap().0;
    proxy.set(Direction::Replies, Flow::Hold);
    drop(accepted);
    hear_nothing(&client);
    proxy.pass();
    assert_eq!((&client).read(&mut [0]).unwrap(), 0);
}

#[test]
fn what_is_dropped_never_comes_and_leaves_no_gap() {
    let proxy = Proxy::start(echo()).unwrap();
    let (client, other) = (connect(&proxy), connect(&proxy));
    proxy.set(Direction::Replies, Flow::Drop);
    say(&client, "lost");
    hear_nothing(&client);
    proxy.pass();
    is_reset(&client);
    say(&other, "nothing was lost here");
    hear(&other, "nothing was lost here");
}

#[test]
fn a_reset_reaches_both_sides_and_new_connections_work() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap()).unwrap();
    let client = connect(&proxy);
    let accepted = server.accept().unwrap().0;
    until(|| proxy.counts().open == 1);
    proxy.reset();
    is_reset(&client);
    is_reset(&accepted);
    let client = connect(&proxy);
    say(&client, "again");
    hear(&server.accept().unwrap().0, "again");
}

#[test]
fn nobody_is_let_in_until_all_may_pass() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    say(&client, "in");
    hear(&client, "in");
    proxy.refuse();
    is_reset(&client);
    is_reset(&connect(&proxy));
    proxy.pass();
    let client = connect(&proxy);
    say(&client, "in");
    hear(&client, "in");
}

#[test]
fn new_connections_wait_while_others_go_on() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    say(&client, "in");
    hear(&client, "in");
    proxy.hold_new();
    let late = connect(&proxy);
    say(&late, "late");
    hear_nothing(&late);
    say(&client, "still in");
    hear(&client, "still in");
    proxy.pass();
    hear(&late, "late");
}

#[test]
fn one_process_is_cut_off() {
    let proxy = Proxy::start(echo()).unwrap();
    let client = connect(&proxy);
    proxy.cut_off(1);
    say(&client, "in");
    hear(&client, "in");
    proxy.cut_off(std::process::id());
    is_reset(&client);
    let client = connect(&proxy);
    say(&client, "in");
    hear_nothing(&client);
    proxy.let_in(1);
    hear_nothing(&client);
    proxy.let_in(std::process::id());
    is_reset(&client);
    proxy.cut_off(std::process::id());
    let client = connect(&proxy);
    hear_nothing(&client);
    proxy.pass();
    is_reset(&client);
    let client = connect(&proxy);
    say(&client, "in");
    hear(&client, "in");
}

#[test]
fn no_server_no_connection() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = Proxy::start(nobody).unwrap();
    is_reset(&connect(&proxy));
}

#[test]
fn a_request_comes_after_its_client_has_gone() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap()).unwrap();
    proxy.set(Direction::Requests, Flow::Hold);
    let client = connect(&proxy);
    let accepted = server.accept().unwrap().0;
    accepted.set_read_timeout(Some(HANG)).unwrap();
    say(&client, "late");
    until(|| proxy.holds("late"));
    proxy.leave();
    is_reset(&client);
    proxy.pass();
    hear_nothing(&accepted);
    proxy.deliver_late();
    hear(&accepted, "late");
    proxy.reset();
    is_reset(&accepted);
}

#[test]
fn the_second_reply_is_swallowed_with_its_connection() {
    let proxy = Proxy::start(echo()).unwrap();
    let (client, other) = (connect(&proxy), connect(&proxy));
    proxy.swallow_reply(2);
    say(&other, "first");
    hear(&other, "first");
    say(&client, "second");
    is_reset(&client);
    say(&other, "third");
    hear(&other, "third");
    assert_eq!(proxy.counts().dropped, 1);
}
