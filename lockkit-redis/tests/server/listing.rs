//! The locks of a store, page by page.

use std::collections::{BTreeMap, BTreeSet};

use lockkit_core::{
    ErrorKind, FencingToken, LockName,
    backend::{Admin, Backend, ClaimId, Contender, ListedLock},
};
use lockkit_redis::RedisBackend;
use lockkit_testbed::{Proxy, Redis, RedisCluster};

use crate::{
    common::{LONG, acquire, assert_error, backend, bounded, enqueued, name, session_at, shared, side},
    raw::{Claimant, WAITED_FOR, add_lapsed_waiters},
    rights::{LOGIN, RIGHTS, keys_of, user},
    topologies::PATIENT,
};

/// Locks of one page.
const LIMIT: usize = 100;

/// Far more than any listing here has.
const PAGES_MAX: usize = 1_000;

/// Fills a server with locks `PREFIX1` to `PREFIXcount` of other programs, quickly.
fn fill(redis: &Redis, prefix: &str, count: usize) {
    let script = "for n = 1, ARGV[2] do redis.call('SET', ARGV[1] .. n, 'x') end";
    redis.cli(&["EVAL", script, "0", prefix, &count.to_string()]).unwrap();
}

async fn page(admin: &RedisBackend, prefix: &str, after: Option<&str>) -> (Vec<ListedLock>, Option<String>) {
    let page = bounded(admin.list(prefix, after, LIMIT)).await.unwrap();
    assert!(page.locks.len() <= 3 * LIMIT, "{} locks in a page of {LIMIT}", page.locks.len());
    (page.locks, page.next)
}

/// Returns how often each lock is listed, and the number of pages.
async fn listed(admin: &RedisBackend, prefix: &str) -> (BTreeMap<LockName, usize>, usize) {
    let (mut found, mut next, mut pages) = (BTreeMap::new(), None, 0);
    loop {
        let (locks, after) = page(admin, prefix, next.as_deref()).await;
        pages += 1;
        assert!(pages < PAGES_MAX, "the listing does not end");
        for lock in locks {
            *found.entry(lock.name.unwrap()).or_default() += 1;
        }
        match after {
            Some(after) => next = Some(after),
            None => return (found, pages),
        }
    }
}

