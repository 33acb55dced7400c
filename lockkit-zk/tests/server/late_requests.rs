//! Requests of an old connection that the server executes after the session has moved to another server, and returned.
//!
//! A server checks which connection belongs to a session when it executes a request, not when it reads it. So the next
//! connection to the same server admits requests of an earlier one, although the session was at another server meanwhile.

use std::sync::Arc;

use lockkit_core::{LockName, backend::Session};
use lockkit_testbed::{Direction, Flow, Proxy, Taken, ZooKeeper, ZooKeeperEnsemble};
use zookeeper_client::Client;

use crate::common::{
    LONG, acquire, acquire_as_keeper, bounded, fresh_name, heartbeat, held_create, is_entry_gone, is_renewed,
    mark, node, own_ensemble, own_server, queue, release, session_at, start, start_claim, through_proxy,
    until,
};

/// An ensemble with a client that has two of its servers, and is at the leader.
struct MovingClient {
    ensemble: Arc<Taken<ZooKeeperEnsemble>>,
    leader: usize,
    to_leader: Proxy,
    to_follower: Proxy,
    session: Arc<dyn Session>,
    other_client: Client,
}

impl MovingClient {
    async fn new(form: &str) -> Self {
        let ensemble = own_ensemble();
        let (leader, follower) = (ensemble.leader().unwrap(), ensemble.follower().unwrap());
        let [to_leader, to_follower] = [leader, follower]
            .map(|number| Proxy::start_zookeeper(ensemble.member(number).endpoint()).unwrap());
        to_follower.refuse();
        let url = format!("zk://{},{}/?form={form}", to_leader.endpoint(), to_follower.endpoint());
        let session = session_at(&url, LONG).await;
        let other_client = Client::connector().with_session_timeout(LONG);
        let other_client = other_client.connect(&ensemble.member(leader).endpoint()).await.unwrap();
        Self { ensemble, leader, to_leader, to_follower, session, other_client }
    }

    fn at_leader(&self) -> &ZooKeeper {
        self.ensemble.member(self.leader)
    }

    /// Moves the session to the follower, while the proxy keeps what it holds of the leader's requests.
    fn move_away(&self) {
        self.to_follower.pass();
        self.to_leader.refuse_new();
        self.to_leader.reset_clients();
    }

    /// Delivers the held requests to the leader while it is busy, and moves the session back.
    async fn return_late(&self) {
        let work = long_work(&self.other_client);
        self.to_leader.pass();
        self.to_leader.deliver_late();
        self.to_follower.refuse();
        work.await;
        until("it is back", async || is_renewed(&heartbeat(&self.session, &[]).await.session)).await;
    }

    /// Returns how many nodes were created in these directories.
    async fn created(&self, directories: &[String]) -> i64 {
        let mut created = 0;
        for directory in directories {
            // The server removes a directory that is empty when it looks, once a minute.
            let Some(stat) = self.other_client.check_stat(directory).await.unwrap() else { continue };
            // The server counts creates and deletions together.
            created += i64::from(stat.cversion + stat.num_children) / 2;
        }
        created
    }

    /// Returns the nodes of claims.
    fn contenders(&self) -> usize {
        let nodes = self.at_leader().ephemerals().unwrap();
        nodes.into_values().flatten().filter(|path| !path.contains(":clients")).count()
    }
}

/// Sends the leader requests that it takes a while to prepare, one after the other; what it reads meanwhile waits.
fn long_work(client: &Client) -> impl Future<Output = ()> {
    const REQUESTS: usize = 40;
    const CHECKS: usize = 2_000;
    let requests = [(); REQUESTS].map(|()| {
        let mut checks = client.new_multi_writer();
        for _ in 0..CHECKS {
            checks.add_check_version("/lockkit", -1).unwrap();
        }
        checks.commit()
    });
    async {
        for request in requests {
            request.await.unwrap();
        }
    }
}

/// In the form with one node, only one claim of a lock creates one.
#[tokio::test(flavor = "multi_thread")]
async fn late_creates_just_before_the_session_returns_to_their_server_leave_no_nodes() {
    const LOCKS: usize = 10;
    const ROUNDS_MAX: usize = 20;
    for (form, claims_per_lock) in [("curator", 2), ("bare", 2), ("single", 1)] {
        let client = MovingClient::new(form).await;
        let session = &client.session;
        let (names, held) = ([(); LOCKS].map(|()| fresh_name()), acquire(session, &fresh_name()).await);
        for name in &names {
            release(session, &acquire(session, name).await).await;
        }
        let directories = match form {
            "single" => vec!["/lockkit".to_owned()],
            _ => names.iter().map(node).collect(),
        };
        let mut rounds = 0..ROUNDS_MAX;
        loop {
            rounds.next().expect("no create was executed late");
            let before = client.created(&directories).await;
            lose_creates(&client, &names, claims_per_lock).await;
            client.return_late().await;
            until("the late nodes are gone", async || client.contenders() == 1).await;
            let is_late = client.created(&directories).await > before;
            assert!(is_renewed(&heartbeat(session, &[&held]).await.holds[0].1), "{form}: not a late node");
            for name in &names {
                release(session, &acquire_as_keeper(session, name).await).await;
            }
            if is_late {
                break;
            }
        }
        release(session, &held).await;
        assert_eq!(client.contenders(), 0, "{form}");
    }
}

