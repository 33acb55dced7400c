//! A fenced lock with re-entry as a sequential specification: a state that each operation changes.

use stateright::semantics::SequentialSpec;

use crate::history::{Call, Response};

/// The state of a lock: its hold, and the highest token so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct FencedLock {
    pub(super) hold: Option<Hold>,
    /// Every later grant has a higher token.
    pub(super) highest: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    pub(super) owner: u64,
    /// `None` when the acquire did not return; then it is at least the highest.
    pub(super) token: Option<u64>,
    pub(super) entered: usize,
}

impl FencedLock {
    fn acquire(&mut self, owner: u64, token: u64) -> bool {
        let free = self.hold.is_none() && token > self.highest;
        match &mut self.hold {
            None if free => self.hold = Some(Hold { owner, token: Some(token), entered: 1 }),
            Some(hold)
                if hold.owner == owner && hold.token.map_or(token >= self.highest, |own| own == token) =>
            {
                hold.token = Some(token);
                hold.entered += 1;
            }
            _ => return false,
        }
        self.highest = token;
        true
    }

    /// An acquire that did not return: it may have been granted with any free token.
    fn acquire_unseen(&mut self, owner: u64) {
        match &mut self.hold {
            None => {
                self.highest += 1;
                self.hold = Some(Hold { owner, token: None, entered: 1 });
            }
            Some(hold) if hold.owner == owner => hold.entered += 1,
            Some(_) => {}
        }
    }

    fn is_held_by(&self, owner: u64, token: Option<u64>) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.owner == owner && hold.token == token)
    }

    fn release(&mut self, owner: u64, token: u64) -> bool {
        if !self.is_held_by(owner, Some(token)) {
            return false;
        }
        self.hold = self.hold.take().filter(|hold| hold.entered > 1);
        if let Some(hold) = &mut self.hold {
            hold.entered -= 1;
        }
        true
    }
}

impl SequentialSpec for FencedLock {
    type Op = Call;
    type Ret = Response;

    /// Called for operations that never returned, so its result is not used.
    fn invoke(&mut self, call: &Call) -> Response {
        match *call {
            Call::Acquire { owner } => self.acquire_unseen(owner),
            Call::Release { owner, token } => drop(self.release(owner, token)),
            Call::Expire { owner, token } if self.is_held_by(owner, token) => self.hold = None,
            Call::Expire { .. } => {}
        }
        Response::NotHeld
    }

    fn is_valid_step(&mut self, call: &Call, answer: &Response) -> bool {
        match (*call, *answer) {
            (Call::Acquire { owner }, Response::Granted(token)) => self.acquire(owner, token),
            (Call::Release { owner, token }, Response::Released) => self.release(owner, token),
            (Call::Release { owner, token }, Response::NotHeld) => !self.is_held_by(owner, Some(token)),
            _ => false,
        }
    }
}
