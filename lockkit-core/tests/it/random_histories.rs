//! Random histories of several clients and a faulty server, with checks after every step.
use std::{collections::HashMap, time::Duration};

use crate::checked::on_paused_clock;
use crate::common::{TTL, eventually, settle};
use lockkit_core::{Clock, FencingToken, LockClient, LockGuard, LockName, Owner, memory::MemoryServer};
use proptest::{prelude::*, test_runner::FileFailurePersistence};

const NAMES: [&str; 2] = ["a", "b"];
const CLIENTS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Try { client: usize, name: usize },
    Wait { client: usize, name: usize, ms: u64 },
    WaitAndDrop { client: usize, name: usize },
    Reenter { client: usize, name: usize },
    Release { guard: usize },
    Drop { guard: usize },
    Expire { name: usize },
    Delete { name: usize },
    LoseReplies { count: usize },
    Mute(bool),
    Freeze { ms: u64 },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let (client, name) = (0..CLIENTS, 0..NAMES.len());
    let place = (client, name.clone());
    prop_oneof![
        4 => place.clone().prop_map(|(client, name)| Step::Try { client, name }),
        3 => (place.clone(), 1_u64..9_000).prop_map(|((client, name), ms)| Step::Wait { client, name, ms }),
        2 => place.clone().prop_map(|(client, name)| Step::WaitAndDrop { client, name }),
        3 => place.prop_map(|(client, name)| Step::Reenter { client, name }),
        4 => (0_usize..8).prop_map(|guard| Step::Release { guard }),
        3 => (0_usize..8).prop_map(|guard| Step::Drop { guard }),
        1 => name.clone().prop_map(|name| Step::Expire { name }),
        1 => name.prop_map(|name| Step::Delete { name }),
        1 => (0_usize..4).prop_map(|count| Step::LoseReplies { count }),
        1 => any::<bool>().prop_map(Step::Mute),
        1 => (1_u64..9_000).prop_map(|ms| Step::Freeze { ms }),
        2 => (1_u64..9_000).prop_map(|ms| Step::Pass { ms }),
    ]
}

struct World {
    server: MemoryServer,
    clients: Vec<(LockClient, Owner)>,
    guards: Vec<LockGuard>,
    highest: HashMap<LockName, FencingToken>,
}

