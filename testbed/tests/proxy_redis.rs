//! What the proxy does between a Redis server and its subscribers.
#![cfg(test)]

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

use lockkit_testbed::{Message, Proxy, Redis, Reply};

/// Generous bound against hangs.
const HANG: Duration = Duration::from_secs(20);

/// A client that says lines and hears lines.
struct Client(BufReader<TcpStream>);

impl Client {
    fn of(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.endpoint()).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        Self(BufReader::new(stream))
    }

    fn say(&mut self, line: &str) {
        writeln!(self.0.get_mut(), "{line}\r").unwrap();
    }

    /// Hears up to a line with this end, and gives everything but the lines that tell of lengths.
    fn hear_to(&mut self, end: &str) -> Vec<String> {
        let mut heard: Vec<String> = Vec::new();
        while heard.last().is_none_or(|line| line != end) {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the connection has ended after {heard:?}");
            heard.extend((!line.starts_with('$')).then(|| line.trim_end().to_owned()));
        }
        heard
    }
}

fn publish(redis: &Redis, text: &str) {
    assert_eq!(redis.cli(&["PUBLISH", "c", text]).unwrap(), Reply::Number(1), "nobody listens");
}

/// A server, and a client that listens to it through a proxy.
fn subscriber() -> (Redis, Proxy, Client) {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let mut client = Client::of(&proxy);
    client.say("HELLO 3");
    client.say("SUBSCRIBE c");
    client.say("PING there");
    client.hear_to("there");
    (redis, proxy, client)
}

#[test]
fn a_published_message_is_dropped_and_replies_arrive() {
    let (redis, proxy, mut client) = subscriber();
    proxy.drop_messages(Message::Events, |n| n == 2);
    for text in ["one", "two", "three"] {
        publish(&redis, text);
    }
    assert_eq!(client.hear_to("three"), [">3", "message", "c", "one", ">3", "message", "c", "three"]);
    assert_eq!(proxy.counts().dropped, 1);
    client.say("ECHO message");
    assert_eq!(client.hear_to("message"), ["message"]);
}

#[test]
fn a_published_message_is_held_while_replies_arrive_and_comes_late() {
    let (redis, proxy, mut client) = subscriber();
    proxy.hold_events();
    publish(&redis, "one");
    client.say("PING again");
    assert_eq!(client.hear_to("again"), ["again"]);
    proxy.pass();
    assert_eq!(client.hear_to("one"), [">3", "message", "c", "one"], "nobody has said anything more");
}

#[test]
fn messages_to_subscribers_of_the_older_protocol_are_dropped_until_all_passes() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    proxy.drop_messages(Message::Events, |_| true);
    let mut client = Client::of(&proxy);
    client.say("PSUBSCRIBE *");
    assert_eq!(client.hear_to(":1"), ["*3", "psubscribe", "*", ":1"]);
    publish(&redis, "one");
    client.say("PING there");
    assert_eq!(client.hear_to("there"), ["*2", "pong", "there"]);
    proxy.pass();
    publish(&redis, "two");
    assert_eq!(client.hear_to("two"), ["*4", "pmessage", "*", "c", "two"]);
}

#[test]
fn the_reply_that_is_swallowed_is_one_value_and_no_message() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let mut client = Client::of(&proxy);
    client.say("HELLO 3");
    client.say("SUBSCRIBE c");
    client.say("PING there");
    client.hear_to("there");
    proxy.swallow_reply(2);
    publish(&redis, "one");
    client.say("SET a 1");
    assert_eq!(client.hear_to("+OK"), [">3", "message", "c", "one", "+OK"]);
    client.say("SET b 1");
    assert!(client.0.read_line(&mut String::new()).is_err(), "the connection is reset");
    assert_eq!(redis.keys("*").unwrap(), ["a", "b"], "the request was carried out");
}
