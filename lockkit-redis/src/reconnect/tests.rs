//! Connections that break, and connections that should be replaced.

mod history;
mod outdated;

use std::{collections::VecDeque, sync::atomic::AtomicUsize, task::Poll};

use lockkit_conformance::direct::{HANG, until};
use lockkit_testbed::Redis;

use super::*;
use crate::{
    server::Server,
    tests::scripted::{FakeCluster, silent_connection},
    topology::{Address, Dialer, Login, Topology},
    wire::{Call, READ_RECORD},
};

/// Receives nothing, on these channels.
impl Listener for Vec<String> {
    fn channels(&self) -> Vec<String> {
        self.clone()
    }

    fn message(&self, _: &str, _: &str) {}

    fn gap(&self) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn many_channels_are_few_requests() {
    let redis = Redis::start().unwrap();
    let channels: Vec<_> =
        (0..=2 * CHANNELS_PER_REQUEST_MAX).map(|number| format!("channel-{number}")).collect();
    let _open = to(&redis, Arc::new(channels.clone())).open().await.unwrap();
    let subscribed = redis.cli(&["PUBSUB", "CHANNELS"]).unwrap().list().len();
    assert_eq!((subscribed, redis.calls("subscribe").unwrap()), (channels.len(), 3));
}

/// Each listing of the channels is the next one of these, and then always the last one.
impl Listener for Mutex<VecDeque<Vec<String>>> {
    fn channels(&self) -> Vec<String> {
        let mut listings = lock(self);
        if listings.len() > 1 { listings.pop_front().unwrap() } else { listings[0].clone() }
    }

    fn message(&self, _: &str, _: &str) {}

    fn gap(&self) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_that_change_before_a_connection_is_announced_are_followed() {
    let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    // The first listing is that of the opening. In the second case, a waiter leaves while the request of its channel is
    // under way; in the third one, a waiter that comes later subscribes by itself.
    let cases = [
        ([own(&["a", "b"]), own(&["b", "c"]), own(&["b", "c"])], own(&["b", "c"]), 1),
        ([own(&["a"]), own(&["a", "b"]), own(&["a"])], own(&["a"]), 1),
        ([own(&["a"]), own(&["a"]), own(&["a", "b"])], own(&["a"]), 0),
    ];
    for (listings, expected, unsubscribed) in cases {
        let redis = Redis::start().unwrap();
        let reconnector = to(&redis, Arc::new(Mutex::new(VecDeque::from(listings))));
        let open = reconnector.open().await.unwrap();
        reconnector.catch_up(&open).await;
        let answer = redis.cli(&["PUBSUB", "CHANNELS"]).unwrap();
        let mut channels: Vec<_> = answer.list().iter().map(|channel| channel.text().to_owned()).collect();
        channels.sort_unstable();
        assert_eq!((channels, redis.calls("unsubscribe").unwrap()), (expected, unsubscribed));
    }
}

/// Who changed them found no connection. A Redlock waiter would rely on its polls for as long as this one lasts.
#[tokio::test(flavor = "multi_thread")]
async fn new_connection_follows_the_channels_that_changed_before_its_announcement() {
    let redis = Redis::start().unwrap();
    let listings = [Vec::new(), vec!["channel".to_owned()]];
    let reconnector = to(&redis, Arc::new(Mutex::new(VecDeque::from(listings))));
    let (state, _states) = watch::channel(ConnectionState::Opening);
    let running = tokio::spawn(reconnector.run(None, state));
    until("it is subscribed", async || redis.cli(&["PUBSUB", "CHANNELS"]).unwrap().list().len() == 1).await;
    running.abort();
}

fn to(redis: &Redis, listener: Arc<dyn Listener>) -> Reconnector {
    let endpoint = redis.endpoint();
    let (host, port) = endpoint.split_once(':').unwrap();
    let connector = Connector {
        topology: Topology::Single(Address::Tcp(host.to_owned(), port.parse().unwrap())),
        dialer: Dialer { login: Login::default(), tls: None, timeout: Duration::from_secs(30) },
        sentinel_login: Login::default(),
        cluster_retries: 0,
    };
    Reconnector { connector, listener }
}

/// Counts what a connection reports.
#[derive(Default)]
struct Counts {
    ended: AtomicUsize,
    gaps: AtomicUsize,
}

impl Listener for Counts {
    fn channels(&self) -> Vec<String> {
        vec!["channel".to_owned()]
    }