impl World {
    async fn new() -> Self {
        let server = MemoryServer::new();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let client =
                LockClient::builder(server.backend()).ttl(TTL).clock(Clock::tokio()).build().await.unwrap();
            clients.push((client, Owner::new()));
        }
        Self { server, clients, guards: Vec::new(), highest: HashMap::new() }
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Try { client, name } => {
                let lock = self.clients[client].0.lock(NAMES[name]).unwrap();
                let answer = lock.try_acquire().await;
                self.granted(answer.ok().flatten(), false);
            }
            Step::Wait { client, name, ms } => {
                let lock = self.clients[client].0.lock(NAMES[name]).unwrap();
                let answer = lock.acquire_timeout(Duration::from_millis(ms)).await;
                self.granted(answer.ok().flatten(), false);
            }
            Step::WaitAndDrop { client, name } => {
                let lock = self.clients[client].0.lock(NAMES[name]).unwrap();
                let _ = tokio::time::timeout(Duration::from_millis(7), lock.acquire()).await;
            }
            Step::Reenter { client, name } => {
                let (client, owner) = &self.clients[client];
                let lock = client.lock(NAMES[name]).unwrap().reentrant(owner);
                let answer = lock.acquire_timeout(Duration::from_millis(50)).await;
                self.granted(answer.ok().flatten(), true);
            }
            Step::Release { guard } if guard < self.guards.len() => {
                let _ = self.guards.swap_remove(guard).release().await;
            }
            Step::Drop { guard } if guard < self.guards.len() => drop(self.guards.swap_remove(guard)),
            Step::Release { .. } | Step::Drop { .. } => {}
            Step::Expire { name } => drop(self.server.expire_holder(&LockName::new(NAMES[name]).unwrap())),
            Step::Delete { name } => self.server.delete_entries(&LockName::new(NAMES[name]).unwrap()),
            Step::LoseReplies { count } => self.server.lose_replies(count),
            Step::Mute(mute) => self.server.drop_notifications(mute),
            Step::Freeze { ms } => {
                self.server.hold_requests();
                tokio::time::sleep(Duration::from_millis(ms)).await;
                self.server.deliver_requests();
            }
            Step::Pass { ms } => tokio::time::sleep(Duration::from_millis(ms)).await,
        }
        settle().await;
    }

    fn granted(&mut self, guard: Option<LockGuard>, reentrant: bool) {
        let Some(guard) = guard else { return };
        let re_entered = reentrant && self.guards.iter().any(|other| other.token() == guard.token());
        if !re_entered {
            let before = self.highest.insert(guard.name().clone(), guard.token());
            assert!(Some(guard.token()) > before, "{guard:?} came after {before:?}");
        }
        self.guards.push(guard);
    }

    /// Checks exclusion. It may be broken for at most one heartbeat by two faults: an operator deletes an entry, or the
    /// server ends a session early without a notification.
    fn check(&self, broken: bool) {
        for (index, guard) in self.guards.iter().enumerate().filter(|(_, guard)| guard.is_held()) {
            for other in self.guards[index + 1..].iter().filter(|other| other.is_held()) {
                let same = guard.name() == other.name() && guard.token() != other.token();
                assert!(!same || broken, "two holders of {:?}", guard.name());
            }
        }
    }
}

/// Takes all steps with a check after each, and returns the world after the last one.
async fn replay(steps: impl IntoIterator<Item = Step>) -> World {
    let mut world = World::new().await;
    let (mut broken_at, mut muted) = (None, false);
    for step in steps {
        match step {
            Step::Mute(mute) => muted = mute,
            Step::Delete { .. } => broken_at = Some(tokio::time::Instant::now()),
            Step::Expire { .. } if muted => broken_at = Some(tokio::time::Instant::now()),
            _ => {}
        }
        world.take(step).await;
        world.check(broken_at.is_some_and(|at| at.elapsed() <= TTL));
    }
    world
}

async fn nothing_is_left(mut world: World) {
    world.server.lose_replies(0);
    world.server.drop_notifications(false);
    world.guards.clear();
    let server = world.server.clone();
    eventually(TTL * 3, "nothing is left", || server.is_empty()).await;
    for name in NAMES {
        let lock = world.clients[0].0.lock(name).unwrap();
        assert!(lock.acquire_timeout(TTL).await.unwrap().is_some(), "{name} can be taken again");
    }
}

/// The server ends a session without a notification. A random run found this once; its seed is in
/// `random_histories.proptest-regressions`, but today's generator makes another history of it.
#[test]
fn silently_ended_session_is_noticed_within_one_heartbeat() {
    on_paused_clock(async {
        let steps = [
            Step::Mute(true),
            Step::Try { client: 0, name: 0 },
            Step::Expire { name: 0 },
            Step::Try { client: 1, name: 0 },
        ];
        let world = replay(steps).await;
        let [former, next] = &world.guards[..] else { panic!("granted: {:?}", world.guards) };
        eventually(TTL / 3, "the former holder knows", || !former.is_held()).await;
        assert!(next.is_held() && next.token() > former.token(), "{next:?} after {former:?}");
        nothing_is_left(world).await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        // Each try with something left behind takes ten seconds, the least time until that is a failure.
        max_shrink_time: 60_000,
        // Next to this file; the seeds in it are tried first.
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn exclusion_token_order_and_no_residue(steps in proptest::collection::vec(step(), 1..40)) {
        on_paused_clock(async { nothing_is_left(replay(steps).await).await });
    }
}
