//! The backend on a real Redis: sessions driven by hand, claim by claim, while servers, operators and other programs do
//! their worst.
#![cfg(test)]

mod bad_input;
mod budget;
mod claims;
mod cluster;
mod common;
mod fairness;
mod faults;
mod memory;
mod options;
mod queue;
mod raw;
#[path = "../harness/rights.rs"]
mod rights;
mod scripts;
#[cfg(feature = "tls")]
mod tls;
mod topologies;
