//! Delivers messages of the server to the claims and observers of a session.

use std::sync::Arc;

use lockkit_core::{FencingToken, backend::ClaimId};

use super::{powers::Observers, registry::ClaimRegistry};
use crate::{broken::BROKEN, keys::parse_value, topology::Listener};

/// The receivers of a session's messages: its claims and observers.
pub(crate) struct ClaimMessages {
    /// The channel of the client. A message names a claim that was granted the lock with its token, a claim that must
    /// re-check, or a hold that was broken.
    pub(crate) channel: String,
    pub(crate) claims: Arc<ClaimRegistry>,
    /// Receive the messages of all other channels, to which they subscribe themselves.
    pub(crate) observers: Arc<Observers>,
}

impl Listener for ClaimMessages {
    fn channels(&self) -> Vec<String> {
        vec![self.channel.clone()]
    }

    fn message(&self, channel: &str, text: &str) {
        if channel != self.channel {
            self.observers.wake(channel);
        } else if let Some(value) = text.strip_prefix(BROKEN) {
            // Only what holds the lock, the claim with its token, can be named here.
            parse_value(value).into_iter().for_each(|(claim, _)| self.claims.note_broken(claim));
        } else if let Some((claim, token)) = parse_value(text) {
            self.claims.push(claim, FencingToken::new(token));
        } else {
            ClaimId::parse(text).into_iter().for_each(|claim| self.claims.wake(claim));
        }
    }

    fn ended(&self) {
        self.claims.note_gap();
    }

    fn gap(&self) {
        self.claims.note_gap();
        self.claims.wake_all();
        self.observers.wake_all();
    }

    /// An observer that begins disturbs neither the waiting claims nor the other observers.
    fn subscribed(&self, channel: &str) {
        if channel == self.channel { self.gap() } else { self.observers.wake(channel) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkit_core::BootInstant;
    use redis::{PushInfo, PushKind, Value};

    use super::*;
    use crate::{
        session::waiting::{Sending, WaitExtension},
        tests::keys,
        topology::PushHandler,
        wire::Wait,
    };

    fn messages() -> ClaimMessages {
        ClaimMessages { channel: "c".to_owned(), claims: Arc::default(), observers: Arc::default() }
    }

    #[test]
    fn push_after_the_end_or_the_begin_of_a_connection_does_not_grant() {
        let replacements: [fn(&ClaimMessages); 3] = [|_| {}, ClaimMessages::ended, ClaimMessages::gap];
        for (replace, is_granted) in replacements.into_iter().zip([true, false, false]) {
            let messages = messages();
            let entry = messages.claims.enter(ClaimId::random(), keys(), false);
            let sent = Sending { at: BootInstant::from_start(Duration::ZERO), gaps: messages.claims.gaps() };
            entry.extend(WaitExtension::queued(sent, Wait { pttl: 1000, last_token: FencingToken::new(7) }));
            replace(&messages);
            messages.message("c", &format!("{}:8", entry.id));
            assert_eq!(entry.take_pushed().is_some(), is_granted);
        }
    }

    /// On a cluster each subscription is reported, also that of an observer.
    #[test]
    fn only_a_subscription_to_its_own_channel_is_a_gap_for_claims() {
        let messages = Arc::new(messages());
        let handle = PushHandler::new(messages.clone()).for_cluster();
        let gaps_after = |channel: &str| {
            let data = vec![Value::BulkString(channel.into()), Value::Int(1)];
            handle(PushInfo { kind: PushKind::Subscribe, data });
            messages.claims.gaps()
        };
        assert_eq!([gaps_after("observed"), gaps_after("c"), gaps_after("observed")], [0, 1, 1]);
    }

    #[tokio::test]
    async fn hold_that_is_broken_during_its_acquire_is_reported_after_it() {
        let messages = messages();
        let claims = &messages.claims;
        let entries = [(); 3].map(|()| claims.enter(ClaimId::random(), keys(), false));
        let [held, acquiring, unknown] = entries;
        claims.settle(&held);
        for entry in [&held, &acquiring, &unknown] {
            messages.message("c", &format!("{BROKEN}{}:7", entry.id));
            // Not what a lock can have, and not a claim that is next.
            messages.message("c", &format!("{BROKEN}{}", entry.id));
        }
        assert_eq!(claims.broken.next().await, held.id);
        // The acquire of one ends as if it had not been granted.
        assert!(unknown.take_broken());
        claims.settle(&unknown);
        claims.settle(&acquiring);
        let reported = tokio::time::timeout(Duration::from_secs(60), claims.broken.next()).await;
        assert_eq!(reported.ok(), Some(acquiring.id));
        let once = tokio::time::timeout(Duration::ZERO, claims.broken.next()).await;
        assert!(once.is_err(), "{once:?}");
    }
}
