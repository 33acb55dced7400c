//! Tests of what Sentinels show, and when.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use futures_util::future::join_all;
use lockkit_conformance::direct::{HANG, until};
use lockkit_core::limits::{RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};
use lockkit_testbed::{Redis, RedisSentinels};
use tokio::time::Instant;

use super::*;
use crate::{
    tests::scripted::{Answer, ScriptedServer, greeting, scripted_sentinel},
    topology::{Connector, Login, Password, PushHandler, Topology},
};

/// Longer than the test: no Sentinel is asked at intervals.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);

fn address_of(server: &Redis) -> Address {
    let endpoint = server.endpoint();
    let (host, port) = endpoint.split_once(':').unwrap();
    Address::Tcp(host.to_owned(), port.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_is_noticed_by_its_message_alone() {
    let servers = RedisSentinels::start().unwrap();
    let addresses = servers.sentinels().iter().map(address_of).collect();
    let sentinels = Sentinels { addresses, master: RedisSentinels::NAME.to_owned() };
    let dialer = Dialer { login: Login::default(), tls: None, timeout: NEVER };
    let master = sentinels.find(&dialer).await.unwrap();
    let broken = CancellationToken::new();
    let _watch = sentinels.watch(&dialer, &dialer, &master, &broken);
    // The client subscribes, and asks once.
    let has_asked = |sentinel: &Redis| {
        let clients = sentinel.cli(&["CLIENT", "LIST"]).unwrap();
        clients.text().lines().any(|line| line.contains(" sub=2 ") && line.contains(" cmd=sentinel"))
    };
    // Each ends the first subscription, as its restart would.
    for ends in [true, false] {
        let is_subscribed = async || servers.sentinels().iter().all(has_asked);
        until("the client has subscribed to all Sentinels", is_subscribed).await;
        for sentinel in servers.sentinels().iter().filter(|_| ends) {
            sentinel.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        }
    }
    servers.failover().unwrap();
    let noticed = tokio::time::timeout(HANG, broken.cancelled()).await;
    noticed.expect("the Sentinels report the new master");
}

/// With the epoch of the new master and the address of the former one, no later answer would be newer.
#[tokio::test]
async fn failover_between_the_two_questions_to_a_sentinel_shows_the_new_master() {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let server = ScriptedServer::start(|_| {
        let is_over = AtomicBool::default();
        move |_, words: &[String]| {
            if words[0] != "SENTINEL" {
                return greeting(words);
            }
            let number = if is_over.swap(true, SeqCst) { 6 } else { 5 };
            Answer::Text(match &*words[1] {
                "MASTER" => format!("%1\r\n{}{}", bulk("config-epoch"), bulk(&number.to_string())),
                _ => format!("*2\r\n{}{}", bulk(HOST), bulk(&number.to_string())),
            })
        }
    });
    let sentinels = Sentinels { addresses: vec![server.await.address], master: "main".to_owned() };
    let dialer = Dialer { login: Login::default(), tls: None, timeout: 2 * HANG };
    assert_eq!(sentinels.find(&dialer).await.unwrap(), master(5, 6));
}

/// Else nothing of the time limit for connecting would be left for the master that the others name.
#[tokio::test(start_paused = true)]
async fn hanging_sentinel_takes_half_of_the_time() {
    // The kernel accepts, and nobody answers.
    let hanging = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp("127.0.0.1".to_owned(), hanging.local_addr().unwrap().port());
    // Two of them take no more than one.
    let sentinels = Sentinels { addresses: vec![address.clone(); 2], master: "main".to_owned() };
    let dialer = Dialer { login: Login::default(), tls: None, timeout: NEVER };
    let start = Instant::now();
    let fault = sentinels.find(&dialer).await.unwrap_err();
    assert!(fault.is_transient() && fault.message().contains(&address.to_string()), "{fault:?}");
    assert!(start.elapsed() < NEVER * 3 / 4, "{:?}", start.elapsed());
}

/// A Sentinel was away for long, serves, and is restarted.
#[tokio::test(start_paused = true)]
async fn pauses_of_a_subscription_begin_again_after_one_that_served() {
    let (start, mut tries) = (Instant::now(), Vec::new());
    until_replaced(|| {
        tries.push(start.elapsed());
        std::future::ready(match tries.len() {
            13 => Ok(false),
            14 => Ok(true),
            _ => Err(RequestError::no_reply()),
        })
    })
    .await;
    let pauses: Vec<Duration> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The timer has a resolution of one millisecond.
    let shortest = RETRY_PAUSE_MIN..=2 * RETRY_PAUSE_MIN + Duration::from_millis(1);
    assert!(shortest.contains(&pauses[0]) && pauses[11] >= RETRY_PAUSE_MAX / 2, "{pauses:?}");
    assert!(shortest.contains(&pauses[12]), "{pauses:?}");
}

/// Else all clients of a server would ask at the same moment, again and again.
#[test]
fn clients_do_not_ask_a_sentinel_in_step() {
    const TIMEOUT: Duration = Duration::from_secs(4);
    let pauses: Vec<_> = (0..1_000).map(|_| recheck_pause(TIMEOUT)).collect();
    let bounds = TIMEOUT * 3 / 4..=TIMEOUT * 5 / 4;
    assert!(pauses.iter().all(|pause| bounds.contains(pause)), "{pauses:?}");
    let spread = pauses.iter().max().unwrap().abs_diff(*pauses.iter().min().unwrap());
    assert!(spread > TIMEOUT / 3, "{spread:?}");
}

/// Of all servers that Sentinels name.
const HOST: &str = "127.0.0.1";

fn master(epoch: u64, port: u16) -> Master {
    Master { epoch, address: Address::Tcp(HOST.to_owned(), port) }
}

/// A user that only Sentinels know.
const WATCHER: &str = "watcher";

/// Starts a server with this role; returns its port.
async fn server_with_role(role: &'static str) -> u16 {
    let server = ScriptedServer::start(|_| {
        move |_, words: &[String]| match &*words[0] {
            "HELLO" if words.iter().any(|word| word == WATCHER) => {
                Answer::Text("-WRONGPASS invalid username-password pair\r\n".to_owned())
            }
            "ROLE" => Answer::Text(format!("*1\r\n${}\r\n{role}\r\n", role.len())),
            _ => greeting(words),
        }
    });
    let Address::Tcp(_, port) = server.await.address else { unreachable!() };
    port
}

fn listener(addresses: Vec<Address>) -> SentinelListener {
    let dialer = Dialer { login: Login::default(), tls: None, timeout: 2 * HANG };
    SentinelListener {
        sentinels: Sentinels { addresses, master: String::new() },
        dialer: dialer.clone(),
        servers: dialer,
        address: master(0, 9).address,
        current: master(5, 1),
    }
}

#[tokio::test]
async fn master_of_the_same_epoch_replaces_another_if_most_sentinels_name_it() {
    for (ports, is_replaced) in [([1, 2, 2], true), ([1, 1, 2], false)] {
        let sentinels = ports.map(|port| scripted_sentinel(5, HOST, port));
        let listener = listener(join_all(sentinels).await);
        assert_eq!(listener.is_replaced_by(&master(5, 2), None).await, is_replaced, "{ports:?}");
    }
}

#[tokio::test]
async fn failover_after_all_sentinels_lost_their_state_replaces_the_master() {
    let [next, other, replica] = ["master", "master", "slave"].map(server_with_role);
    let (next, other, replica) = tokio::join!(next, other, replica);
    for (named, is_replaced) in [
        (vec![(1, next), (1, next), (1, next)], true),
        (vec![(1, next), (1, next), (5, 1)], false),
        (vec![(1, next), (0, 1), (0, 1)], false),
        // Few Sentinels name the server with the highest epoch.
        (vec![(1, next), (1, next), (3, other)], false),
        // The address may be that of several Sentinels.
        (vec![(1, next)], false),
        // They started from the configuration of before a failover, and nothing could be opened there.
        (vec![(1, replica), (1, replica), (1, replica)], false),
    ] {
        let sentinels = named.iter().map(|&(epoch, port)| scripted_sentinel(epoch, HOST, port));
        let listener = listener(join_all(sentinels).await);
        let first = master(1, named[0].1);
        assert_eq!(listener.is_replaced_by(&first, Some(&first)).await, is_replaced, "{named:?}");
        assert!(!listener.is_replaced_by(&first, None).await, "it may lag behind a failover: {named:?}");
    }
}

/// The silent ones may have a later epoch.
#[tokio::test]
async fn half_of_the_sentinels_do_not_replace_the_master() {
    let next = server_with_role("master").await;
    let mut addresses = join_all([(); 2].map(|()| scripted_sentinel(1, HOST, next))).await;
    for is_replaced in [true, false] {
        addresses.push(Address::Unix("/nonexistent".into()));
        let (listener, first) = (listener(addresses.clone()), master(1, next));
        assert_eq!(listener.is_replaced_by(&first, Some(&first)).await, is_replaced, "{addresses:?}");
    }
}

#[tokio::test]
async fn another_server_with_a_later_epoch_replaces_a_master_without_a_question() {
    let listener = listener(Vec::new());
    for (epoch, port, is_replaced) in [(5, 1, false), (6, 1, false), (6, 2, true)] {
        assert_eq!(listener.is_replaced_by(&master(epoch, port), None).await, is_replaced, "{epoch} {port}");
    }
}

#[test]
fn answer_with_the_highest_epoch_counts() {
    let newest = |named: &[(u64, u16)]| {
        newest(named.iter().map(|&(epoch, port)| master(epoch, port)).collect()).map(|master| master.address)
    };
    let at = |port| Address::Tcp(HOST.to_owned(), port);
    assert_eq!(newest(&[(1, 1), (1, 1), (2, 2)]).unwrap(), at(2));
    assert_eq!(newest(&[(2, 1), (2, 2), (2, 2)]).unwrap(), at(2));
    assert_eq!(newest(&[(2, 2), (2, 1), (2, 2), (3, 3)]).unwrap(), at(3));
    for disagreement in [&[(2, 1), (2, 2)][..], &[(2, 2), (2, 1), (1, 1)]] {
        let fault = newest(disagreement).unwrap_err();
        assert!(fault.is_transient() && fault.message().contains("127.0.0.1:1"), "{fault:?}");
    }
}

/// Starts a Sentinel that names the first of these ports. A subscription makes all Sentinels with this flag lose their
/// state: from then on they name the other port with an earlier epoch, and the subscriber is notified of something.
async fn forgetful_sentinel(is_lost: Arc<AtomicBool>, ports: [u16; 2]) -> Address {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let push = move |kind: &str, number: usize, rest: &str| {
        format!(">3\r\n{}{}{rest}", bulk(kind), bulk(FAILOVER_CHANNELS[number]))
    };
    let server = ScriptedServer::start(|_| {
        move |_, words: &[String]| {
            let (epoch, port) = if is_lost.load(SeqCst) { (1_u64, ports[1]) } else { (5, ports[0]) };
            Answer::Text(match (&*words[0], words.get(1).map(String::as_str)) {
                ("SUBSCRIBE", _) => {
                    is_lost.store(true, SeqCst);
                    let subscribed = push("subscribe", 0, ":1\r\n") + &push("subscribe", 1, ":2\r\n");
                    subscribed + &push("message", 1, &bulk("x"))
                }
                ("SENTINEL", Some("MASTER")) => {
                    format!("%1\r\n{}{}", bulk("config-epoch"), bulk(&epoch.to_string()))
                }
                ("SENTINEL", _) => format!("*2\r\n{}{}", bulk(HOST), bulk(&port.to_string())),
                _ => return greeting(words),
            })
        }
    });
    server.await.address
}

/// With the user of Sentinels, no server would show its role, and the client would stay at a former master.
#[tokio::test]
async fn connection_is_replaced_after_two_answers_and_a_login_to_the_server_that_they_name() {
    let (first, next) = tokio::join!(server_with_role("master"), server_with_role("master"));
    let is_lost = Arc::<AtomicBool>::default();
    let sentinels = [(); 2].map(|()| forgetful_sentinel(Arc::clone(&is_lost), [first, next]));
    let sentinels = Sentinels { addresses: join_all(sentinels).await, master: "main".to_owned() };
    let password = Some(Password::Text("hunter2".to_owned()));
    let connector = Connector {
        topology: Topology::Sentinel(sentinels),
        dialer: Dialer { login: Login::default(), tls: None, timeout: 2 * HANG },
        sentinel_login: Login { user: Some(WATCHER.to_owned()), password, database: 0 },
        cluster_retries: 0,
    };
    let handler = PushHandler::ignore_all();
    let _connection = connector.connect(handler.clone()).await.unwrap();
    tokio::time::timeout(HANG, handler.broken.cancelled()).await.expect("the Sentinels name another master");
    assert!(!handler.ended.is_cancelled());
}
