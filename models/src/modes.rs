//! Modes of claims: exclusive, shared, or one of n permits.
//!
//! A mode is a number: how many claims may hold the lock together, 1 for exclusive and no limit for shared. **A claim
//! is admitted when fewer claims are before it than the lowest limit among them and its own.** What follows:
//!
//! * Holders are always the first claims of the queue. If a claim is admitted, so is each one before it: fewer are
//!   before that one, and the lowest limit is no lower. So nobody is overtaken.
//! * No holder's limit is exceeded, not even if clients disagree about n: the last holder heeded the limits of all
//!   others.
//! * A claim that is admitted stays admitted: claims before it only leave. So an old answer that shows a claim
//!   admitted is good for ever, as long as the claim's own entry exists.

/// How many claims may hold a lock together.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mode(u8);

impl Mode {
    pub(crate) const EXCLUSIVE: Self = Self(1);
    /// One of two permits.
    pub(crate) const PERMIT: Self = Self(2);
    pub(crate) const SHARED: Self = Self(u8::MAX);

    pub(crate) const ANY: &[Self] = &[Self::EXCLUSIVE, Self::PERMIT, Self::SHARED];
    pub(crate) const READ_WRITE: &[Self] = &[Self::EXCLUSIVE, Self::SHARED];

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
