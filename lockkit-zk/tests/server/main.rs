//! The backend on a real ZooKeeper: sessions driven claim by claim, under faults of servers, operators and other
//! programs.
#![cfg(test)]

mod admin;
mod bad_input;
mod breaking;
mod budget;
mod busy;
mod cancel;
mod common;
mod deletions;
mod elections;
mod evidence;
mod fallbacks;
mod faults;
mod foreign;
mod grants;
mod heartbeats;
mod late_requests;
mod leader_watches;
mod leases;
mod lost_replies;
mod names;
#[cfg(feature = "zookeeper-client-0-11")]
mod owned;
mod records;
mod refusals;
mod secure;
mod silent;
mod sleeping_machines;
mod slow_operators;
mod tries;
mod unreachable;
mod waits;
mod warnings;
