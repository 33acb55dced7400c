//! What a session knows of a waiting claim: from answers to its requests, and from messages.
//!
//! The lifetime of a lock counts from the sending of a request. A message answers no request. But if the lock was granted
//! after the last answer to the waiting claim, its lifetime began after the sending of the request that was answered. Then
//! its token is above the last one in that answer. Only tokens of one server are compared: after the connection was
//! replaced, a message of the new master cannot be compared with an answer of the former one, nor the reverse. The new
//! connection may receive messages before requests use it.
//!
//! On a cluster, the node to which this client is subscribed passes on the messages of all others. A failover of another
//! node ends no connection there, so a message of its new master may be compared with an answer of the former one, and
//! the reverse. Tokens of two masters are ordered as far as their clocks agree.

use std::time::Duration;

use lockkit_core::{BootInstant, FencingToken};
use tokio::time::Instant;

use crate::wire::{Pttl, Wait};

/// Redis counts whole milliseconds; a key has expired after its last one.
const ROUNDING: Duration = Duration::from_millis(1);

/// A message that a claim was granted the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Push {
    pub(crate) token: FencingToken,
    /// How many connections had ended or begun when it came.
    pub(crate) gaps: u64,
}

/// When a request was sent, and over which connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub(crate) at: BootInstant,
    /// How many connections had ended or begun before.
    pub(crate) gaps: u64,
}

/// The extension of a wait: the waiting claim lapses at the server later than before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitExtension {
    /// The sending of the request.
    pub(crate) sent: Sending,
    /// When the lock expires; `None` if it has no ttl.
    pub(crate) lock_ends: Option<Instant>,
    /// What was granted after the answer has a token above this one. `None` if the claim does not queue.
    last_token: Option<FencingToken>,
}

impl WaitExtension {
    /// Takes the lock's PTTL from an answer that has just arrived.
    pub(crate) fn polled(sent: Sending, pttl: Pttl) -> Self {
        // -2: nobody holds the lock.
        let lock_ends = if pttl < -1 { Some(Instant::now()) } else { lock_end(pttl) };
        Self { sent, lock_ends, last_token: None }
    }

    pub(crate) fn queued(sent: Sending, wait: Wait) -> Self {
        Self { last_token: Some(wait.last_token), ..Self::polled(sent, wait.pttl) }
    }

    /// Returns whether the grant in a message was made after the answer, by the same server.
    pub(crate) fn precedes(&self, push: Push) -> bool {
        self.last_token.is_some_and(|last| push.token > last) && self.sent.gaps == push.gaps
    }
}

/// Returns when a lock expires whose PTTL has just arrived; `None` if it has no ttl, or nobody holds it.
pub(crate) fn lock_end(pttl: Pttl) -> Option<Instant> {
    let left = u64::try_from(pttl).ok()?;
    Instant::now().checked_add(Duration::from_millis(left) + ROUNDING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_grants_what_the_same_server_granted_after_its_answer() {
        let (token, at) = (FencingToken::new, BootInstant::from_start(Duration::ZERO));
        let wait = Wait { pttl: 1000, last_token: token(7) };
        let answered = WaitExtension::queued(Sending { at, gaps: 1 }, wait);
        let is_grant = |token, gaps| answered.precedes(Push { token, gaps });
        assert!(is_grant(token(8), 1));
        assert!(!is_grant(token(7), 1), "granted before the answer");
        assert!(!is_grant(token(8), 0), "over the connection before this one");
        assert!(!is_grant(token(8), 2), "over the connection after this one");
        let polled = WaitExtension::polled(Sending { at, gaps: 1 }, 1000);
        assert!(!polled.precedes(Push { token: token(8), gaps: 1 }));
    }

    /// A heartbeat finds it free: nothing else wakes its waiters.
    #[tokio::test(start_paused = true)]
    async fn lock_that_nobody_holds_has_ended() {
        let sent = Sending { at: BootInstant::from_start(Duration::ZERO), gaps: 1 };
        let ends =
            |pttl| WaitExtension::queued(sent, Wait { pttl, last_token: FencingToken::new(7) }).lock_ends;
        assert_eq!((ends(-2), ends(-1)), (Some(Instant::now()), None));
    }

    /// A waiter that re-checks in the last millisecond of a lock finds it held.
    #[tokio::test(start_paused = true)]
    async fn lock_has_expired_behind_its_last_millisecond() {
        assert_eq!(lock_end(5), Some(Instant::now() + Duration::from_millis(6)));
        assert_eq!((lock_end(-1), lock_end(-2)), (None, None));
    }
}
