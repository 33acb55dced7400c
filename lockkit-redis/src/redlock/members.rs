//! Which node of the set each address of the URL leads to.
//!
//! What may be wrong, and would let two clients have majorities that share no node:
//!
//! * The URL names more nodes than the set has, or fewer, or nodes of different sets: refused when the client connects.
//! * Two addresses lead to one node, by an alias or a proxy: it counts once.
//! * Nodes exchange their addresses under a running client: each is known by what it says, and none counts twice while they
//!   move.
//! * An address leads to another set's node, found out only later: it does not count.
//! * An address leads to a server without data. Whether that is a node of the set which has lost them, or a new server,
//!   the server cannot tell. It is taken for the node that this client has found there before, or for the one that had the
//!   same name when the set was set up; otherwise nobody lets it in.
//!
//! So addresses need not be spelled alike by all clients: nodes tell who they are.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkit_core::ErrorKind;

use super::{
    calls::Found,
    marker::{Marker, Seat, joined, split},
};
use crate::error::{Effect, Fault};

/// What a client knows of the set that it uses.
#[derive(Debug)]
pub(super) struct Members {
    /// By address, as the URL has them.
    names: Vec<String>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    set: Option<Set>,
    /// By address: the number of the node that was found there.
    numbers: Vec<Option<usize>>,
    /// How many times a known node was not found at its address any more.
    moves: u64,
}

/// The set that a majority belongs to.
#[derive(Debug)]
struct Set {
    /// One of its nodes.
    seat: Seat,
    /// What its nodes were called when it was set up.
    names: Vec<String>,
}

impl Set {
    fn seat(&self, number: usize) -> Seat {
        Seat { number, ..self.seat.clone() }
    }
}

impl Known {
    /// Another node is at this address: the one that was there may be at any other one now, so nodes may change places.
    fn forget_unless(&mut self, address: usize, number: usize) {
        if let Some(moved) =
            self.numbers.get_mut(address).and_then(|known| known.take_if(|old| *old != number))
        {
            self.moves += 1;
            tracing::info!(node = moved, "another node has its address now");
        }
    }
}

