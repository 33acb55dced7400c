//! What a backend promises about its store.

/// What a backend promises about its store.
///
/// The client does not read it. It is for people, who find it in the guarantee table, and for the conformance suite, which
/// selects cases and bounds by `queue`, `token` and `loss`.
///
/// ```
/// use lockkit_core::backend::{FailoverLoss, Promises, TokenStrength};
///
/// let one_server =
///     Promises::least().with_token(TokenStrength::History).with_failover(FailoverLoss::NoFailover);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Promises {
    /// The order in which waiters are granted.
    pub queue: QueueKind,
    /// What the order of fencing tokens survives.
    pub token: TokenStrength,
    /// How soon the holder learns of a loss at the server.
    pub loss: LossDetection,
    /// What a failover of the store can lose.
    pub failover: FailoverLoss,
}

impl Promises {
    /// Returns the weakest promises: no order of waiters, tokens that rise within a process, losses found by heartbeats, and a
    /// failover that loses grants.
    #[must_use]
    pub fn least() -> Self {
        Self {
            queue: QueueKind::Unordered,
            token: TokenStrength::Process,
            loss: LossDetection::Heartbeat,
            failover: FailoverLoss::Unreplicated,
        }
    }

    /// Promises an order in which waiters are granted.
    #[must_use]
    pub fn with_queue(self, queue: QueueKind) -> Self {
        Self { queue, ..self }
    }

    /// Promises what the order of fencing tokens survives.
    #[must_use]
    pub fn with_token(self, token: TokenStrength) -> Self {
        Self { token, ..self }
    }

    /// Promises how soon the holder learns of a loss at the server.
    #[must_use]
    pub fn with_loss(self, loss: LossDetection) -> Self {
        Self { loss, ..self }
    }

    /// Promises what a failover of the store can lose.
    #[must_use]
    pub fn with_failover(self, failover: FailoverLoss) -> Self {
        Self { failover, ..self }
    }
}

/// The order in which waiters are granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueKind {
    /// First come, first served, among the waiters that stay alive.
    Fifo,
    /// In no particular order.
    Unordered,
}

/// What the order of fencing tokens survives, beyond the end of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenStrength {
    /// Everything within one history of the store's data.
    History,
    /// Also the loss of the counters, if wall clocks differ by less than the pause between two grants.
    ClockFloor,
    /// Nothing: the numbers restart with the process.
    Process,
}

/// How soon the holder learns of a loss at the server.
///
/// A hold that is merely not renewed ends at its deadline on every backend, without I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossDetection {
    /// The server reports a lost session at once; a heartbeat finds a single lost hold.
    SessionPushed,
    /// A heartbeat finds the loss.
    Heartbeat,
}

/// What a failover of the store can lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailoverLoss {
    /// Nothing that was acknowledged: the store replicates by consensus.
    Nothing,
    /// Grants that were not replicated yet.
    Unreplicated,
    /// There is no failover: one process or one host.
    NoFailover,
}