fn names(prefix: &str, count: usize) -> BTreeSet<LockName> {
    (1..=count).map(|number| name(&format!("{prefix}{number}"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn held_and_waited_for_locks_are_listed_over_several_pages() {
    let redis = Redis::start().unwrap();
    // Letters that are special in patterns.
    let admin = backend(&format!("{}/?prefix=a*%5Bb%5D%3F", redis.url()));
    let (one, other) = (backend_session(&admin).await, backend_session(&admin).await);
    let mut expected = BTreeSet::new();
    for number in 0..20 {
        let name = name(&format!("jobs/held {number}."));
        acquire(&one, &name).await;
        expected.insert(name);
    }
    let waited_for = name("jobs/waited-for");
    acquire(&one, &waited_for).await;
    let waiting = enqueued(&other, &waited_for).await;
    let free = name("jobs/free");
    acquire(&one, &free).await;
    let waiting_too = enqueued(&other, &free).await;
    // As if its holder had expired.
    redis.cli(&["DEL", "a*[b]?jobs%2Ffree"]).unwrap();
    expected.extend([waited_for.clone(), free.clone()]);
    acquire(&one, &name("other/held")).await;
    fill(&redis, "a*[b]?jobs%2Fmany-", 500);
    expected.extend(names("jobs/many-", 500));
    // Not locks of this prefix, or of any.
    fill(&redis, "axb?jobs%2Fmany-", 300);
    fill(&redis, "a*[b]?jobs:", 300);
    redis.cli(&["SET", "a*[b]?jobs%2fsmall", "x"]).unwrap();
    let (found, pages) = listed(&admin, "jobs/").await;
    assert_eq!(found.keys().cloned().collect::<BTreeSet<_>>(), expected);
    assert!(pages > 2, "{pages} pages");
    assert!(waiting.is_waiting() && waiting_too.is_waiting(), "the listing has granted something");
    let (found, _) = listed(&admin, "jobs/held 1").await;
    assert_eq!(found.len(), 11, "{found:?}");
    let (found, _) = listed(&admin, "").await;
    assert_eq!(found.len(), expected.len() + 1);
    let one = admin.list("jobs/free", None, LIMIT).await.unwrap();
    assert_eq!(one.locks, [ListedLock::new(Some(free), "a*[b]?jobs%2Ffree")]);
    assert_eq!(listed(&admin, "nothing").await.0, BTreeMap::new());
}

async fn backend_session(admin: &RedisBackend) -> std::sync::Arc<dyn lockkit_core::backend::Session> {
    bounded(admin.open_session(LONG, lockkit_core::Clock::boot())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_is_listed_unless_its_lock_is_found_by_its_key() {
    let (redis, name) = (Redis::start().unwrap(), name("x"));
    let now = || {
        let time = redis.cli(&["TIME"]).unwrap();
        time.list().iter().map(|part| format!("{:0>6}", part.text())).collect::<String>()
    };
    let is_listed = |began: &str| {
        let sides = ["queue", "deadlines"].map(|what| side(&name, what));
        redis.cli(&["EVAL", *WAITED_FOR, "3", name.as_str(), &sides[0], &sides[1], began]).unwrap().list()[0]
            .number()
            == Some(1)
    };
    let [holder, waiter] = [(); 2].map(|()| Claimant::new(&redis, &name));
    let before = now();
    holder.acquire();
    let after = now();
    assert!(!is_listed(&before), "nobody waits");
    waiter.acquire();
    assert!(!is_listed(&after), "held all the time");
    assert!(is_listed(&before), "granted since");
    redis.cli(&["DEL", name.as_str()]).unwrap();
    assert!(is_listed(&after), "free, and waited for");
    for foreign in ["theirs", "0123:4", "0123456789abcdef0123456789abcdef"] {
        redis.cli(&["SET", name.as_str(), foreign]).unwrap();
        assert!(is_listed(&after), "nobody knows since when another program has it: {foreign}");
    }
    redis.cli(&["HSET", &side(&name, "deadlines"), &waiter.claim, "1:60000:c0ffee"]).unwrap();
    assert!(!is_listed(&after), "its only waiter has lapsed");
    // More than the script looks at: one of those before them may be alive.
    add_lapsed_waiters(&redis, &name, 100);
    assert!(is_listed(&after), "nobody knows whether somebody waits");
    redis.cli(&["ZREMRANGEBYSCORE", &side(&name, "queue"), "-inf", "-1"]).unwrap();
    redis.cli(&["DEL", &side(&name, "deadlines")]).unwrap();
    redis.cli(&["SET", &side(&name, "deadlines"), "junk"]).unwrap();
    assert!(!is_listed(&after));
}

/// The cursor of a server means nothing after its restart.
#[tokio::test(flavor = "multi_thread")]
async fn listing_survives_a_restart_between_two_pages() {
    let mut redis = Redis::start().unwrap();
    fill(&redis, "lock-", 1000);
    let admin = backend(&redis.url());
    let (locks, mut next) = page(&admin, "lock-", None).await;
    let mut found: BTreeSet<LockName> = locks.into_iter().filter_map(|lock| lock.name).collect();
    for _ in 0..4 {
        redis.restart().unwrap();
        let (locks, after) = page(&admin, "lock-", next.as_deref()).await;
        // Only what exists through the whole listing is promised.
        found = locks.into_iter().filter_map(|lock| lock.name).collect();
        next = after;
    }
    while let Some(after) = next {
        let (locks, after) = page(&admin, "lock-", Some(&after)).await;
        found.extend(locks.into_iter().filter_map(|lock| lock.name));
        next = after;
    }
    assert_eq!(found, names("lock-", 1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn masters_of_a_cluster_are_listed_one_after_another() {
    let cluster = RedisCluster::start().unwrap();
    let url = format!("{}/{PATIENT}", cluster.url());
    // Nobody renews them, and there are hundreds of requests.
    let [one, other] = [session_at(&url, 10 * LONG).await, session_at(&url, 10 * LONG).await];
    let admin = backend(&url);
    let mut expected = BTreeSet::new();
    let mut waiting = Vec::new();
    for number in 0..400 {
        let name = name(&format!("lock-{number}"));
        if number < 350 {
            let owner = cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap();
            cluster.node(owner).cli(&["SET", name.as_str(), "x"]).unwrap();
        } else {
            acquire(&one, &name).await;
            waiting.push(enqueued(&other, &name).await);
        }
        if number >= 375 {
            let owner = cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap();
            cluster.node(owner).cli(&["DEL", name.as_str()]).unwrap();
        }
        expected.insert(name);
    }
    let (found, pages) = listed(&admin, "lock-").await;
    assert_eq!(found.into_keys().collect::<BTreeSet<_>>(), expected);
    assert!(pages > 2, "{pages} pages");
    drop(waiting);
}

/// Another server has the slots, and the cursor means nothing there.
#[tokio::test(flavor = "multi_thread")]
async fn listing_survives_a_failover_between_two_pages() {
    let cluster = RedisCluster::start().unwrap();
    let mut expected = BTreeSet::new();
    for number in 0..600 {
        let name = name(&format!("lock-{number}"));
        let owner = cluster.owner(cluster.slot(name.as_str()).unwrap()).unwrap();
        cluster.node(owner).cli(&["SET", name.as_str(), "x"]).unwrap();
        expected.insert(name);
    }
    let admin = backend(&format!("{}/{PATIENT}", cluster.url()));
    let (locks, next) = page(&admin, "lock-", None).await;
    let mut found: BTreeSet<LockName> = locks.into_iter().filter_map(|lock| lock.name).collect();
    let first = cluster.owner(0).unwrap();
    let replica = (0..cluster.len()).find(|&number| {
        let address = cluster.node(first).endpoint();
        let (_, port) = address.split_once(':').unwrap();
        let info = cluster.node(number).cli(&["INFO", "replication"]).unwrap();
        info.text().contains(&format!("master_port:{port}\r\n")) && info.text().contains("role:slave")
    });
    let replica = replica.unwrap();
    cluster.wait_until_in_sync(first, replica).unwrap();
    cluster.failover(replica).unwrap();
    let mut next = next;
    while let Some(after) = next {
        let (locks, after) = page(&admin, "lock-", Some(&after)).await;
        found.extend(locks.into_iter().filter_map(|lock| lock.name));
        next = after;
    }
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_names_and_other_cursors_are_refused() {
    let redis = shared();
    let raw = backend(&format!("{}/?names=raw", redis.url()));
    assert_error(&raw.list("", None, LIMIT).await.unwrap_err(), ErrorKind::Unsupported, "raw names");
    assert!(!raw.info().powers.list && backend(&redis.url()).info().powers.list);
    for cursor in ["", "17", "held-0-1-2"] {
        let error = backend(&redis.url()).list("", Some(cursor), LIMIT).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{cursor:?}: {error}");
    }
}

/// Each request has a connection already when the server does not answer any more.
#[tokio::test(flavor = "multi_thread")]
async fn operator_does_not_wait_for_a_silent_server() {
    let proxy = Proxy::start_redis(shared().endpoint()).unwrap();
    let admin = backend(&format!("redis://{}/?request_timeout=5s", proxy.endpoint()));
    let name = name("x");
    let silent_from = |text: &str| {
        proxy.pass();
        proxy.hold_requests_from(text);
    };
    silent_from("EVALSHA");
    let shown = bounded(admin.inspect(&name)).await.unwrap_err();
    silent_from("EVALSHA");
    let hold = Contender::new(ClaimId::random().to_string(), Some(FencingToken::new(7)), None);
    let broken = bounded(admin.break_lock(&name, &hold)).await.unwrap_err();
    silent_from("SCAN");
    let listed = bounded(admin.list("", None, LIMIT)).await.unwrap_err();
    for error in [shown, broken, listed] {
        assert_error(&error, ErrorKind::Unavailable, "did not answer");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_needs_one_more_right_to_list() {
    let redis = Redis::start().unwrap();
    let set = |rights: &str| {
        let mut command = vec!["ACL", "SETUSER"];
        command.extend(user(rights));
        command.insert(3, "reset");
        redis.cli(&command).unwrap();
    };
    let rights = RIGHTS.replace("~*", &keys_of("app:"));
    let admin = backend(&format!("redis://{LOGIN}@{}/?prefix=app:", redis.endpoint()));
    set(&rights);
    let session = session_at(&format!("{}/?prefix=app:", redis.url()), LONG).await;
    let (held, waited_for) = (acquire(&session, &name("held")).await, name("waited-for"));
    acquire(&session, &waited_for).await;
    let waiting = enqueued(&session, &waited_for).await;
    // Keys that the user may not read.
    fill(&redis, "other-", 10);
    let shown = admin.inspect(held.name()).await.unwrap().holder.unwrap();
    assert!(admin.break_lock(held.name(), &shown).await.unwrap());
    assert_eq!(redis.cli(&["ACL", "LOG"]).unwrap().list(), []);
    let error = admin.list("", None, LIMIT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    redis.cli(&["ACL", "LOG", "RESET"]).unwrap();
    set(&format!("{rights} +scan"));
    let found = admin.list("", None, LIMIT).await.unwrap();
    assert_eq!(found.locks, [ListedLock::new(Some(waited_for), "app:waited-for")]);
    assert_eq!(redis.cli(&["ACL", "LOG"]).unwrap().list(), []);
    drop(waiting);
}
