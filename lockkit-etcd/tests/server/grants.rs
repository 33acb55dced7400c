//! Grants, queues, tries and tokens on an undisturbed server.

use crate::common::{
    LONG, LONGEST, acquire, assert_rising, backend, bounded, enqueued, fresh_name, is_gave_up, key_of, name,
    own_server, plain, queue, release, session, shared, try_acquire, until,
};
use etcd_client::{DeleteOptions, GetOptions, PutOptions};
use lockkit_core::{
    FencingToken, Metadata,
    backend::{Acquired, Backend},
};

#[tokio::test(flavor = "multi_thread")]
async fn release_leaves_only_the_clients_own_two_keys() {
    let etcd = own_server();
    let session = session(&etcd, LONG).await;
    let grant = acquire(&session, &name("orders/42")).await;
    assert_eq!(etcd.keys("lockkit/orders%2F42/").unwrap().len(), 1);
    release(&session, &grant).await;
    release(&session, &grant).await;
    let keys = etcd.keys("").unwrap();
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert!(keys.iter().all(|key| key.starts_with("lockkit/:clients/")), "{keys:?}");
    bounded(session.close()).await.unwrap();
    bounded(session.close()).await.unwrap();
    assert_eq!(etcd.keys("").unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_one_and_of_several_clients_are_served_in_order() {
    let etcd = shared();
    let name = fresh_name();
    let (one, other) = (session(etcd, LONG).await, session(etcd, LONG).await);
    let mut holder = (one.clone(), acquire(&one, &name).await);
    let mut waiting = Vec::new();
    for session in [&other, &one, &one, &other, &other, &one] {
        waiting.push((session.clone(), enqueued(session, &name).await));
    }
    let mut tokens = vec![holder.1.token()];
    for (session, next) in waiting {
        assert!(next.is_waiting());
        release(&holder.0, &holder.1).await;
        holder = (session, next.granted().await);
        tokens.push(holder.1.token());
    }
    release(&holder.0, &holder.1).await;
    assert_rising(&tokens);
    assert_eq!(etcd.keys(&queue(&name)).unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn try_for_a_held_lock_writes_nothing() {
    let etcd = own_server();
    let (holder, other) = (session(&etcd, LONG).await, session(&etcd, LONG).await);
    let name = fresh_name();
    let grant = acquire(&holder, &name).await;
    let revision = async || plain(&etcd).await.get("x", None).await.unwrap().header().unwrap().revision();
    let before = revision().await;
    for session in [&other, &holder, &other] {
        assert!(is_gave_up(&try_acquire(session, &name).await));
    }
    assert_eq!(revision().await, before);
    release(&holder, &grant).await;
    let Ok(Acquired::Granted(tried)) = try_acquire(&other, &name).await else { panic!("it was free") };
    assert!(tried.token() > grant.token());
    release(&other, &tried).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_over_a_thousand_handoffs() {
    const CLIENTS: usize = 4;
    const GRANTS_EACH: usize = 250;
    let name = fresh_name();
    let mut tasks = Vec::new();
    let tokens = std::sync::Arc::new(std::sync::Mutex::new(Vec::<FencingToken>::new()));
    for _ in 0..CLIENTS {
        let (session, name, tokens) = (session(shared(), LONGEST).await, name.clone(), tokens.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..GRANTS_EACH {
                let grant = acquire(&session, &name).await;
                // `try_lock` fails if there are two holders at a time.
                tokens.try_lock().unwrap().push(grant.token());
                release(&session, &grant).await;
            }
        }));
    }
    for task in tasks {
        // Each acquire and each release is bounded.
        task.await.unwrap();
    }
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), CLIENTS * GRANTS_EACH);
    assert_rising(&tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_names_are_independent_locks() {
    let long = "x".repeat(1024);
    let long_emoji = "🔒".repeat(256);
    let names = ["a", "a/b", "ab", "a\0", "a%2Fb", "/", "..", "🔒", "a\nb", ":clients", &long, &long_emoji];
    let session = session(shared(), LONG).await;
    let mut grants = Vec::new();
    for odd in names {
        let grant = try_acquire(&session, &name(odd)).await;
        let Ok(Acquired::Granted(grant)) = grant else { panic!("{odd:?} is not free: {grant:?}") };
        grants.push(grant);
    }
    for grant in &grants {
        assert!(is_gave_up(&try_acquire(&session, grant.name()).await), "{:?}", grant.name());
    }
    for grant in &grants {
        release(&session, grant).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_contender_is_waited_for_and_followed() {
    let etcd = own_server();
    let session = session(&etcd, LONG).await;
    let name = fresh_name();
    let mut other = plain(&etcd).await;
    let lease = other.lease_grant(60, None).await.unwrap().id();
    // As etcd's Go package writes it: the lease in hexadecimal digits, and no value.
    let key = format!("{}{lease:x}", queue(&name));
    other.put(key.clone(), "", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    let waiting = enqueued(&session, &name).await;
    let own = key_of(&etcd, &waiting.claim);
    let created = other.get(own, None).await.unwrap().kvs()[0].create_revision();
    other.delete(key.clone(), None).await.unwrap();
    let grant = waiting.granted().await;
    assert_eq!(grant.token(), FencingToken::new(created.unsigned_abs()));
    // The foreign client is next: it watches our key, and reads no handoff.
    other.put(key.clone(), "", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    release(&session, &grant).await;
    assert_eq!(etcd.keys(&queue(&name)).unwrap(), [&*key]);
    assert_eq!(etcd.keys("lockkit/:clients/").unwrap().len(), 2);
    other.delete(key, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_keys_are_contenders_without_metadata() {
    let etcd = own_server();
    let session = session(&etcd, LONG).await;
    let name = fresh_name();
    let mut other = plain(&etcd).await;
    let queue = queue(&name);
    let huge = vec![0xfe; 1_000_000];
    other.put(format!("{queue}\u{0}odd"), vec![0xff, 0x00], None).await.unwrap();
    for number in 0..5 {
        other.put(format!("{queue}huge-{number}"), huge.clone(), None).await.unwrap();
    }
    let waiting = enqueued(&session, &name).await;
    let admin = backend(&etcd.url());
    let seen = admin.admin().unwrap().inspect(&name).await.unwrap();
    assert_eq!(seen.holder.unwrap().entry, "\u{0}odd");
    assert_eq!(seen.waiters.len(), 6);
    assert!(seen.waiters.iter().all(|waiter| waiter.metadata.is_none()));
    for foreign in ["\u{0}", "huge"] {
        let all = DeleteOptions::new().with_prefix();
        other.delete(format!("{queue}{foreign}"), Some(all)).await.unwrap();
    }
    let grant = waiting.granted().await;
    release(&session, &grant).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inspection_shows_holder_and_waiters_in_order() {
    let etcd = shared();
    let name = fresh_name();
    let (one, other) = (session(etcd, LONG).await, session(etcd, LONG).await);
    let admin = backend(&etcd.url());
    let inspect = async || admin.admin().unwrap().inspect(&name).await.unwrap();
    assert_eq!(inspect().await, lockkit_core::backend::Inspection::default());
    let grant = acquire(&one, &name).await;
    let waiters = [enqueued(&other, &name).await, enqueued(&one, &name).await];
    let seen = inspect().await;
    let entry = |claim| key_of(etcd, claim).strip_prefix(&queue(&name)).unwrap().to_owned();
    let holder = seen.holder.unwrap();
    assert!(holder.entry.ends_with(&grant.claim().to_string()));
    assert_eq!(holder.token, Some(grant.token()));
    assert!(seen.waiters.iter().all(|waiter| waiter.token.is_none()));
    assert_eq!(holder.metadata.unwrap().label, Metadata::of_this_process(Some("test")).label);
    let entries: Vec<String> = seen.waiters.into_iter().map(|waiter| waiter.entry).collect();
    assert_eq!(entries, waiters.each_ref().map(|waiter| entry(&waiter.claim)));
    release(&one, &grant).await;
    let [second, third] = waiters;
    let second = second.granted().await;
    release(&other, &second).await;
    let third = third.granted().await;
    // Its client has written other keys since this one, and no later revision is the token.
    assert_eq!(inspect().await.holder.unwrap().token, Some(third.token()));
    release(&one, &third).await;
    until("the queue is empty", async || inspect().await.holder.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_key_holds_the_metadata_of_its_owner() {
    let etcd = shared();
    let session = session(etcd, LONG).await;
    let name = fresh_name();
    let grant = acquire(&session, &name).await;
    let answer = plain(etcd).await.get(queue(&name), Some(GetOptions::new().with_prefix())).await.unwrap();
    let record = Metadata::from_json(answer.kvs()[0].value()).unwrap();
    assert_eq!((record.pid, record.label.as_deref()), (std::process::id(), Some("test")));
    assert_eq!(answer.kvs()[0].create_revision().unsigned_abs(), grant.token().get());
    release(&session, &grant).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_reused_by_later_claims_of_the_client() {
    let etcd = shared();
    let (session, name) = (session(etcd, LONG).await, fresh_name());
    let mut seen = Vec::new();
    for _ in 0..10 {
        let held = acquire(&session, &name).await;
        let waiting = enqueued(&session, &name).await;
        seen.extend(etcd.keys(&queue(&name)).unwrap());
        release(&session, &held).await;
        release(&session, &waiting.granted().await).await;
    }
    assert_eq!(seen.len(), 20);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 2, "{seen:?}");
}
