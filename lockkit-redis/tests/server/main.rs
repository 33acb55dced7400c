//! The backend on a real Redis, with sessions and claims driven directly, without a keeper. Servers fail, and operators
//! and other programs interfere.
#![cfg(test)]

mod admin;
mod bad_input;
mod budget;
mod claims;
mod cluster;
mod common;
mod elections;
mod evidence;
mod fairness;
mod fallbacks;
mod faults;
mod lifetimes;
mod listing;
mod logins;
mod memory;
mod misdirected;
mod moving_slots;
mod observed;
mod options;
#[path = "../harness/patient.rs"]
mod patient;
mod pins;
mod pollers;
mod pushes;
mod queue;
mod raw;
mod records;
mod replicas;
#[path = "../harness/rights.rs"]
mod rights;
mod scripts;
mod sentinels;
#[cfg(feature = "tls")]
mod tls;
mod topologies;
