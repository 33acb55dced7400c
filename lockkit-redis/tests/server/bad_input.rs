//! Servers that refuse requests, and keys in the store that no client has written.

use lockkit_conformance::direct::LogText;
use lockkit_core::{
    Clock, ErrorKind,
    backend::{Admin, Backend, Session},
};
use lockkit_testbed::{Proxy, Redis, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{
    LONG, acquire, backend, bounded, enqueued, fresh_name, granted, is_gave_up, release, session, session_at,
    shared, side, try_acquire, until,
};

async fn refusal(url: &str) -> lockkit_core::Error {
    bounded(backend(url).open_session(LONG, Clock::boot())).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_denied_and_never_shown() {
    let redis = Redis::start().unwrap();
    redis.cli(&["ACL", "SETUSER", "app", "on", ">right", "~*", "+@all"]).unwrap();
    for login in ["app:wr0ng", "nobody:wr0ng"] {
        let error = refusal(&format!("redis://{login}@{}", redis.endpoint())).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!format!("{error} {error:?}").contains("wr0ng"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_password_ends_a_wait() {
    let redis = Redis::start().unwrap();
    redis.cli(&["ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all"]).unwrap();
    let session = session_at(&format!("redis://app:right@{}", redis.endpoint()), LONG).await;
    redis.cli(&["ACL", "SETUSER", "app", "resetpass", ">other"]).unwrap();
    redis.cli(&["CLIENT", "KILL", "USER", "app"]).unwrap();
    let error = crate::common::start(&session, &fresh_name()).ends().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_with_a_renamed_hello_is_refused() {
    let redis = Redis::start_with(&["--rename-command", "HELLO", ""]).unwrap();
    let error = refusal(&redis.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("HELLO"), "{error}");
}

/// The server's error quotes what HELLO was sent with, which is the login.
#[tokio::test(flavor = "multi_thread")]
async fn password_is_not_quoted_by_the_error_of_a_server_without_hello() {
    let redis = Redis::start_with(&["--rename-command", "HELLO", ""]).unwrap();
    for (scheme, path) in
        [("redis", ""), ("redis+cluster", ""), ("redis+sentinel", "/main?sentinel_password=s3cret")]
    {
        let error = refusal(&format!("{scheme}://app:s3cret@{}{path}", redis.endpoint())).await;
        assert!(error.to_string().contains("HELLO"), "{scheme}: {error}");
        assert!(!format!("{error:#} {error:?}").contains("s3cret"), "{scheme}: {error}");
    }
}

/// Starts a fake server, or proxy, without RESP3: it answers INFO, and everything else with `answer`. Returns its
/// address.
async fn without_resp3(answer: &'static str) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut read = [0; 1024];
                while let Ok(count @ 1..) = connection.read(&mut read).await {
                    let text = String::from_utf8_lossy(&read[..count]).to_uppercase();
                    let info = "redis_version:5.0.14\r\n";
                    let reply = match text.contains("INFO") {
                        true => format!("${}\r\n{info}\r\n", info.len()),
                        false => format!("{answer}\r\n"),
                    };
                    connection.write_all(reply.as_bytes()).await.unwrap();
                }
            });
        }
    });
    address
}

/// The answer is that of version 5.
#[tokio::test(flavor = "multi_thread")]
async fn too_old_server_is_refused_with_its_version() {
    let address = without_resp3("-ERR unknown command `HELLO`, with args beginning with: `3`").await;
    let error = refusal(&format!("redis://{address}")).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("5.0.14"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_without_resp3_is_refused_in_every_topology() {
    for answer in ["-NOPROTO unsupported protocol version", "-ERR unsupported command 'hello'"] {
        let address = without_resp3(answer).await;
        for url in [
            format!("redis://{address}"),
            format!("redis://{address},{address}"),
            format!("redis+cluster://{address}"),
            format!("redis+sentinel://{address}/main"),
        ] {
            let error = refusal(&url).await;
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{url}: {error}");
            assert!(
                error.to_string().contains("RESP3") || error.to_string().contains("5.0.14"),
                "{url}: {error}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_login_to_a_cluster_is_denied() {
    let redis = Redis::start_with(&["--cluster-enabled", "yes"]).unwrap();
    let error = refusal(&format!("redis+cluster://app:wr0ng@{}", redis.endpoint())).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!format!("{error} {error:?}").contains("wr0ng"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_values_are_hidden_and_not_trusted() {
    let redis = shared();
    let huge = "x".repeat(10 << 20);
    for command in [
        vec!["SET", "KEY", "s3cret"],
        vec!["SET", "KEY", "0123456789abcdef0123456789abcdef"],
        vec!["SET", "KEY", "0123456789abcdef0123456789abcdef:+7"],
        vec!["SET", "KEY", ""],
        vec!["SET", "KEY", &huge],
        vec!["HSET", "KEY", "a", "1"],
        vec!["RPUSH", "KEY", "a"],
    ] {
        let (session, name) = (session(redis, LONG).await, fresh_name());
        let command: Vec<&str> =
            command.into_iter().map(|part| if part == "KEY" { name.as_str() } else { part }).collect();
        redis.cli(&command).unwrap();
        assert!(is_gave_up(&try_acquire(&session, &name).await));
        let found = backend(&redis.url()).inspect(&name).await.unwrap();
        let holder = found.holder.unwrap();
        assert_eq!((&*holder.entry, holder.token, holder.metadata), (name.as_str(), None, None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn junk_in_side_keys_does_not_panic() {
    let redis = shared();
    for what in ["queue", "deadlines", "fence"] {
        let (session, name) = (session(redis, LONG).await, fresh_name());
        redis.cli(&["RPUSH", &side(&name, what), "junk"]).unwrap();
        match try_acquire(&session, &name).await {
            Err(error) if what == "queue" => assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}"),
            // Nobody waits, and a lost counter is replaced.
            end => drop(granted(end)),
        }
        backend(&redis.url()).inspect(&name).await.unwrap();
    }
    let (session, name) = (session(redis, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let waiter = enqueued(&session, &name).await;
    let (counter, lapses) = (side(&name, "fence"), side(&name, "deadlines"));
    let (field, junk) = (format!("@{}", waiter.claim.id()), [0xff; 100_000]);
    redis.command(&[b"APPEND", counter.as_bytes(), &junk]).unwrap();
    redis.command(&[b"HSET", lapses.as_bytes(), field.as_bytes(), &junk]).unwrap();
    let found = backend(&redis.url()).inspect(&name).await.unwrap();
    assert_eq!((found.holder.unwrap().metadata, found.waiters[0].metadata.clone()), (None, None));
    release(&session, &held).await;
    waiter.granted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_queue_is_an_error_and_loses_nothing() {
    let redis = shared();
    for what in ["queue", "deadlines"] {
        let (one, other, name) = (session(redis, LONG).await, session(redis, LONG).await, fresh_name());
        let held = acquire(&one, &name).await;
        let junk = side(&name, what);
        redis.cli(&["RPUSH", &junk, "junk"]).unwrap();
        // A try of a held lock does not need the queue.
        assert!(is_gave_up(&try_acquire(&other, &name).await));
        let mut errors = vec![crate::common::start(&other, &name).ends().await.unwrap_err()];
        if what == "queue" {
            errors.push(one.release(&held).await.unwrap_err());
        }
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
            assert!(error.to_string().contains(&format!("WRONGTYPE {junk}")), "{error}");
        }
        let heartbeat = one.renew(std::slice::from_ref(&held)).await;
        assert!(matches!(
            crate::common::only_renewal(heartbeat),
            lockkit_core::backend::Renewal::Renewed { .. }
        ));
        redis.cli(&["DEL", &junk]).unwrap();
        let waiter = enqueued(&other, &name).await;
        bounded(one.release(&held)).await.unwrap();
        waiter.granted().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_of_a_replaced_queue_fails_by_the_next_heartbeat() {
    let (redis, name) = (shared(), fresh_name());
    // Its own re-check would come later than this test waits.
    let (one, other) = (session(redis, LONG).await, session(redis, 10 * LONG).await);
    acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    for what in ["queue", "deadlines"] {
        redis.cli(&["DEL", &side(&name, what)]).unwrap();
        redis.cli(&["SET", &side(&name, what), "junk"]).unwrap();
    }
    other.renew(&[]).await;
    let error = waiter.ends().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_of_a_denied_script_are_withdrawn() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let held = acquire(&session(&redis, LONG).await, &name).await;
    // The entry in the queue is written before the one in `lapses`.
    redis.cli(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-hset"]).unwrap();
    let denied = session_at(&format!("redis://app:secret@{}", redis.endpoint()), LONG).await;
    let error = crate::common::start(&denied, &name).ends().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(redis.keys(&side(&name, "queue")).unwrap(), [""; 0]);
    assert!(redis.cli(&["GET", name.as_str()]).unwrap().text().starts_with(&held.claim().to_string()));
}

/// Otherwise each acquire of a user without rights would leave an entry in the client's table, which a close ends.
#[tokio::test(flavor = "multi_thread")]
async fn refused_withdrawal_is_forgotten() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let _held = acquire(&session(&redis, LONG).await, &name).await;
    redis.cli(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all"]).unwrap();
    let denied = session_at(&format!("redis://app:secret@{}", redis.endpoint()), LONG).await;
    let waiting = enqueued(&denied, &name).await;
    redis.cli(&["ACL", "SETUSER", "app", "-evalsha", "-eval"]).unwrap();
    waiting.control.give_up();
    assert!(is_gave_up(&waiting.ends().await));
    redis.cli(&["ACL", "SETUSER", "app", "+@all"]).unwrap();
    let before = redis.calls("evalsha").unwrap();
    bounded(denied.close()).await.unwrap();
    assert_eq!(redis.calls("evalsha").unwrap(), before, "the close has ended the claim again");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_with_a_garbled_entry_is_dropped() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (session(redis, LONG).await, session(redis, LONG).await);
    let held = acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    redis.cli(&["HSET", &side(&name, "deadlines"), &waiter.claim.id().to_string(), "soon"]).unwrap();
    release(&one, &held).await;
    other.renew(&[]).await;
    assert!(matches!(waiter.ends().await, Ok(lockkit_core::backend::Acquired::EntryGone)));
}

#[tokio::test(flavor = "multi_thread")]
async fn full_server_grants_nothing_but_renews_and_releases() {
    let redis = Redis::start().unwrap();
    let session = session(&redis, LONG).await;
    let held = acquire(&session, &fresh_name()).await;
    let name = fresh_name();
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let error = try_acquire(&session, &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("OOM"), "{error}");
    let heartbeat = session.renew(std::slice::from_ref(&held)).await;
    assert!(matches!(crate::common::only_renewal(heartbeat), lockkit_core::backend::Renewal::Renewed { .. }));
    bounded(session.release(&held)).await.unwrap();
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    granted(try_acquire(&session, &name).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_waits_for_a_server_busy_with_a_script() {
    let redis = Redis::start_with(&["--busy-reply-threshold", "1"]).unwrap();
    let (proxy, name) = (Proxy::start_redis(redis.endpoint()).unwrap(), fresh_name());
    let one = session_at(&format!("redis://{}", proxy.endpoint()), LONG).await;
    let endpoint = redis.endpoint();
    let stuck = std::thread::spawn(move || {
        std::process::Command::new("redis-cli")
            .args(["-h", endpoint.split(':').next().unwrap(), "-p", endpoint.split(':').nth(1).unwrap()])
            .args(["EVAL", "while true do end", "0"])
            .output()
    });
    until("the server is busy", async || {
        redis.cli(&["PING"]).is_err_and(|error| error.to_string().contains("BUSY"))
    })
    .await;
    // The server refuses INFO, too. So refusals are counted in bytes.
    let received = || proxy.counts().to_client;
    let before = received();
    let error = try_acquire(&one, &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    until("its refusal is counted", async || received() > before).await;
    let (before, refusal) = (received(), received() - before);
    let waiting = crate::common::start(&one, &name);
    // Neither the first refusal ends the wait, nor the second.
    until("the waiter was refused again", async || received() >= before + 2 * refusal).await;
    assert!(waiting.is_waiting());
    assert_eq!(redis.cli(&["SCRIPT", "KILL"]).unwrap(), Reply::Text("OK".to_owned()));
    waiting.granted().await;
    stuck.join().unwrap().unwrap();
}

/// Returns the number of commands that the server has refused with this error.
fn refused(redis: &Redis, error: &str) -> u64 {
    let info = redis.cli(&["INFO", "errorstats"]).unwrap();
    let count = info.text().lines().find_map(|line| line.strip_prefix(&format!("errorstat_{error}:count=")));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_waits_while_min_replicas_to_write_is_not_met() {
    let redis = Redis::start().unwrap();
    let (one, name) = (session(&redis, LONG).await, fresh_name());
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
    let error = try_acquire(&one, &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let before = refused(&redis, "NOREPLICAS");
    let waiting = crate::common::start(&one, &name);
    // Neither the first refusal ends the wait, nor the second.
    until("the waiter was refused again", async || refused(&redis, "NOREPLICAS") >= before + 2).await;
    assert!(waiting.is_waiting());
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]).unwrap();
    waiting.granted().await;
}

/// The next request of each claim is sent after a pause, which may last for two seconds.
#[tokio::test(flavor = "multi_thread")]
async fn claims_end_at_once_between_two_requests() {
    const CLAIMS: u64 = 20;
    let redis = Redis::start().unwrap();
    let refusals = || refused(&redis, "NOREPLICAS");
    for closes in [false, true] {
        redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]).unwrap();
        let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
        let ending = session(&redis, LONG).await;
        let other = session_at(&format!("redis://{}", proxy.endpoint()), LONG).await;
        redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
        // In bytes: to ask the server would take part of the time that is measured.
        let sent = || proxy.counts().to_server;
        let (mut of_each, mut sent_by_each) = (0, 0);
        // The second one finds its script at the server.
        for _ in 0..2 {
            let before = (refusals(), sent());
            try_acquire(&other, &fresh_name()).await.unwrap_err();
            until("its request is counted", async || sent() > before.1).await;
            (of_each, sent_by_each) = ((refusals() - before.0) * CLAIMS, (sent() - before.1) * CLAIMS);
        }
        let before = refusals();
        let claims_of =
            |session| (0..CLAIMS).map(|_| crate::common::start(session, &fresh_name())).collect::<Vec<_>>();
        let (claims, _others) = (claims_of(&ending), claims_of(&other));
        until("the pauses have grown", async || refusals() >= before + 5 * 2 * of_each).await;
        let before = sent();
        match closes {
            true => bounded(ending.close()).await.unwrap(),
            false => claims.iter().for_each(|claim| claim.control.give_up()),
        }
        for claim in claims {
            drop(claim.ends().await);
        }
        let meanwhile = sent() - before;
        assert!(meanwhile < sent_by_each / 2, "{meanwhile} bytes, of {sent_by_each} in each pause");
        bounded(other.close()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_node_as_a_single_server_is_refused() {
    let redis = Redis::start_with(&["--cluster-enabled", "yes"]).unwrap();
    let session: std::sync::Arc<dyn Session> = session(&redis, LONG).await;
    let error = try_acquire(&session, &fresh_name()).await.unwrap_err();
    assert!(!is_gave_up(&Err(error.clone())));
    assert!(error.to_string().to_lowercase().contains("cluster"), "{error}");
}

#[test]
fn evicting_server_is_warned_of() {
    let warned = |policy: &str| {
        let redis = Redis::start_with(&["--maxmemory-policy", policy]).unwrap();
        let log = LogText::of_this_thread(tracing::Level::WARN);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(session(&redis, LONG));
        let text = log.text();
        text.contains("WARN") && text.contains(policy)
    };
    assert!(warned("allkeys-lru"));
    assert!(!warned("noeviction"));
}
