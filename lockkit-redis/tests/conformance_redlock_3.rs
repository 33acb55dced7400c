//! The conformance suite on three independent masters: the cases that depend on the number of nodes.

#[path = "harness/redlock/mod.rs"]
mod redlock;

use std::process::ExitCode;

use self::redlock::{RedlockHarness, three};

fn main() -> ExitCode {
    lockkit_conformance::main(RedlockHarness::<3>::new("redlock-3", &[]).without(&three::LEFT_OUT))
}
