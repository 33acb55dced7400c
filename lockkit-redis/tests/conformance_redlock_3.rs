//! The conformance suite on three independent masters.

mod redlock;

use std::process::ExitCode;

use self::redlock::RedlockHarness;

fn main() -> ExitCode {
    lockkit_conformance::main(RedlockHarness::<3>::new("redlock-3", &[]))
}
