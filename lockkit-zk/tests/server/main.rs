//! The backend on a real ZooKeeper: sessions driven by hand, claim by claim, while servers, operators and other programs
//! do their worst.
#![cfg(test)]

mod bad_input;
mod budget;
mod cancel;
mod common;
mod fallbacks;
mod faults;
mod foreign;
mod grants;
mod heartbeats;
mod lost_replies;
mod names;
#[cfg(feature = "zookeeper-client-0-11")]
mod owned;
mod refusals;
mod secure;
mod waits;
mod warnings;
