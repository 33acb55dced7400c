//! What a fenced lock with re-entry is, as a state that one operation after another changes.

use stateright::semantics::SequentialSpec;

/// What is asked of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Take it, or enter the own hold once more.
    Acquire {
        /// Who asks: whatever re-enters what it holds.
        owner: u64,
    },
    /// Leave a hold once.
    Release {
        /// Whose hold.
        owner: u64,
        /// The token of the hold.
        token: u64,
    },
    /// Nobody asks for this: the hold of a client that was killed, stopped or cut off may end at any time. Never
    /// answered; called when the client last said that it lives.
    Expire {
        /// Whose hold.
        owner: u64,
        /// The token of the hold; `None` for that of an acquire that was not answered either.
        token: Option<u64>,
    },
}

impl Call {
    /// The token of the hold that it means to end.
    pub(super) fn token(self) -> Option<u64> {
        match self {
            Self::Acquire { .. } => None,
            Self::Release { token, .. } => Some(token),
            Self::Expire { token, .. } => token,
        }
    }
}

/// What a call was answered. A try or a wait that ended without the lock is no operation: it changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The lock is the owner's, with this token.
    Granted(u64),
    /// The hold was left.
    Released,
    /// There is no such hold any more.
    NotHeld,
}

/// A lock: who holds it, how often entered, and the highest token so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct FencedLock {
    pub(super) hold: Option<Hold>,
    /// Every later grant has a higher token.
    pub(super) highest: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    pub(super) owner: u64,
    /// `None` when the grant was never answered: at least the highest.
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

    /// The acquire of a client that was never told: it may have been granted whatever token is free.
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
    type Ret = Answer;

    /// Called for what was never answered; so its answer matters to nobody.
    fn invoke(&mut self, call: &Call) -> Answer {
        match *call {
            Call::Acquire { owner } => self.acquire_unseen(owner),
            Call::Release { owner, token } => drop(self.release(owner, token)),
            Call::Expire { owner, token } if self.is_held_by(owner, token) => self.hold = None,
            Call::Expire { .. } => {}
        }
        Answer::NotHeld
    }

    fn is_valid_step(&mut self, call: &Call, answer: &Answer) -> bool {
        match (*call, *answer) {
            (Call::Acquire { owner }, Answer::Granted(token)) => self.acquire(owner, token),
            (Call::Release { owner, token }, Answer::Released) => self.release(owner, token),
            (Call::Release { owner, token }, Answer::NotHeld) => !self.is_held_by(owner, Some(token)),
            _ => false,
        }
    }
}