/// Sends creates to the leader that do not arrive, and looks their nodes up at the follower.
async fn lose_creates(client: &MovingClient, names: &[LockName], claims_per_lock: usize) {
    client.to_leader.set(Direction::Requests, Flow::Hold);
    let both = |name| std::iter::repeat_n(name, claims_per_lock);
    let claims: Vec<_> = names.iter().flat_map(both).map(|name| start(&client.session, name)).collect();
    for claim in &claims {
        let (in_name, in_data) = (mark(&claim.claim), claim.claim.id().to_string());
        let is_sent = || client.to_leader.holds(&in_name) || client.to_leader.holds(&in_data);
        until("the create is under way", async || is_sent()).await;
    }
    client.move_away();
    for claim in claims {
        assert!(is_entry_gone(&claim.ends().await), "its node may still be created");
    }
}

/// To the look-up, a node that it may not read does not exist, like one that the server creates later.
#[tokio::test(flavor = "multi_thread")]
async fn late_node_is_deleted_although_its_first_deletion_is_lost() {
    /// `ZooDefs.OpCode.getData`, and `KeeperException.Code.NOAUTH`.
    const GET_DATA: i32 = 4;
    const NO_AUTH: i32 = -102;
    let server = own_server();
    let (proxy, session) = through_proxy(&server).await;
    for wait in [true, false] {
        let name = fresh_name();
        release(&session, &acquire(&session, &name).await).await;
        // The second node of the directory, and "any version".
        let deletion = [&b"-lock-0000000001"[..], &(-1_i32).to_be_bytes()].concat();
        proxy.hold_requests_from(&deletion);
        proxy.refuse_requests(GET_DATA, NO_AUTH, 1);
        proxy.swallow_reply(1);
        let end = start_claim(&session, &name, wait).ends().await;
        assert!(if wait { is_entry_gone(&end) } else { end.is_err() }, "{end:?}");
        until("its deletion is under way", async || proxy.holds_bytes(&deletion)).await;
        // What is held is lost with its connection.
        proxy.reset();
        proxy.pass();
        until("the late node is gone", async || queue(&server, &name).is_empty()).await;
    }
}

/// A deletion by name would hit the next holder's node.
#[tokio::test(flavor = "multi_thread")]
async fn late_deletion_just_before_the_session_returns_to_its_server_spares_the_next_holder() {
    // In some of them, the deletion may come too late to be executed.
    const ROUNDS: usize = 3;
    let client = MovingClient::new("single").await;
    let (session, name) = (&client.session, fresh_name());
    let other = session_at(&format!("{}/?form=single", client.at_leader().url()), LONG).await;
    // A path, and "any version"; a read of that path ends otherwise.
    let deletion = [node(&name).as_bytes(), &(-1_i32).to_be_bytes()].concat();
    for _ in 0..ROUNDS {
        let held = acquire_as_keeper(session, &name).await;
        client.to_leader.hold_requests_from(&deletion);
        let releasing = {
            let (session, held) = (Arc::clone(session), held.clone());
            tokio::spawn(async move { release(&session, &held).await })
        };
        until("the deletion is under way", async || client.to_leader.holds_bytes(&deletion)).await;
        client.move_away();
        bounded(releasing).await.unwrap();
        let next = acquire(&other, &name).await;
        client.return_late().await;
        assert!(is_renewed(&heartbeat(&other, &[&next]).await.holds[0].1), "the next holder's node is gone");
        release(&other, &next).await;
    }
}

/// ZooKeeper can list them since version 3.6. The proxy refuses that for a server that cannot.
#[tokio::test(flavor = "multi_thread")]
async fn server_that_cannot_list_a_sessions_nodes_keeps_the_session() {
    /// `ZooDefs.OpCode.getEphemerals`, and `KeeperException.Code.UNIMPLEMENTED`.
    const LIST_OWN: i32 = 103;
    const UNIMPLEMENTED: i32 = -6;
    let (server, name) = (own_server(), fresh_name());
    let (proxy, session) = through_proxy(&server).await;
    let held = acquire(&session, &fresh_name()).await;
    let claim = held_create(&proxy, &session, &name).await;
    proxy.reset_clients();
    proxy.pass();
    proxy.refuse_requests(LIST_OWN, UNIMPLEMENTED, u64::MAX);
    assert!(is_entry_gone(&claim.ends().await));
    until("it was refused", async || proxy.counts().dropped > 0).await;
    // What follows from the refusal would be done by then.
    release(&session, &acquire(&session, &name).await).await;
    let renewals = heartbeat(&session, &[&held]).await;
    assert!(is_renewed(&renewals.session) && is_renewed(&renewals.holds[0].1), "{renewals:?}");
    release(&session, &held).await;
}
