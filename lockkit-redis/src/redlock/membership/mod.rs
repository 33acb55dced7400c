//! Which servers are the nodes of a set, and which of them count.
//!
//! Majorities of two clients share a node only if both clients use the same set. So a set is made once, by [`init`],
//! and every node keeps a [`marker`] that names the set, the node's number in it, and the longest ttl. Every script
//! compares the whole marker and returns nothing that counts if it differs.
//!
//! 1. *Set-up* ([`setup`]): `init` gives every node its marker, in two steps, so that it can be interrupted and
//!    repeated. Only an explicit `init` distinguishes new nodes from nodes that have lost their data.
//! 2. *Connecting* ([`join`](mod@join)): a client reads the markers. It needs a majority of one set, with its own
//!    number of nodes and its own longest ttl. Otherwise it fails and reports what to do.
//! 3. *While connected* ([`members`]): the client records which node is behind each address of its URL, by the marker
//!    alone. A node that is reached by two addresses counts once; a node of another set does not count.
//! 4. *After a loss of data* ([`rejoin`]): a node without its marker counts again only after one longest ttl, when no
//!    lock that it granted before can be held any more, and with a counter that is at least the highest of a majority,
//!    read from other nodes. A client brings back only a node that it has met at that address, or whose name in the URL
//!    is its name at the set-up.
//! 5. *A set is replaced*, never changed: all clients stop, the markers are deleted, `init` runs again. Sessions of the
//!    old set end when a majority counts in another one.
//!
//! Not covered: data that a node loses without losing its marker, as by a restart from a snapshot or by a failover to a
//! replica. [`warnings`] are logged for nodes that are configured so.
//!
//! Decisions 0013 and 0014 in `docs/decisions/` give the reasons.

mod join;
mod marker;
mod members;
mod rejoin;
mod setup;
mod warnings;

pub use self::setup::{SetUp, init};
pub(super) use self::{
    join::{join, look_at_majority},
    marker::NO_MARKER,
    members::{Members, other_set_fault},
    rejoin::{NodeStatus, Rejoiner},
    warnings::warn_in_background,
};
