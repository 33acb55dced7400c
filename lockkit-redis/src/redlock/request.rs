//! A call of a script at a node.

use std::borrow::Cow;

use redis::{Arg, Cmd};

use crate::wire::Script;

/// The key where a node keeps its marker.
pub(super) const NODE: &str = "lockkit:redlock";

/// A script and its arguments, for any node.
#[derive(Clone, Debug)]
pub(super) struct Request {
    script: &'static Script,
    /// The call by the digest of the script; without its last argument, the marker, if the node must have one.
    call: Cmd,
    needs_marker: bool,
}

impl Request {
    /// A request that a node answers only if its marker is the expected one. The key of the marker is passed as the last
    /// key.
    pub(super) fn at_member(script: &'static Script, keys: &[&str]) -> Self {
        let call = call(script, keys.len() + 1, keys.iter().copied().chain([NODE]));
        Self { script, call, needs_marker: true }
    }

    /// A request that any node answers.
    pub(super) fn at_any(script: &'static Script, key: &str) -> Self {
        Self { script, call: call(script, 1, [key]), needs_marker: false }
    }

    pub(super) fn arg(mut self, argument: &str) -> Self {
        self.call.arg(argument);
        self
    }

    pub(super) fn number(mut self, argument: u64) -> Self {
        self.call.arg(argument);
        self
    }

    /// Whether only nodes that count may answer it.
    pub(super) fn needs_marker(&self) -> bool {
        self.needs_marker
    }

    /// The call for the node with this marker.
    pub(super) fn to(&self, marker: &str) -> Cow<'_, Cmd> {
        if self.needs_marker {
            Cow::Owned(self.copy(["EVALSHA", self.script.digest()], Some(marker)))
        } else {
            Cow::Borrowed(&self.call)
        }
    }

    /// The same call with the whole script, for a node that does not have it (any more).
    pub(super) fn in_full_to(&self, marker: &str) -> Cmd {
        self.copy(["EVAL", self.script.source()], self.needs_marker.then_some(marker))
    }

    fn copy(&self, first: [&str; 2], marker: Option<&str>) -> Cmd {
        let words = || {
            let rest = self.call.args_iter().skip(first.len()).filter_map(|word| match word {
                Arg::Simple(word) => Some(word),
                _ => None,
            });
            first.into_iter().map(str::as_bytes).chain(rest).chain(marker.map(str::as_bytes))
        };
        let mut copy = Cmd::with_capacity(words().count(), words().map(<[u8]>::len).sum());
        words().for_each(|word| {
            copy.arg(word);
        });
        copy
    }
}

/// The beginning of a call, up to its keys.
fn call<'a>(script: &Script, count: usize, keys: impl IntoIterator<Item = &'a str>) -> Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(script.digest()).arg(count);
    keys.into_iter().for_each(|key| {
        call.arg(key);
    });
    call
}
