//! The verdict on a mutation.

use std::fmt;

/// The verdict on a mutation, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// The tests failed, as they should.
    Red,
    /// They were still running after the time limit.
    RedByTimeout,
    /// They passed, and the patch says why.
    Survives,
    /// They passed: no test guards the removed step.
    StillGreen,
    /// They passed without running the mutated function.
    NeverReached,
    /// The code under the patch has changed.
    DoesNotApply,
    DoesNotCompile,
    /// The line `# red:` matches no test.
    NoSuchTest,
    /// The tests fail without the mutation, too, and so prove nothing.
    RedWithoutMutation,
}

impl Verdict {
    pub(super) fn is_red(self) -> bool {
        matches!(self, Self::Red | Self::RedByTimeout)
    }

    /// Whether it is red, or known to survive.
    pub(super) fn is_as_expected(self) -> bool {
        self.is_red() || self == Self::Survives
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Red => "red",
            Self::RedByTimeout => "red (timeout)",
            Self::Survives => "survives, as known",
            Self::StillGreen => "STILL GREEN",
            Self::NeverReached => "NEVER REACHED",
            Self::DoesNotApply => "PATCH DOES NOT APPLY",
            Self::DoesNotCompile => "DOES NOT COMPILE",
            Self::NoSuchTest => "NO SUCH TEST",
            Self::RedWithoutMutation => "RED WITHOUT MUTATION",
        })
    }
}
