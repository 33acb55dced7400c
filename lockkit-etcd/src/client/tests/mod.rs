//! A server in the process, for the unit tests of this crate.

mod pings;
pub(crate) mod scripted;
mod store;
