//! The session task, the server and time: `session.rs` of the keeper.

use super::*;

impl State {
    pub(super) fn actions_of_sessions(&self, model: &Keeper, actions: &mut Vec<Action>) {
        if let Some(number) = self.current {
            let session = &self.sessions[number];
            let over = session.abandoned || session.left == 0 || !session.alive;
            if over {
                actions.push(Action::EndSession);
            }
            // The beat comes behind everything else in the session task's loop.
            let is_due = session.left < TTL
                || self.lives.iter().any(|life| life.hold.is_held() && life.hold.left < TTL);
            let may = is_due || !model.has(Step::DeadlineFromSending);
            if self.beat == Beat::None && !session.abandoned && may {
                actions.push(Action::SendBeat);
            }
        } else if model.sessions > 1 && self.sessions[0].holds_lost && !self.sessions[1].ended {
            actions.push(Action::OpenSession);
        }
        match self.beat {
            Beat::None => {}
            Beat::Answered { hold, .. } => {
                actions.push(Action::ReceiveBeat);
                if self.lost > 0 && hold.is_some() {
                    actions.push(Action::ReceiveBeatOfSessionOnly);
                }
            }
        }
        if self.beat != Beat::None && self.lost > 0 {
            actions.push(Action::LoseBeat);
        }
        for (number, session) in self.sessions.iter().enumerate() {
            if session.ended && !session.holds_lost {
                actions.push(Action::LoseAll(number));
            }
            if session.alive && session.holds_lost {
                actions.push(Action::CloseSession(number));
            }
            if session.alive && session.left_there == 0 {
                actions.push(Action::Expire(number));
            }
            if session.alive && self.revoked > 0 && self.current == Some(number) {
                actions.push(Action::Revoke(number));
            }
        }
    }

    pub(super) fn send_beat(&mut self, model: &Keeper) {
        let Some(session) = self.current else { return };
        let mut carried = None;
        for number in 0..LIVES {
            let life = self.lives[number];
            if life.session != session || life.hold.phase == HoldPhase::None || life.phase == Phase::Done {
                continue;
            }
            self.look(model, number);
            if life.expired
                && matches!(life.phase, Phase::Releasing { .. })
                && self.sessions[session].left > 0
            {
                self.broken = Some(DEAD_HOLD_ENDS);
            }
            match self.lives[number].hold.phase {
                HoldPhase::Held => carried = Some(number),
                HoldPhase::Releasing if !model.has(Step::NoRenewalOnceReleasing) => {
                    self.broken = Some(NO_LATE_RENEWAL);
                }
                _ => {}
            }
        }
        self.execute_beat(session, carried);
    }

    pub(super) fn execute_beat(&mut self, session: usize, hold: Option<usize>) {
        let there = &mut self.sessions[session];
        if there.alive {
            there.left_there = TTL;
        }
        let renewal = |life| if self.is_of(life) { Renewal::Renewed } else { Renewal::Gone };
        let hold = hold.map(|life| (life, renewal(life)));
        self.beat = Beat::Answered { age: 0, session, hold, gone: !self.sessions[session].alive };
    }

    pub(super) fn receive_beat(&mut self, model: &Keeper, session_only: bool) {
        let Beat::Answered { age, session, hold, gone } = std::mem::replace(&mut self.beat, Beat::None)
        else {
            return;
        };
        let left = if model.has(Step::DeadlineFromSending) { TTL.saturating_sub(age) } else { TTL };
        if let Some((number, renewal)) = hold.filter(|_| !session_only) {
            self.look(model, number);
            let hold = &mut self.lives[number].hold;
            match renewal {
                Renewal::Gone => hold.lose(),
                Renewal::Renewed if hold.phase == HoldPhase::Held && !gone => hold.left = hold.left.max(left),
                Renewal::Renewed => {}
            }
        }
        let known = &mut self.sessions[session];
        if !gone && known.left > 0 && !known.ended {
            known.left = known.left.max(left);
        } else if gone && self.current == Some(session) {
            self.current = None;
            known.ended = true;
        }
    }

    /// What nobody looks at any more makes no difference.
    pub(super) fn forget_what_is_over(&mut self) {
        for session in self.sessions.iter_mut().filter(|session| session.ended) {
            (session.left, session.abandoned) = (0, false);
        }
        for life in
            self.lives.iter_mut().filter(|life| !matches!(life.phase, Phase::Keeping | Phase::Current))
        {
            if life.hold.phase != HoldPhase::Held {
                life.hold.left = 0;
            }
        }
        if matches!(self.beat, Beat::Answered { session, .. } if self.sessions[session].ended) {
            self.beat = Beat::None;
        }
    }

    pub(super) fn lose_all(&mut self, session: usize) {
        self.sessions[session].holds_lost = true;
        for life in self.lives.iter_mut().filter(|life| life.session == session && life.phase != Phase::Done)
        {
            life.hold.lose();
        }
    }

    pub(super) fn end_at_server(&mut self, session: usize) {
        self.sessions[session].alive = false;
        self.sessions[session].left_there = 0;
        if matches!(self.entry, Entry::Of { session: its, .. } if its == session) {
            self.entry = Entry::Free;
        }
    }

    pub(super) fn tick(&mut self, model: &Keeper) {
        for session in &mut self.sessions {
            session.left_there = session.left_there.saturating_sub(1);
            session.left = session.left.saturating_sub(1);
        }
        for life in &mut self.lives {
            life.hold.left = life.hold.left.saturating_sub(1);
            if model.refuses && matches!(life.phase, Phase::Releasing { .. }) {
                life.releasing_for = (life.releasing_for + 1).min(TTL);
            }
        }
        if let Beat::Answered { age, .. } = &mut self.beat {
            *age = (*age + 1).min(TTL);
        }
    }
}

impl Session {
    pub(super) fn opened() -> Self {
        Self { alive: true, left_there: TTL, left: TTL, ..Self::default() }
    }
}