    fn message(&self, _: &str, _: &str) {}

    fn ended(&self) {
        self.ended.fetch_add(1, SeqCst);
    }

    fn gap(&self) {
        self.gaps.fetch_add(1, SeqCst);
    }
}

/// So the client crate may lose a subscription.
#[tokio::test(flavor = "multi_thread")]
async fn connection_that_should_be_replaced_serves_until_its_replacement_is_announced() {
    let redis = Redis::start().unwrap();
    let counts = Arc::<Counts>::default();
    let reconnector = to(&redis, Arc::clone(&counts) as _);
    let first = reconnector.open().await.unwrap();
    let (state, mut states) = watch::channel(ConnectionState::Up(first.clone()));
    let running = tokio::spawn(reconnector.run(Some(first.clone()), state));
    first.health.replace_soon.cancel();
    let is_next = |state: &ConnectionState| match state {
        ConnectionState::Up(open) => !Arc::ptr_eq(&open.health, &first.health),
        _ => panic!("the first one serves until then"),
    };
    let next = tokio::time::timeout(HANG, states.wait_for(is_next)).await.unwrap().unwrap().clone();
    let ConnectionState::Up(next) = next else { unreachable!() };
    assert!(!first.health.is_broken() && !next.health.replace_soon.is_cancelled());
    until("waiting claims look again", async || counts.gaps.load(SeqCst) > 0).await;
    assert_eq!(counts.ended.load(SeqCst), 0);
    assert_eq!(redis.calls("subscribe").unwrap(), 2);
    running.abort();
}

/// Also after it was given up: a late reply may come.
#[tokio::test]
async fn reply_is_waited_for_until_the_connection_ends() {
    let redis = Redis::start().unwrap();
    let open = to(&redis, Arc::new(())).open().await.unwrap();
    open.give_up();
    let mut reply = std::pin::pin!(open.reply::<()>(std::future::pending()));
    let early = tokio::time::timeout(Duration::from_millis(20), reply.as_mut()).await;
    assert!(early.is_err(), "{early:?}");
    redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    let fault = tokio::time::timeout(HANG, reply).await.expect("no longer").unwrap_err();
    assert!(fault.may_have_executed(), "{fault:?}");
}

/// The reply comes, and then the end, after the request was looked at and before the end was.
#[tokio::test]
async fn reply_right_before_the_end_counts() {
    let handler = PushHandler::ignore_all();
    let open = silent_connection(handler.clone()).await;
    let mut is_answered = false;
    let request = std::future::poll_fn(|_| {
        handler.ended.cancel();
        if std::mem::replace(&mut is_answered, true) { Poll::Ready(Ok(())) } else { Poll::Pending }
    });
    open.reply(request).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn subscription_fails_at_the_end_of_its_connection() {
    let handler = PushHandler::ignore_all();
    let open = silent_connection(handler.clone()).await;
    let end = async {
        tokio::task::yield_now().await;
        handler.ended.cancel();
    };
    let both = async { tokio::join!(open.subscribe("channel"), open.unsubscribe("channel"), end) };
    let (subscribed, unsubscribed, ()) = tokio::time::timeout(HANG, both).await.expect("no longer");
    assert!(subscribed.unwrap_err().may_have_executed() && unsubscribed.unwrap_err().may_have_executed());
}

/// As with a runtime that ends: the client crate reports nothing then.
#[tokio::test]
async fn reply_is_not_waited_for_once_the_task_of_the_connection_is_gone() {
    let redis = Redis::start().unwrap();
    let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let reconnector = to(&redis, Arc::new(()));
    let open = other.spawn(async move { reconnector.open().await }).await.unwrap().unwrap();
    other.shutdown_background();
    let reply = open.reply::<()>(std::future::pending());
    let fault = tokio::time::timeout(HANG, reply).await.expect("no longer").unwrap_err();
    assert!(fault.may_have_executed(), "{fault:?}");
}

fn to_cluster(cluster: &FakeCluster, timeout: Duration) -> Reconnector {
    let connector = Connector {
        topology: Topology::Cluster(vec![cluster.server.address.clone()]),
        dialer: Dialer { login: Login::default(), tls: None, timeout },
        sentinel_login: Login::default(),
        cluster_retries: 0,
    };
    Reconnector { connector, listener: Arc::new(()) }
}

/// The client crate repairs a connection that somebody has, without pauses.
#[tokio::test(flavor = "multi_thread")]
async fn broken_connection_is_dropped_before_the_next_one_is_open() {
    let cluster = FakeCluster::start().await;
    let reconnector = to_cluster(&cluster, 10 * HANG);
    let open = reconnector.open().await.unwrap();
    let before = cluster.server.ended.load(SeqCst);
    // The next connection stays in the making.
    cluster.is_silent.store(true, SeqCst);
    open.give_up();
    let (state, states) = watch::channel(ConnectionState::Up(open.clone()));
    let running = tokio::spawn(reconnector.run(Some(open), state));
    until("the broken connection has ended", async || cluster.server.ended.load(SeqCst) > before).await;
    assert!(matches!(*states.borrow(), ConnectionState::Opening));
    running.abort();
}

/// A master that hangs does not say that another one has taken its place.
#[tokio::test(flavor = "multi_thread")]
async fn other_masters_replace_a_connection_at_the_first_silence() {
    let cluster = FakeCluster::start().await;
    let reconnector = to_cluster(&cluster, HANG);
    let open = reconnector.open().await.unwrap();
    *lock(&cluster.master) = "b";
    open.health.unanswered.notify_one();
    let checks = tokio::time::timeout(HANG, reconnector.until_outdated(&open)).await;
    assert_eq!(checks.ok(), Some(MASTER_CHECKS), "with more notifications only");
}

/// Else one slow node would make every client connect to all nodes again.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_do_not_name_their_masters_replace_no_connection() {
    let cluster = FakeCluster::start().await;
    let timeout = Duration::from_millis(500);
    let reconnector = to_cluster(&cluster, timeout);
    // On a busy machine, to open it may take longer.
    let opened = async {
        loop {
            match reconnector.open().await {
                Ok(open) => break open,
                Err(fault) => assert!(fault.is_transient(), "{fault:?}"),
            }
        }
    };
    let open = tokio::time::timeout(HANG, opened).await.unwrap();
    cluster.is_silent.store(true, SeqCst);
    open.health.unanswered.notify_one();
    let checks = tokio::time::timeout(3 * timeout, reconnector.until_outdated(&open)).await;
    assert!(checks.is_err(), "{checks:?}");
}

#[test]
fn silent_node_of_a_cluster_leaves_the_connections_to_the_others() {
    for has_many_servers in [false, true] {
        let health = || Health {
            ended: CancellationToken::new(),
            broken: CancellationToken::new(),
            replace_soon: CancellationToken::new(),
            unanswered: Notify::new(),
            has_answered: AtomicBool::default(),
            has_many_servers,
            opened: Instant::now(),
            channels: Mutex::default(),
        };
        let silent = health();
        silent.note_failure(&RequestError::no_reply());
        assert_eq!(silent.is_broken(), !has_many_servers);
        let (refused, no_node) = (health(), health());
        refused.note_failure(&RequestError::unexpected("x"));
        let error = redis::RedisError::from((redis::ErrorKind::ClusterConnectionNotFound, "no node"));
        no_node.note_failure(&error.into());
        assert_eq!((refused.is_broken(), no_node.is_broken()), (false, true));
    }
}

/// Clients of a cluster lose a node at the same moment, and may wait for long until they can connect again.
#[tokio::test]
async fn tries_to_replace_a_connection_have_growing_pauses() {
    let redis = Redis::start().unwrap();
    let open = to(&redis, Arc::new(())).open().await.unwrap();
    // Each connection ends at once.
    let socket = std::env::temp_dir().join(format!("lockkit-{:x}", fastrand::u64(..)));
    let (listener, tries) =
        (std::os::unix::net::UnixListener::bind(&socket).unwrap(), Mutex::new(Vec::new()));
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::UnixListener::from_std(listener).unwrap();
    let mut reconnector = to(&redis, Arc::new(()));
    reconnector.connector.topology = Topology::Single(Address::Unix(socket.clone()));
    open.health.replace_soon.cancel();
    tokio::time::pause();
    let start = Instant::now();
    let cut = async {
        while listener.accept().await.is_ok() {
            lock(&tries).push(start.elapsed());
        }
    };
    tokio::select! {
        _ = reconnector.replacement(&open) => panic!("replaced"),
        () = cut => {}
        () = tokio::time::sleep(Duration::from_secs(60)) => {}
    }
    std::fs::remove_file(socket).unwrap();
    let tries = lock(&tries);
    assert!((10..150).contains(&tries.len()), "{} tries in a minute", tries.len());
    assert!(
        tries[0] >= RETRY_PAUSE_MIN,
        "a connection that was cut at once is replaced after {:?}",
        tries[0]
    );
}

/// An outage may cut many connections before they serve. The one that serves after it is replaced as soon as the first.
#[tokio::test(start_paused = true)]
async fn pauses_of_broken_connections_begin_again_after_one_that_served() {
    let mut pauses = retry_pauses();
    let mut pause_after = async |has_served| {
        let start = Instant::now();
        pause_before_reopening(has_served, &mut pauses).await;
        start.elapsed()
    };
    let (mut first, mut last) = (Duration::ZERO, Duration::ZERO);
    for number in 0..12 {
        last = pause_after(false).await;
        first = if number == 0 { last } else { first };
    }
    // The timer has a resolution of one millisecond.
    let tick = Duration::from_millis(1);
    assert!((RETRY_PAUSE_MIN..=2 * RETRY_PAUSE_MIN + tick).contains(&first), "{first:?}");
    assert!(last >= RETRY_PAUSE_MAX / 2, "{last:?}");
    let served = pause_after(true).await;
    assert!(served <= RETRY_PAUSE_MIN + tick, "{served:?}");
    let next = pause_after(false).await;
    assert!((RETRY_PAUSE_MIN..=2 * RETRY_PAUSE_MIN + tick).contains(&next), "{next:?}");
}

/// Then the next one is opened without a growing pause.
#[tokio::test]
async fn connection_has_served_when_it_has_executed_a_script_in_any_way() {
    let redis = Redis::start().unwrap();
    let call = Call::about(&READ_RECORD, &["x"]);
    for is_pipeline in [false, true] {
        let server = Server::connect(to(&redis, Arc::new(())).connector, Arc::new(())).await.unwrap();
        let health = server.current().unwrap().health;
        server.check_serves(HANG).await.unwrap();
        assert!(!health.has_answered.load(SeqCst));
        match is_pipeline {
            false => drop(server.run(&call).await.unwrap()),
            true => drop(server.run_with(HANG, &call, None, false).await.unwrap()),
        }
        assert!(health.has_answered.load(SeqCst), "{is_pipeline}");
    }
}

/// When a network fails, all clients lose all servers at the same moment.
#[test]
fn reconnect_pauses_differ() {
    let (one, other) = (reconnect_pause(), reconnect_pause());
    assert!(one != other && one.max(other) <= RETRY_PAUSE_MIN, "{one:?} and {other:?}");
}

/// The next one subscribes to all of them.
#[tokio::test(start_paused = true)]
async fn connection_that_cannot_follow_the_changes_of_channels_is_given_up() {
    let (redis, open) = (Redis::start().unwrap(), silent_connection(PushHandler::ignore_all()).await);
    to(&redis, Arc::new(vec!["channel".to_owned()])).catch_up(&open).await;
    assert!(open.health.is_broken());
}
