//! What guards have of a hold: a share each. The last one that is given back ends the hold.

use std::{fmt, sync::Arc};

use super::{ending::Ending, hold::Hold};
use crate::Result;

/// What follows the end of a hold, for the one call that ended it.
#[must_use = "the hold is not released otherwise"]
pub(crate) struct Left(Option<Ending>);

impl Left {
    pub(crate) fn new(ending: Option<Ending>) -> Self {
        Self(ending)
    }

    pub(crate) fn start(self, hold: &Arc<Hold>) {
        if let Some(ending) = self.0 {
            ending.start(Arc::clone(hold));
        }
    }
}

/// One guard's share of a hold; dropping it gives the share back.
pub(crate) struct HoldShare {
    hold: Arc<Hold>,
    /// Whether the share was given back already.
    has_left: bool,
}

impl HoldShare {
    pub(crate) fn new(hold: &Arc<Hold>) -> Self {
        Self { hold: Arc::clone(hold), has_left: false }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// Gives the share back. If this was the last guard, the release is now pending: returns the hold, and what starts
    /// the release, unless another call does.
    ///
    /// # Errors
    ///
    /// `Lost` if the hold had ended before.
    pub(crate) fn leave(mut self) -> Result<Option<(Arc<Hold>, Option<Ending>)>> {
        self.has_left = true;
        let (hold, left) = (Arc::clone(&self.hold), self.hold.leave());
        if let Some(lost) = hold.loss() {
            left.start(&hold);
            return Err(lost);
        }
        Ok(hold.end().is_some().then_some((hold, left.0)))
    }
}

impl Drop for HoldShare {
    fn drop(&mut self) {
        if !self.has_left {
            self.hold.leave().start(&self.hold);
        }
    }
}

impl fmt::Debug for HoldShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.fmt(f)
    }
}
