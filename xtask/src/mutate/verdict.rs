//! What a mutation showed.

use std::fmt;

/// What a mutation showed; the later, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// The tests failed, as they should.
    Red,
    /// They were still running after the time limit.
    RedByTimeout,
    /// They passed, and the patch says why.
    Survives,
    /// They passed: nothing guards the step that was removed.
    StillGreen,
    /// They passed without running the mutated function once.
    NeverReached,
    /// The code has moved away from under the patch.
    DoesNotApply,
    DoesNotCompile,
    /// The line `# red:` matches no test.
    NoSuchTest,
    /// The tests fail without the mutation too, and so prove nothing.
    RedWithoutMutation,
}

impl Verdict {
    pub(super) fn is_red(self) -> bool {
        matches!(self, Self::Red | Self::RedByTimeout)
    }

    /// Whether it is red, or known not to be.
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
