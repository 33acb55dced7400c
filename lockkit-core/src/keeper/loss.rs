//! Why a hold or a session was lost.

/// Why a hold or a session was lost: a small closed set, because it labels metrics and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossReason {
    Deadline,
    MaxHold,
    EntryGone,
    SessionEnded,
    HoldExpired,
    ReleaseUnconfirmed,
    WithdrawalUnconfirmed,
    BackendPanicked,
    TaskPanicked,
    ClientClosed,
    RuntimeEnded,
}

impl LossReason {
    /// Why a session is lost, and its holds with it. A hold can be lost for each of them.
    pub(crate) const OF_SESSIONS: [Self; 7] = [
        Self::Deadline,
        Self::SessionEnded,
        Self::HoldExpired,
        Self::ReleaseUnconfirmed,
        Self::WithdrawalUnconfirmed,
        Self::BackendPanicked,
        Self::TaskPanicked,
    ];

    /// Why a hold is lost without its session.
    pub(crate) const OF_HOLDS: [Self; 4] =
        [Self::EntryGone, Self::MaxHold, Self::ClientClosed, Self::RuntimeEnded];

    /// Returns the value of the label `reason`. The table of [`metrics`](crate::metrics) explains it.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::MaxHold => "max_hold",
            Self::EntryGone => "entry_gone",
            Self::SessionEnded => "session_ended",
            Self::HoldExpired => "hold_expired",
            Self::ReleaseUnconfirmed => "release_unconfirmed",
            Self::WithdrawalUnconfirmed => "withdrawal_unconfirmed",
            Self::BackendPanicked => "backend_panicked",
            Self::TaskPanicked => "task_panicked",
            Self::ClientClosed => "client_closed",
            Self::RuntimeEnded => "runtime_ended",
        }
    }

    /// Returns the text for people; it completes "lock lost: ".
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Deadline => "no renewal was acknowledged before the deadline",
            Self::MaxHold => "it was held for longer than max_hold",
            Self::EntryGone => "the server reported that the entry is gone",
            Self::SessionEnded => "the server ended the session",
            Self::HoldExpired => "a hold passed its deadline",
            Self::ReleaseUnconfirmed => "a release was not confirmed for a ttl",
            Self::WithdrawalUnconfirmed => "a withdrawal was not confirmed for a ttl",
            Self::BackendPanicked => "the backend panicked",
            Self::TaskPanicked => "a task of the client panicked",
            Self::ClientClosed => "the client was closed",
            Self::RuntimeEnded => "the runtime ended",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_and_text_say_the_same_of_each_reason() {
        let reasons = LossReason::OF_SESSIONS.into_iter().chain(LossReason::OF_HOLDS);
        let said: Vec<_> = reasons.map(|reason| (reason.label(), reason.text())).collect();
        let expected = [
            ("deadline", "no renewal was acknowledged before the deadline"),
            ("session_ended", "the server ended the session"),
            ("hold_expired", "a hold passed its deadline"),
            ("release_unconfirmed", "a release was not confirmed for a ttl"),
            ("withdrawal_unconfirmed", "a withdrawal was not confirmed for a ttl"),
            ("backend_panicked", "the backend panicked"),
            ("task_panicked", "a task of the client panicked"),
            ("entry_gone", "the server reported that the entry is gone"),
            ("max_hold", "it was held for longer than max_hold"),
            ("client_closed", "the client was closed"),
            ("runtime_ended", "the runtime ended"),
        ];
        assert_eq!(said, expected);
    }
}
