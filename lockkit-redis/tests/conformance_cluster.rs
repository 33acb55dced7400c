//! The conformance suite on a Redis Cluster.

mod harness;

use std::process::ExitCode;

use lockkit_testbed::RedisCluster;

use self::harness::RedisHarness;

fn main() -> ExitCode {
    lockkit_conformance::main(RedisHarness::<RedisCluster>::new())
}
