//! A server in the process, for the unit tests of this crate.

pub(crate) mod scripted;
mod store;
