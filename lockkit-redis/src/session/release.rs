//! Release of a hold, and withdrawal of a claim that was not granted: both remove everything of a claim at the server.
//!
//! Failure cases:
//!
//! * A release is not answered: it is repeated. It names its claim and can end no other.
//! * It is not answered until the lock must have expired: the hold is forgotten. The caller who waited for the answer
//!   got an error.
//! * Many lapsed waiters are at the head of the queue: each request drops some hundreds, and the release is repeated
//!   until the next waiter is found.

use std::time::Duration;

use redis::Value;
use tracing::debug;

use super::{RedisSession, registry::ClaimEntry};
use crate::{error::RequestError, wire::parse_release};

/// Bounds the repeated requests of one release. Each drops some hundreds of lapsed waiters: enough for what a client
/// that died may have left, and few enough that the caller does not wait for too long.
const HANDOFF_CALLS_MAX: u32 = 200;

impl RedisSession {
    pub(crate) async fn release_claim(&self, entry: &ClaimEntry) -> Result<(), RequestError> {
        entry.mark_released();
        entry.begin_release(self.clock.now());
        self.end_at_server(entry).await?;
        self.claims.forget(entry.id);
        Ok(())
    }

    /// Ends a claim at the server, whether it holds the lock or waits.
    pub(crate) async fn end_at_server(&self, entry: &ClaimEntry) -> Result<(), RequestError> {
        let release = self.params.release(entry);
        let released = parse_release(self.server.run(&release).await?)?;
        if released.is_unserved {
            find_next(|| self.server.run(&release)).await;
        }
        Ok(())
    }

    /// Forgets holds that must have expired at least `ago` ago. A hold must have expired one ttl after its last
    /// heartbeat, which may have been under way when its release began.
    pub(crate) fn forget_ended(&self, ago: Duration) {
        self.claims.forget_ended(self.clock.now(), self.ttl + self.server.request_timeout() + ago);
    }
}

/// Repeats the release of a claim that has ended until the next waiter is found. This only makes the handoff prompt: if
/// the requests fail or are too few, the next heartbeat of any waiter finds the lock free, and that waiter continues.
pub(crate) async fn find_next<F>(release: impl Fn() -> F)
where
    F: Future<Output = Result<Value, RequestError>>,
{
    for _ in 0..HANDOFF_CALLS_MAX {
        match release().await.and_then(parse_release) {
            Ok(released) if released.is_unserved => {}
            Ok(_) => return,
            Err(fault) => return debug!(?fault, "the next waiter was not found yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use lockkit_conformance::direct::{HANG, LONG, acquire, bounded, fresh_name};
    use lockkit_core::{Clock, backend::Backend};

    use super::*;
    use crate::{
        RedisBackend, RedisConfig,
        tests::{
            scripted::{Answer, ScriptedServer, greeting},
            set_clock,
        },
        wire::RELEASE,
    };

    /// Returns how many requests the search for the next waiter sends when each has this answer.
    async fn calls_of_a_search(answer: impl Fn() -> Result<Value, RequestError>) -> u32 {
        let calls = Cell::new(0);
        find_next(|| {
            calls.set(calls.get() + 1);
            assert!(calls.get() < 10_000, "the search has no end");
            std::future::ready(answer())
        })
        .await;
        calls.get()
    }

    /// The caller of a release waits for it.
    #[tokio::test]
    async fn search_for_the_next_waiter_ends_when_it_is_found_or_refused_or_has_taken_many_requests() {
        assert_eq!(calls_of_a_search(|| Ok(Value::Int(0))).await, 1);
        assert_eq!(calls_of_a_search(|| Err(RequestError::no_reply())).await, 1);
        let most = calls_of_a_search(|| Ok(Value::Int(2))).await;
        assert!((50..=1_000).contains(&most), "{most}");
    }

    /// Its caller has the error of the release, and nothing is left to end.
    #[tokio::test]
    async fn close_does_not_fail_for_a_hold_that_must_have_expired() {
        let server = ScriptedServer::start(|_| {
            |_, words: &[String]| {
                let is_release = words.get(1).is_some_and(|script| script == RELEASE.digest());
                let answer = match &*words[0] {
                    "EVALSHA" if is_release => "-BUSY Redis is busy running a script.\r\n",
                    "EVALSHA" => ":7\r\n",
                    _ => return greeting(words),
                };
                Answer::Text(answer.to_owned())
            }
        });
        let config = RedisConfig::new([server.await.address.to_string()]).unwrap().request_timeout(HANG);
        let (clock, seconds) = set_clock();
        let session = RedisBackend::new(config).open_session(LONG, clock).await.unwrap();
        let held = acquire(&session, &fresh_name()).await;
        bounded(session.release(&held)).await.unwrap_err();
        bounded(session.close()).await.expect_err("the server may have it still");
        seconds.store((LONG + 2 * HANG).as_secs(), SeqCst);
        bounded(session.close()).await.unwrap();
    }

    /// One after another, each may take the whole time limit of a request.
    #[tokio::test]
    async fn close_ends_all_holds_at_once() {
        const HOLDS: usize = 3;
        let releases = AtomicUsize::default();
        let server = ScriptedServer::start(|_| {
            move |_, words: &[String]| {
                let is_release = words.get(1).is_some_and(|script| script == RELEASE.digest());
                match &*words[0] {
                    "EVALSHA" if !is_release => Answer::Text(":7\r\n".to_owned()),
                    // They are answered together when the last one has come.
                    "EVALSHA" if releases.fetch_add(1, SeqCst) + 1 < HOLDS => Answer::Nothing,
                    "EVALSHA" => Answer::Text(":1\r\n".repeat(HOLDS)),
                    _ => greeting(words),
                }
            }
        });
        let config = RedisConfig::new([server.await.address.to_string()]).unwrap().request_timeout(HANG);
        let session = RedisBackend::new(config).open_session(LONG, Clock::boot()).await.unwrap();
        for _ in 0..HOLDS {
            acquire(&session, &fresh_name()).await;
        }
        bounded(session.close()).await.unwrap();
    }
}
