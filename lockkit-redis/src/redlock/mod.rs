//! Redlock with fencing tokens: independent Redis servers ("nodes"), of which a majority grants a lock.
//!
//! # What can go wrong
//!
//! * A client wins a majority and stalls until its keys have expired. Its token is smaller than that of the next
//!   holder, so a resource can refuse its writes. Plain Redlock has no such token, and one counter on one server would
//!   be lost with that server.
//! * Half of the nodes grant the lock to one client, the other half to another. Both clients remove their keys and
//!   retry.
//! * A reply is lost or late. The request continues in the background until its effect is known, and what it did for an
//!   attempt that is over is removed.
//! * A node restarts without its data and could grant a lock twice. It has lost its marker too, so its replies do not
//!   count.
//! * Two clients use different sets of nodes, whose majorities need not overlap. The marker names the set and the node
//!   ([`membership`]).
//! * A lock is written back to a node after its release (a late restore). A client that has sent a restore makes its
//!   release raise the counters above the token, so the node refuses.
//! * A client's clock jumps. The clock is only a proposal for a counter.
//!
//! # How it works
//!
//! Each node keeps one counter per lock.
//!
//! * *Ask* ([`attempt`]): every node is asked. A node where the lock is free takes the claim, and replies with its
//!   counter, raised by one or to the client's clock if that is higher. **If a majority replies with the same value,
//!   that value is the token.**
//! * *Write back*, otherwise: the token is one above all replied values. It is valid once a majority still has the
//!   claim, had no counter above the token, and has stored the token as its counter.
//! * *Release* and clean-up ([`release`]), at all nodes. After a restore, the release raises the counter above the token.
//! * *Renew* and restore ([`heartbeat`]).
//! * *Set up* with [`init`], and *rejoin* after a loss of data ([`membership`]).
//!
//! # Why tokens rise
//!
//! The majorities of two grants share a node. At that node the later claim came after the earlier one had ended, and
//! found the counter at or above the earlier token. This holds for any clocks and any early expiry, as long as counters
//! are kept.
//!
//! # What else a session offers
//!
//! * *Elections* ([`elections`]): the claim that a majority has is the leader. What it proposes is the metadata with the
//!   highest number at the nodes with that claim. A node compares the lock's value before it stores a proposal, and a
//!   restored lock gets the token and the newest proposal, so any majority knows both. Observers poll.
//! * *Records* ([`records`]): a majority stores the record with the token of its grant, where the grant still has the
//!   lock; a read needs a majority that cannot have lost it. A node that came back after a loss of data says up to
//!   which token it may lack records.
//!
//! Not offered:
//!
//! * *Pins*. The holder of a pin may be gone, so nobody restores the lock at a node that has lost its data. Such a node
//!   counts again after the longest ttl (60 s unless configured): with one more node that never had the lock, it would
//!   be a majority for another claim while the pin lasts. A pin could last for the longest ttl at most, which is too
//!   short for what pins are for, and a longer one keeps emptied nodes out for as long.
//! * *Evidence*. Data live at one server, the lock at a majority of several: no single server can tell who holds it.

mod admin;
mod backend;
mod config;
mod hints;
mod lock_view;
mod membership;
mod node;
mod node_call;
mod nodes;
mod round;
mod session;
mod wire;

pub use self::{
    backend::RedlockBackend,
    config::{RedlockConfig, SCHEME_REDLOCK, SCHEME_REDLOCK_TLS},
    membership::{SetUp, init},
};
