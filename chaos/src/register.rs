//! The resource behind a lock: two counters outside of the store under test.
//!
//! The holder of the lock reads both and writes them back plus one. The *fenced* one refuses every read and write with
//! a token below the highest it has seen. The *unfenced* one accepts all, like a resource that relies on the lock
//! alone. An update is lost when another client has written between its read and its write.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::wire::{ClientId, Reading, RegisterRequest};

/// The registers of all locks, and a log of their use.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    locks: BTreeMap<String, RegisterPair>,
    log: Vec<Access>,
}

/// The two registers of one lock.
#[derive(Debug, Default)]
struct RegisterPair {
    fenced: u64,
    /// The highest token that has read or written.
    highest: u64,
    /// The highest token that has written, also if the write was refused.
    highest_written: u64,
    unfenced: u64,
}

/// One read or write.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Access {
    pub(crate) at: Duration,
    pub(crate) lock: String,
    pub(crate) client: ClientId,
    pub(crate) token: u64,
    pub(crate) is_write: bool,
    /// Whether the fenced register admitted it. (A write after a refused read is not repeated.)
    pub(crate) is_admitted: bool,
    /// A write that was admitted although another client had written since its read.
    pub(crate) lost_fenced: bool,
    /// The same at the unfenced register.
    pub(crate) lost_unfenced: bool,
}

impl Registers {
    /// Reads or writes both registers of a lock.
    pub(crate) fn serve(
        &mut self,
        at: Duration,
        client: ClientId,
        lock: &str,
        token: u64,
        request: RegisterRequest,
    ) -> Reading {
        let pair = self.locks.entry(lock.to_owned()).or_default();
        let is_admitted = token >= pair.highest;
        pair.highest = pair.highest.max(token);
        let mut entry = Access {
            at,
            lock: lock.to_owned(),
            client,
            token,
            is_write: false,
            is_admitted,
            lost_fenced: false,
            lost_unfenced: false,
        };
        if let RegisterRequest::Write { read } = request {
            entry.is_write = true;
            pair.highest_written = pair.highest_written.max(token);
            entry.lost_unfenced = read.unfenced != pair.unfenced;
            pair.unfenced = read.unfenced + 1;
            if let Some(value) = read.fenced.filter(|_| is_admitted) {
                entry.lost_fenced = value != pair.fenced;
                pair.fenced = value + 1;
            }
        }
        self.log.push(entry);
        Reading { fenced: is_admitted.then_some(pair.fenced), unfenced: pair.unfenced }
    }

    /// Everything so far, in order.
    pub(crate) fn log(&self) -> &[Access] {
        &self.log
    }

    /// Whether a client with a higher token has written this lock's registers.
    pub(crate) fn is_overtaken(&self, lock: &str, token: u64) -> bool {
        self.locks.get(lock).is_some_and(|pair| pair.highest_written > token)
    }

    /// Whether the holder of this token has written this lock's registers.
    pub(crate) fn has_written(&self, lock: &str, token: u64) -> bool {
        // The latest entries are at the end.
        self.log.iter().rev().any(|entry| entry.is_write && entry.token == token && entry.lock == lock)
    }

    /// The value of the fenced register of each lock.
    pub(crate) fn fenced(&self) -> impl Iterator<Item = (&str, u64)> {
        self.locks.iter().map(|(lock, pair)| (&**lock, pair.fenced))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: ClientId = ClientId { slot: 0, generation: 0 };
    const LATE: ClientId = ClientId { slot: 1, generation: 0 };

    fn serve(registers: &mut Registers, client: ClientId, token: u64, request: RegisterRequest) -> Reading {
        registers.serve(Duration::ZERO, client, "a", token, request)
    }

    #[test]
    fn stale_write_is_refused_by_the_fenced_register_and_loses_an_update_of_the_other() {
        let mut registers = Registers::default();
        let stale = serve(&mut registers, EARLY, 1, RegisterRequest::Read);
        let fresh = serve(&mut registers, LATE, 2, RegisterRequest::Read);
        serve(&mut registers, LATE, 2, RegisterRequest::Write { read: fresh });
        assert!(registers.is_overtaken("a", 1) && !registers.is_overtaken("a", 2));
        assert!(registers.has_written("a", 2) && !registers.has_written("a", 1));
        serve(&mut registers, EARLY, 1, RegisterRequest::Write { read: stale });
        let last = registers.log().last().unwrap();
        assert!(last.is_write && !last.is_admitted && last.lost_unfenced && !last.lost_fenced);
        assert_eq!(registers.fenced().collect::<Vec<_>>(), [("a", 1)]);
    }

    #[test]
    fn two_holders_with_one_token_lose_an_update_of_the_fenced_register() {
        let mut registers = Registers::default();
        let [one, other] =
            [EARLY, LATE].map(|client| serve(&mut registers, client, 1, RegisterRequest::Read));
        serve(&mut registers, EARLY, 1, RegisterRequest::Write { read: one });
        serve(&mut registers, LATE, 1, RegisterRequest::Write { read: other });
        assert!(registers.log().last().unwrap().lost_fenced);
    }
}
