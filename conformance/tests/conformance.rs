//! The conformance suite on the memory backend.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkit_conformance::main(lockkit_conformance::memory::MemoryHarness)
}
