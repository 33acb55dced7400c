//! Tests that need root: several users of one folder, and mounted file systems. Without root every test is ignored,
//! with the reason.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test program")]

mod access;
mod file_systems;
mod fuse;
mod hanging;
mod process;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};

/// Name and body of a test; it panics if it fails.
type Test = (&'static str, fn());

fn main() -> ExitCode {
    if let Some(exit) = process::play_role_if_asked() {
        return exit;
    }
    let why_not =
        (!rustix::process::geteuid().is_root()).then_some("needs root to become other users and to mount");
    let trial = |(name, test): Test| {
        Trial::ignorable_test(name, move || {
            Ok(match why_not {
                Some(reason) => Completion::ignored_with(reason),
                None => {
                    test();
                    Completion::Completed
                }
            })
        })
    };
    let trials =
        [access::TESTS, file_systems::TESTS, hanging::TESTS].concat().into_iter().map(trial).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
