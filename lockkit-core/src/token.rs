//! Fencing tokens, and the check that a resource does with them.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use serde::{Deserialize, Serialize};

/// The number of a grant; it rises strictly over the grants of one lock name.
///
/// Send it with every write that the lock protects. A resource that refuses tokens lower than the highest one it has
/// seen (see [`Fence`]) never applies a write of an older grant after one of a newer grant, whatever pauses and clocks
/// do. Source of the idea: Gray and Cheriton's leases (1989); Burrows' Chubby "sequencer" (2006).
///
/// Tokens of different names, backends or stores are not comparable. Tokens are not consecutive.
///
/// ```
/// use lockkit_core::FencingToken;
///
/// assert!(FencingToken::new(8) > FencingToken::new(7));
/// assert_eq!(FencingToken::new(8).to_string(), "8");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Creates a token with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number, to be stored or sent.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for FencingToken {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

/// For columns and protocols whose integers are signed.
///
/// ```
/// # use lockkit_core::FencingToken;
/// assert_eq!(i64::try_from(FencingToken::new(7)), Ok(7));
/// ```
impl TryFrom<FencingToken> for i64 {
    type Error = std::num::TryFromIntError;

    fn try_from(token: FencingToken) -> Result<Self, Self::Error> {
        token.0.try_into()
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The resource's side of fencing, for a resource in this process: remembers the highest token.
///
/// ```
/// use lockkit_core::{Fence, FencingToken};
///
/// let fence = Fence::new();
/// assert!(fence.admit(FencingToken::new(7)));
/// assert!(fence.admit(FencingToken::new(7)), "the same grant may write again");
/// assert!(fence.admit(FencingToken::new(9)));
/// assert!(!fence.admit(FencingToken::new(8)), "an older grant woke up late");
/// ```
#[derive(Debug, Default)]
pub struct Fence {
    highest: AtomicU64,
}

impl Fence {
    /// Creates a fence that has seen no token yet.
    pub const fn new() -> Self {
        Self { highest: AtomicU64::new(0) }
    }

    /// Returns whether a write with this token may be applied, and remembers the token if so.
    ///
    /// The result is valid only at the moment of the call. Apply the write under the same exclusion (mutex,
    /// transaction) as the check, or a newer write may come in between.
    #[must_use = "a write whose token was not admitted must not be applied"]
    pub fn admit(&self, token: FencingToken) -> bool {
        self.highest.fetch_max(token.0, Ordering::AcqRel) <= token.0
    }

    /// Returns the highest token admitted so far.
    pub fn highest(&self) -> Option<FencingToken> {
        match self.highest.load(Ordering::Acquire) {
            0 => None,
            number => Some(FencingToken(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn token_may_write_again_until_a_newer_one_has() {
        let (fence, [old, new]) = (Fence::new(), [FencingToken::new(7), FencingToken::new(8)]);
        assert!(fence.admit(old) && fence.admit(old));
        assert!(fence.admit(new) && !fence.admit(old) && fence.admit(new));
    }

    proptest! {
        #[test]
        fn admitted_tokens_never_fall(numbers in proptest::collection::vec(1_u64..50, 1..100)) {
            let fence = Fence::new();
            let admitted: Vec<u64> =
                numbers.iter().copied().filter(|number| fence.admit(FencingToken::new(*number))).collect();
            prop_assert!(admitted.is_sorted());
            prop_assert_eq!(admitted.last().copied(), numbers.iter().max().copied());
            prop_assert_eq!(fence.highest().map(FencingToken::get), admitted.last().copied());
        }
    }
}