impl Members {
    pub(super) fn new(names: Vec<String>) -> Self {
        let numbers = vec![None; names.len()];
        Self { names, known: Mutex::new(Known { numbers, ..Known::default() }) }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Decides that this is the set, by a node that a majority agrees with.
    pub(super) fn settle(&self, seat: &Seat, names: &str) {
        self.lock().set = Some(Set { seat: seat.clone(), names: split(names) });
    }

    /// Notes which node was found at this address.
    ///
    /// # Errors
    ///
    /// It must not count: it is another set's, or was found at another address, too.
    pub(super) fn admit(&self, address: usize, found: &Found) -> Result<(), Fault> {
        let Marker::Ready(seat) = Marker::parse(&found.marker) else { return Ok(()) };
        let mut known = self.lock();
        if known.set.as_ref().is_some_and(|set| set.seat(seat.number) != seat) {
            return Err(of_another_set());
        }
        known.forget_unless(address, seat.number);
        let twice = known.numbers.iter().position(|number| *number == Some(seat.number));
        if let Some(other) = twice.filter(|other| *other != address) {
            let name = self.names.get(other).map_or("", String::as_str);
            return Err(stranger(format!("it is the same node as {name}")));
        }
        if let Some(number) = known.numbers.get_mut(address) {
            *number = Some(seat.number);
        }
        Ok(())
    }

    /// Whether what was found counts in a set that is not this one.
    pub(super) fn is_of_another_set(&self, found: &Found) -> bool {
        let Marker::Ready(seat) = Marker::parse(&found.marker) else { return false };
        self.lock().set.as_ref().is_some_and(|set| set.seat(seat.number) != seat)
    }

    /// Which state of affairs this is. While it stays, no node is asked at two addresses: whatever is counted by address
    /// counts each node once.
    pub(super) fn moves(&self) -> u64 {
        self.lock().moves
    }

    /// The marker of the node that was found at this address.
    pub(super) fn marker(&self, address: usize) -> Option<String> {
        let known = self.lock();
        let number = known.numbers.get(address).copied().flatten()?;
        Some(known.set.as_ref()?.seat(number).ready())
    }

    /// The node that a server without data at this address must be: who it was, or whose name it has.
    pub(super) fn rightful(&self, address: usize) -> Option<Seat> {
        let known = self.lock();
        let set = known.set.as_ref()?;
        let by_name = || {
            let name = self.names.get(address)?;
            let number = 1 + set.names.iter().position(|one| one == name)?;
            (!known.numbers.contains(&Some(number))).then_some(number)
        };
        let number = known.numbers.get(address).copied().flatten().or_else(by_name)?;
        Some(set.seat(number))
    }

    /// What the nodes of the set were called at its set-up, as every node keeps it.
    pub(super) fn names_of_set(&self) -> String {
        self.lock().set.as_ref().map(|set| joined(&set.names)).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn of_another_set() -> Fault {
    stranger("it is a node of another set".to_owned())
}

fn stranger(message: String) -> Fault {
    Fault::new(Effect::Refused, ErrorKind::InvalidConfig, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(number: usize) -> Seat {
        Seat { set: "5f0c".to_owned(), max_ttl_ms: 60_000, number, of: 3 }
    }

    fn found(seat: &Seat) -> Found {
        Found { marker: seat.ready(), highest: 0, names: "a:1\nb:1\nc:1".to_owned() }
    }

    fn members(names: [&str; 3]) -> Members {
        let members = Members::new(names.map(str::to_owned).into());
        members.settle(&seat(2), &found(&seat(2)).names);
        members
    }

    #[test]
    fn nodes_are_known_by_their_markers_whatever_they_are_called() {
        let members = members(["x:1", "c:1", "y:1"]);
        members.admit(0, &found(&seat(3))).unwrap();
        members.admit(1, &found(&seat(1))).unwrap();
        assert_eq!(members.marker(0), Some(seat(3).ready()));
        assert_eq!((members.marker(1), members.marker(2)), (Some(seat(1).ready()), None));
        assert_eq!(members.rightful(0), Some(seat(3)), "it was found there");
        assert_eq!(members.rightful(2), None, "no node of the set had that name");
    }

    #[test]
    fn a_node_of_another_set_and_one_that_is_met_twice_do_not_count() {
        let members = members(["a:1", "b:1", "c:1"]);
        members.admit(0, &found(&seat(1))).unwrap();
        members.admit(0, &found(&seat(1))).unwrap();
        for wrong in [
            seat(1),
            Seat { set: "0000".to_owned(), ..seat(2) },
            Seat { of: 5, ..seat(2) },
            Seat { max_ttl_ms: 1, ..seat(2) },
        ] {
            assert_eq!(members.admit(1, &found(&wrong)).unwrap_err().kind(), ErrorKind::InvalidConfig);
            assert_eq!(members.marker(1), None, "{wrong}");
        }
    }

    #[test]
    fn nodes_that_change_places_are_known_again_and_that_is_noted() {
        let members = members(["a:1", "b:1", "c:1"]);
        for number in 0..3 {
            members.admit(number, &found(&seat(number + 1))).unwrap();
        }
        let before = members.moves();
        members.admit(0, &found(&seat(2))).unwrap_err();
        assert_ne!(members.moves(), before);
        members.admit(1, &found(&seat(1))).unwrap();
        members.admit(0, &found(&seat(2))).unwrap();
        assert_eq!((members.marker(0), members.marker(1)), (Some(seat(2).ready()), Some(seat(1).ready())));
        let moves = members.moves();
        members.admit(0, &found(&seat(2))).unwrap();
        assert_eq!(members.moves(), moves, "it is where it was");
    }

    #[test]
    fn an_empty_server_is_the_node_of_its_name_unless_that_is_elsewhere() {
        let members = members(["a:1", "x:1", "c:1"]);
        assert_eq!(members.rightful(2), Some(seat(3)));
        members.admit(1, &found(&seat(3))).unwrap();
        assert_eq!(members.rightful(2), None, "it was found at another address");
    }
}
