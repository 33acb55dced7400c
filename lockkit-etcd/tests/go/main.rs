//! Elections that are shared with etcd's own Go package `concurrency`. Without Go, or without the sources of that
//! package (Debian: golang-etcd-server-dev), every test is ignored, with the reason.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test program")]

mod election;
mod program;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};
use lockkit_testbed::Etcd;

/// Name and body of a test; it panics if it fails.
type Test = (&'static str, fn(&Etcd));

const TESTS: [Test; 3] = [
    ("go_sees_our_leader_and_its_proclamations", election::go_sees_ours),
    ("we_see_the_leader_of_go_and_its_proclamations", election::we_see_theirs),
    ("candidates_of_both_kinds_follow_each_other", election::both_campaign),
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let trial = |(name, test): Test| {
        Trial::ignorable_test(name, move || match program::why_not() {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => {
                test(&Etcd::start().map_err(|error| error.to_string())?);
                Ok(Completion::Completed)
            }
        })
    };
    libtest_mimic::run(&arguments, TESTS.into_iter().map(trial).collect()).exit_code()
}
