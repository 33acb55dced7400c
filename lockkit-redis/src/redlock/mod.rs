//! Redlock with fencing tokens: independent Redis servers, of which a majority grants a lock.
//!
//! What may go wrong, before how it works:
//!
//! * A client wins a majority, and stalls until its keys have ended: its token tells its writes from those of the next
//!   holder. Redlock alone has no such token; a counter on one server would be lost with it.
//! * Half of the nodes give the lock to one client, the others to another: both take everything back.
//! * A reply is lost, or comes late: the request is owned by a task until it is known what it did, and what it did for an
//!   attempt that is over is taken back.
//! * A node restarts without its data, and would give a lock a second time: it has lost its marker too, and does not count.
//! * Two clients use different sets of nodes, which have majorities that do not meet: the marker names the set, and which
//!   of its nodes this is ([`members`]).
//! * A lock comes back at a node after its release (a late restore): the release has raised the counter above its token.
//! * The client's clock jumps: it is a proposal for a counter, nothing more.
//!
//! How it works, per node one counter for each lock:
//!
//! * *Ask* all nodes ([`attempt`]): each that is free takes the claim in, and answers its counter, which it has raised by
//!   one, or to the client's clock where that is higher. **One and the same value from a majority is the token.**
//! * *Write back* otherwise: the token is one above all values that were answered; it counts when a majority still has
//!   the claim, and a counter that is not above the token, and has made the token its counter.
//! * *Release* and clean-up ([`ending`]), at all nodes: the counter passes the token of a grant.
//! * *Renew* and restore ([`renew`]).
//! * *Rejoin* ([`rejoin`]), after the first [`init`].
//!
//! Two grants' majorities share a node. There the later claim came after the earlier one had ended, and found its token
//! in the counter, or above it. That holds for any clocks, and whatever ends early, as long as counters are kept.

mod acquire;
mod admin;
mod attempt;
mod backend;
mod calls;
mod config;
mod ending;
mod hints;
mod join;
mod marker;
mod members;
mod node;
mod nodes;
mod rejoin;
mod renew;
mod session;
mod setup;
mod tally;
mod validity;
mod warnings;

pub use self::{
    backend::RedlockBackend,
    config::{RedlockConfig, SCHEME_REDLOCK, SCHEME_REDLOCK_TLS},
    setup::{SetUp, init},
};
