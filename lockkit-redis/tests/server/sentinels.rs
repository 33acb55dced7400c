//! Sentinels: they name the master, and report failovers.

use lockkit_core::{
    Clock, ErrorKind,
    backend::{Backend, Renewal},
};
use lockkit_testbed::{Message, Proxy, RedisSentinels};

use crate::{
    common::{
        LONG, acquire, assert_error, assert_rising, backend, bounded, enqueued, fresh_name, quick_session,
        refusal_of, release, session_at, until,
    },
    topologies::{PATIENT, QUICK, is_renewed},
};

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_name_the_master_and_the_next_one() {
    let sentinels = RedisSentinels::start().unwrap();
    let url = format!("{}{QUICK}", sentinels.url());
    let (one, other) = (quick_session(&url, LONG).await, quick_session(&url, LONG).await);
    let name = fresh_name();
    let mut holder = (one.clone(), acquire(&one, &name).await);
    let mut tokens = vec![holder.1.token()];
    for session in [&other, &one] {
        let waiter = enqueued(session, &name).await;
        let former = sentinels.master().unwrap();
        sentinels.replicas().wait_until_in_sync(former).unwrap();
        // The old master still accepts writes for some 10 s; clients must leave it.
        let master = sentinels.failover().unwrap();
        assert_ne!(master, former);
        let at_master = |command: &[&str]| sentinels.node(master).cli(command).unwrap().number().unwrap();
        at_master(&["PEXPIRE", name.as_str(), "30000"]);
        let is_at_new_master =
            async || is_renewed(&holder.0, &holder.1).await && at_master(&["PTTL", name.as_str()]) > 30_000;
        until("the holder is at the new master", is_at_new_master).await;
        release(&holder.0, &holder.1).await;
        holder = ((*session).clone(), waiter.granted().await);
        tokens.push(holder.1.token());
        let value = sentinels.node(master).cli(&["GET", name.as_str()]).unwrap();
        assert!(value.text().starts_with(&holder.1.claim().to_string()));
    }
    assert_rising(&tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_master_is_replaced_although_sentinels_are_dead() {
    let mut sentinels = RedisSentinels::start().unwrap();
    // Dead servers refuse connections at once, so no time limit ends a request here.
    let (session, name) = (session_at(&format!("{}{PATIENT}", sentinels.url()), LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let former = sentinels.master().unwrap();
    sentinels.replicas().wait_until_in_sync(former).unwrap();
    sentinels.sentinel_mut(0).kill().unwrap();
    assert!(is_renewed(&session, &held).await);
    sentinels.node_mut(former).kill().unwrap();
    sentinels.wait_for_master_after(former).unwrap();
    until("the hold is renewed at the new master", async || is_renewed(&session, &held).await).await;
    release(&session, &held).await;
    let next = acquire(&session, &name).await;
    assert!(next.token() > held.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn new_master_is_found_without_messages_of_sentinels() {
    let sentinels = RedisSentinels::start().unwrap();
    let proxy = Proxy::start_redis(sentinels.sentinel(0).endpoint()).unwrap();
    proxy.drop_messages(Message::Events, |_| true);
    let url = format!("redis+sentinel://{}/{}{QUICK}", proxy.endpoint(), RedisSentinels::NAME);
    // It sends no requests, so only its Sentinel can report the new master.
    let _idle = quick_session(&url, LONG).await;
    let has_subscriber = |number: usize| {
        let channels = sentinels.node(number).cli(&["PUBSUB", "CHANNELS", "lockkit:client:*"]).unwrap();
        !channels.list().is_empty()
    };
    let former = sentinels.master().unwrap();
    assert!(has_subscriber(former));
    // A frozen server breaks no connection.
    sentinels.node(former).pause().unwrap();
    let master = sentinels.wait_for_master_after(former).unwrap();
    until("the client is at the new master", async || has_subscriber(master)).await;
    sentinels.node(former).resume().unwrap();
}

/// Only the master's answers say so.
#[tokio::test(flavor = "multi_thread")]
async fn idle_client_leaves_a_demoted_master_although_its_sentinels_are_dead() {
    let mut sentinels = RedisSentinels::start().unwrap();
    let session = session_at(&format!("{}{PATIENT}", sentinels.url()), LONG).await;
    let master = sentinels.master().unwrap();
    for number in 0..sentinels.sentinels().len() {
        sentinels.sentinel_mut(number).kill().unwrap();
    }
    sentinels.node(master).cli(&["REPLICAOF", "127.255.255.254", "1"]).unwrap();
    until("it is found", async || matches!(bounded(session.renew(&[])).await.session, Renewal::Unknown(_)))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_master_is_an_error() {
    let sentinels = RedisSentinels::start().unwrap();
    let (servers, _) = sentinels
        .url()
        .rsplit_once('/')
        .map(|(servers, name)| (servers.to_owned(), name.to_owned()))
        .unwrap();
    let unknown = backend(&format!("{servers}/nobody"));
    let error = bounded(unknown.open_session(LONG, Clock::boot())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("nobody"), "{error}");
}

/// Starts a failover that has promoted a replica but does not end, because the other one cannot follow the new master.
/// The Sentinel with number 0 leads it. Returns the numbers of the former and the new master.
async fn unfinished_failover(sentinels: &RedisSentinels) -> (usize, usize) {
    let former = sentinels.wait_until_in_sync().unwrap();
    for sentinel in sentinels.sentinels() {
        let set_timeout = ["SENTINEL", "SET", RedisSentinels::NAME, "failover-timeout", "600000"];
        sentinel.cli(&set_timeout).unwrap();
    }
    let others = || (0..sentinels.replicas().len()).filter(|&number| number != former);
    for number in others() {
        sentinels.node(number).stop_replicating().unwrap();
    }
    let leader = sentinels.sentinel(0);
    leader.cli(&["SENTINEL", "FAILOVER", RedisSentinels::NAME]).unwrap();
    let promoted = || {
        let address = leader.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", RedisSentinels::NAME]).unwrap();
        let address = [0, 1].map(|part: usize| address.list()[part].text().to_owned()).join(":");
        others().find(|&number| sentinels.node(number).endpoint() == address)
    };
    until("a replica is promoted", async || promoted().is_some()).await;
    (former, promoted().unwrap())
}

/// Returns whether the failover that Sentinel 0 leads is still running.
fn is_unfinished(sentinels: &RedisSentinels, former: usize) -> bool {
    let state = sentinels.sentinel(0).cli(&["SENTINEL", "MASTER", RedisSentinels::NAME]).unwrap();
    let fields: Vec<&str> = state.list().iter().map(lockkit_testbed::Reply::text).collect();
    let field = |name: &str| fields[fields.iter().position(|field| *field == name).unwrap() + 1];
    format!("{}:{}", field("ip"), field("port")) == sentinels.node(former).endpoint()
}

/// Returns a URL with only the Sentinel that leads failovers; the others learn of them up to two seconds later.
fn url_by_leader(sentinels: &RedisSentinels) -> String {
    format!("redis+sentinel://{}/{}{PATIENT}", sentinels.sentinel(0).endpoint(), RedisSentinels::NAME)
}

/// Between `+promoted-slave` and `+switch-master` the leading Sentinel answers SENTINEL MASTER with the former master's
/// address, and already with the new epoch.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_connects_during_a_failover_uses_the_promoted_server() {
    let sentinels = RedisSentinels::start().unwrap();
    let (former, promoted) = unfinished_failover(&sentinels).await;
    for url in [url_by_leader(&sentinels), format!("{}{PATIENT}", sentinels.url())] {
        let (session, name) = (session_at(&url, LONG).await, fresh_name());
        let held = acquire(&session, &name).await;
        let value = sentinels.node(promoted).cli(&["GET", name.as_str()]).unwrap();
        assert!(value.text().starts_with(&held.claim().to_string()), "granted at the demoted master");
    }
    assert!(is_unfinished(&sentinels, former), "the failover ended before the client connected");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_leaves_the_demoted_master_before_the_failover_is_over() {
    let sentinels = RedisSentinels::start().unwrap();
    let (session, name) = (session_at(&url_by_leader(&sentinels), LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let (former, promoted) = unfinished_failover(&sentinels).await;
    let at_promoted = |command: &[&str]| sentinels.node(promoted).cli(command).unwrap().number().unwrap();
    at_promoted(&["PEXPIRE", name.as_str(), "30000"]);
    until("the hold is renewed at the promoted server", async || {
        is_renewed(&session, &held).await && at_promoted(&["PTTL", name.as_str()]) > 30_000
    })
    .await;
    assert!(is_unfinished(&sentinels, former), "the failover ended before the client moved");
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_may_require_a_login() {
    let sentinels = RedisSentinels::start().unwrap();
    let url = format!("{}{PATIENT}", sentinels.url());
    let with = |login: &str| format!("{url}&{login}");
    let rights = "resetchannels &+promoted-slave &+switch-master +hello +subscribe +sentinel|master \
                  +sentinel|get-master-addr-by-name";
    for sentinel in sentinels.sentinels() {
        let mut command = vec!["ACL", "SETUSER", "watcher", "on", ">hunter2"];
        command.extend(rights.split_whitespace());
        sentinel.cli(&command).unwrap();
    }
    let session = session_at(&with("sentinel_user=watcher&sentinel_password=hunter2"), LONG).await;
    acquire(&session, &fresh_name()).await;
    until("the client has subscribed to all Sentinels", async || {
        sentinels.sentinels().iter().all(|sentinel| {
            let clients = sentinel.cli(&["CLIENT", "LIST"]).unwrap();
            clients.text().lines().any(|line| line.contains(" sub=2 ") && line.contains(" user=watcher "))
        })
    })
    .await;
    for sentinel in sentinels.sentinels() {
        assert_eq!(sentinel.cli(&["ACL", "LOG"]).unwrap().list(), []);
        // The last command without a login; open connections stay.
        sentinel.cli(&["ACL", "SETUSER", "default", "resetpass", ">s3cret"]).unwrap();
    }
    acquire(&session_at(&with("sentinel_password=s3cret"), LONG).await, &fresh_name()).await;
    // Not in the URL, which a program may have in its arguments.
    let file = sentinels.sentinel(0).folder().join("password");
    let by_file = |login: &str| with(&format!("{login}sentinel_password_file={}", file.display()));
    assert_error(&refusal_of(backend(&by_file(""))).await, ErrorKind::InvalidConfig, "password file");
    for (login, password) in [("", "s3cret\n"), ("sentinel_user=watcher&", "hunter2")] {
        std::fs::write(&file, password).unwrap();
        acquire(&session_at(&by_file(login), LONG).await, &fresh_name()).await;
    }
    std::fs::write(&file, "\n").unwrap();
    assert_error(&refusal_of(backend(&by_file(""))).await, ErrorKind::InvalidConfig, "empty");
    assert_error(&refusal_of(backend(&url)).await, ErrorKind::Denied, "sentinel_password");
    let error = refusal_of(backend(&with("sentinel_user=watcher&sentinel_password=wr0ng"))).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!format!("{error} {error:?}").contains("wr0ng"), "{error:?}");
}
