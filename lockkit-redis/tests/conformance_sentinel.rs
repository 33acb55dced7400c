//! The conformance suite on Redis with Sentinels.

mod harness;

use std::process::ExitCode;

use lockkit_testbed::RedisSentinels;

use self::harness::RedisHarness;

fn main() -> ExitCode {
    lockkit_conformance::main(RedisHarness::<RedisSentinels>::new())
}
