//! The backend on a real Redis: sessions driven by hand, claim by claim, while servers, operators and other programs do
//! their worst.
#![cfg(test)]

mod bad_input;
mod budget;
mod claims;
mod cluster;
mod common;
mod fairness;
mod fallbacks;
mod faults;
mod memory;
mod moving_slots;
mod options;
mod pollers;
mod queue;
mod raw;
mod replicas;
#[path = "../harness/rights.rs"]
mod rights;
mod scripts;
mod sentinels;
#[cfg(feature = "tls")]
mod tls;
mod topologies;
