//! The backend on a real etcd. The tests drive sessions claim by claim, while servers, operators and other programs
//! interfere.
#![cfg(test)]

mod admin;
mod breaking;
mod budget;
mod cancel;
mod chaos;
mod client;
mod cluster;
mod common;
mod elections;
mod evidence;
mod fallbacks;
mod faults;
mod foreign_keys;
mod grants;
mod handoff;
mod heartbeats;
mod linearizable;
mod login;
mod lost_replies;
mod pins;
mod records;
mod refusals;
mod rights;
mod rpc;
mod setting;
mod successors;
#[cfg(feature = "tls")]
mod tls;
mod unreported;
mod waiting;
mod watch;
