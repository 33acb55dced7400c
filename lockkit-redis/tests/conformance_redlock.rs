//! The conformance suite on five independent masters, and cases that only Redlock has.

#[path = "harness/redlock/mod.rs"]
mod redlock;

use std::process::ExitCode;

use self::redlock::{RedlockHarness, cases};

fn main() -> ExitCode {
    lockkit_conformance::main(RedlockHarness::<5>::new("redlock", &cases::CASES))
}
