//! Redlock on real masters: scripts, set-up, request counts, and other clients of the same nodes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test program")]

mod admin;
mod attempts;
mod budget;
mod costs;
mod counting;
mod elections;
mod foreign;
mod memory;
mod records;
#[path = "../harness/redlock/mod.rs"]
mod redlock;
mod scripts;
mod sets;
mod setup;
mod waiting;
mod warnings;
