//! Modes of claims: exclusive, shared, or one of n permits.
//!
//! A mode is a number: how many claims may hold the lock together, 1 for exclusive and no limit for shared. **A claim
//! is admitted when fewer claims are before it than the lowest limit among them and its own.** What follows:
//!
//! * Holders are always the first claims of the queue. If a claim is admitted, so is each one before it: fewer are
//!   before that one, and the lowest limit is no lower. So nobody is overtaken.
//! * No holder's limit is exceeded, not even if clients disagree about n: the last holder kept within the limits of all
//!   others.
//! * A claim that is admitted stays admitted: claims before it only leave. So an old answer that shows a claim
//!   admitted is good for ever, as long as the claim's own entry exists.

use crate::scope::Scope;

/// In the name of a scene: claims are exclusive or shared. Otherwise they may also be one of two permits.
pub(crate) const READ_WRITE: &str = "read-write";

/// The rule, as properties.
pub(crate) const LIMITS: &str = "no more holders than each of them allows";
pub(crate) const IN_ORDER: &str = "no claim overtakes one that must wait";

/// How many claims may hold a lock together.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mode(u8);

impl Mode {
    pub(crate) const EXCLUSIVE: Self = Self(1);
    /// One of two permits.
    pub(crate) const PERMIT: Self = Self(2);
    pub(crate) const SHARED: Self = Self(u8::MAX);

    /// Whether a claim of this mode is admitted behind claims of these modes.
    pub(crate) fn is_admitted_behind(self, before: impl Iterator<Item = Self>) -> bool {
        let (count, lowest) = before.fold((0, self), |(count, lowest), mode| (count + 1, lowest.min(mode)));
        count < lowest.0
    }

    /// As [`is_admitted_behind`](Self::is_admitted_behind), without heed of the limits of those before.
    pub(crate) fn alone_admits(self, before: usize) -> bool {
        before < usize::from(self.0)
    }

    /// Whether one of the two excludes the other. Permits exclude each other by their number only.
    pub(crate) fn excludes(self, other: Self) -> bool {
        self.min(other) == Self::EXCLUSIVE
    }
}

impl<S: Copy + PartialEq> Scope<S> {
    /// The modes that each claim chooses from.
    pub(crate) fn modes(&self) -> impl Iterator<Item = Mode> {
        let permit = (!self.is(READ_WRITE)).then_some(Mode::PERMIT);
        [Mode::EXCLUSIVE].into_iter().chain(permit).chain([Mode::SHARED])
    }
}

/// Whether claims of these modes may hold a lock together.
pub(crate) fn may_hold_together(modes: impl Iterator<Item = Mode>) -> bool {
    let (count, lowest) =
        modes.fold((0, Mode::SHARED), |(count, lowest), mode| (count + 1, lowest.min(mode)));
    count <= lowest.0
}

impl std::fmt::Debug for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::EXCLUSIVE => f.write_str("exclusive"),
            Self::SHARED => f.write_str("shared"),
            Self(limit) => write!(f, "one of {limit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest queue that is tried.
    const QUEUE_MAX: u32 = 6;

    const MODES: [Mode; 4] = [Mode::EXCLUSIVE, Mode::PERMIT, Mode(3), Mode::SHARED];

    /// All queues of these modes with this length.
    fn queues(length: u32) -> impl Iterator<Item = Vec<Mode>> {
        let modes = MODES.len();
        let place = move |number: usize, place| MODES[number / modes.pow(place) % modes];
        (0..modes.pow(length)).map(move |number| (0..length).map(|at| place(number, at)).collect())
    }

    fn is_admitted(queue: &[Mode], nth: usize) -> bool {
        queue[nth].is_admitted_behind(queue[..nth].iter().copied())
    }

    fn admitted(queue: &[Mode]) -> usize {
        (0..queue.len()).filter(|nth| is_admitted(queue, *nth)).count()
    }

    #[test]
    fn admitted_claims_are_the_first_and_may_hold_together() {
        for queue in (1..=QUEUE_MAX).flat_map(queues) {
            let count = admitted(&queue);
            assert!(count > 0, "{queue:?}");
            assert!((0..count).all(|nth| is_admitted(&queue, nth)), "{queue:?}");
            assert!(may_hold_together(queue[..count].iter().copied()), "{queue:?}");
            assert!(!may_hold_together(queue.iter().copied().take(count + 1)) || count == queue.len());
        }
    }

    #[test]
    fn admitted_claim_stays_admitted_when_another_leaves() {
        for queue in (1..=QUEUE_MAX).flat_map(queues) {
            for gone in 0..queue.len() {
                let mut rest = queue.clone();
                rest.remove(gone);
                let left = (0..queue.len()).filter(|nth| *nth != gone && is_admitted(&queue, *nth));
                let mut now = left.map(|nth| nth - usize::from(nth > gone));
                assert!(now.all(|nth| is_admitted(&rest, nth)), "{queue:?} without {gone}");
            }
        }
    }
}
