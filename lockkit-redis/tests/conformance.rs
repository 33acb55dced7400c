//! The conformance suite on one Redis server.

mod harness;

use std::process::ExitCode;

use lockkit_testbed::Redis;

use self::harness::RedisHarness;

fn main() -> ExitCode {
    lockkit_conformance::main(RedisHarness::<Redis>::new())
}
