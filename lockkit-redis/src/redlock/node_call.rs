//! A call of a script at a node.

use std::borrow::Cow;

use crate::wire::{Call, Script};

/// The key where a node keeps its marker.
pub(super) const NODE: &str = "lockkit:redlock";

/// A script and its arguments, for any node.
#[derive(Clone, Debug)]
pub(super) struct NodeCall {
    /// Without its last argument, the marker, if the node must have one.
    call: Call,
    needs_marker: bool,
}

impl NodeCall {
    /// Returns a call that a node executes only if its marker is the expected one. The key of the marker is passed as
    /// the last key.
    pub(super) fn at_member(script: &'static Script, keys: &[&str]) -> Self {
        Self { call: Call::about(script, &[keys, &[NODE]].concat()), needs_marker: true }
    }

    /// Returns a call that any node executes.
    pub(super) fn at_any(script: &'static Script, key: &str) -> Self {
        Self { call: Call::about(script, &[key]), needs_marker: false }
    }

    pub(super) fn arg(mut self, argument: &str) -> Self {
        self.call = self.call.arg(argument);
        self
    }

    pub(super) fn number(mut self, argument: u64) -> Self {
        self.call = self.call.arg(argument);
        self
    }

    /// Returns whether only nodes that count may execute it.
    pub(super) fn needs_marker(&self) -> bool {
        self.needs_marker
    }

    /// Returns the call for the node with this marker.
    pub(super) fn to(&self, marker: &str) -> Cow<'_, Call> {
        if self.needs_marker { Cow::Owned(self.call.clone().arg(marker)) } else { Cow::Borrowed(&self.call) }
    }
}
