//! The program as users run it: the real binary, real processes, real stores.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests are tests")]

mod config;
mod doctor;
mod documents;
#[cfg(feature = "etcd")]
mod etcd;
mod exclusion;
mod habits;
mod harness;
mod killed;
mod messages;
mod nesting;
mod operate;
#[cfg(feature = "redis")]
mod patience;
mod periods;
mod processes;
#[cfg(feature = "redis")]
mod redlock;
mod secrets;
mod signals;
mod statuses;
mod store;
mod terminal;
mod tls;
mod usage;
