//! The proxy between a Redis server and its subscribers.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

use lockkit_testbed::{HANG, Message, Proxy, Redis, Reply};

/// A client that sends and reads lines.
struct Client(BufReader<TcpStream>);

impl Client {
    fn of(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.endpoint()).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, line: &str) {
        writeln!(self.0.get_mut(), "{line}\r").unwrap();
    }

    /// Reads up to the line `end`; returns all lines but those with lengths.
    fn read_to(&mut self, end: &str) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        while lines.last().is_none_or(|line| line != end) {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the connection has ended after {lines:?}");
            lines.extend((!line.starts_with('$')).then(|| line.trim_end().to_owned()));
        }
        lines
    }
}

fn publish(redis: &Redis, text: &str) {
    assert_eq!(redis.cli(&["PUBLISH", "c", text]).unwrap(), Reply::Number(1), "no subscriber");
}

/// Starts a server, and a client that subscribes through a proxy.
fn subscriber() -> (Redis, Proxy, Client) {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let mut client = Client::of(&proxy);
    client.send("HELLO 3");
    client.send("SUBSCRIBE c");
    client.send("PING there");
    client.read_to("there");
    (redis, proxy, client)
}

#[test]
fn published_message_is_dropped_while_replies_pass() {
    let (redis, proxy, mut client) = subscriber();
    proxy.drop_messages(Message::Events, |n| n == 2);
    for text in ["one", "two", "three"] {
        publish(&redis, text);
    }
    assert_eq!(client.read_to("three"), [">3", "message", "c", "one", ">3", "message", "c", "three"]);
    assert_eq!(proxy.counts().dropped, 1);
    client.send("ECHO message");
    assert_eq!(client.read_to("message"), ["message"]);
}

#[test]
fn held_message_arrives_late_while_replies_pass() {
    let (redis, proxy, mut client) = subscriber();
    proxy.hold_events();
    publish(&redis, "one");
    client.send("PING again");
    assert_eq!(client.read_to("again"), ["again"]);
    proxy.pass();
    assert_eq!(client.read_to("one"), [">3", "message", "c", "one"], "the message itself arrives");
}

#[test]
fn messages_of_the_older_protocol_are_dropped_until_pass() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    proxy.drop_messages(Message::Events, |_| true);
    let mut client = Client::of(&proxy);
    client.send("PSUBSCRIBE *");
    assert_eq!(client.read_to(":1"), ["*3", "psubscribe", "*", ":1"]);
    publish(&redis, "one");
    client.send("PING there");
    assert_eq!(client.read_to("there"), ["*2", "pong", "there"]);
    proxy.pass();
    publish(&redis, "two");
    assert_eq!(client.read_to("two"), ["*4", "pmessage", "*", "c", "two"]);
}

#[test]
fn swallowed_reply_is_a_value_and_not_a_message() {
    let (redis, proxy, mut client) = subscriber();
    proxy.swallow_reply(2);
    publish(&redis, "one");
    client.send("SET a 1");
    assert_eq!(client.read_to("+OK"), [">3", "message", "c", "one", "+OK"]);
    client.send("SET b 1");
    assert!(client.0.read_line(&mut String::new()).is_err(), "the connection was not reset");
    assert_eq!(redis.keys("*").unwrap(), ["a", "b"], "the request was not executed");
}
