//! The session task, the server and time: `session_task.rs` of the keeper.

use super::*;

impl State {
    pub(super) fn actions_of_sessions(&self, model: &Keeper, actions: &mut Vec<Action>) {
        if let Some(number) = self.current {
            let session = &self.sessions[number];
            let has_ended = session.abandoned || session.left == 0 || !session.alive;
            if has_ended {
                actions.push(Action::EndSession);
            }
            // In the session task's loop everything else comes before the heartbeat.
            let is_due = session.left < TTL
                || self.tasks.iter().any(|task| task.hold.is_held() && task.hold.left < TTL);
            let may_send = is_due || !model.has(Step::DeadlineFromSending);
            if self.heartbeat == Heartbeat::None && !session.abandoned && may_send {
                actions.push(Action::SendHeartbeat);
            }
        } else if !model.is(ONE_SESSION) && self.sessions[0].holds_lost && !self.sessions[1].ended {
            actions.push(Action::OpenSession);
        }
        match self.heartbeat {
            Heartbeat::None => {}
            Heartbeat::Answered { hold, .. } => {
                actions.push(Action::ReceiveHeartbeat);
                if self.faults.lost > 0 && hold.is_some() {
                    actions.push(Action::ReceiveHeartbeatOfSessionOnly);
                }
            }
        }
        if self.heartbeat != Heartbeat::None && self.faults.lost > 0 {
            actions.push(Action::LoseHeartbeat);
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
            if session.alive && self.faults.revoked > 0 && self.current == Some(number) {
                actions.push(Action::Revoke(number));
            }
        }
    }

    /// Whether the session task sends or receives a heartbeat next.
    pub(super) fn has_heartbeat_due(&self, model: &Keeper) -> bool {
        let mut actions = Vec::new();
        self.actions_of_sessions(model, &mut actions);
        actions.iter().any(|action| matches!(action, Action::SendHeartbeat | Action::ReceiveHeartbeat))
    }

    pub(super) fn send_heartbeat(&mut self, model: &Keeper) {
        let Some(session) = self.current else { return };
        let mut carried = None;
        for number in 0..TASKS {
            let task = self.tasks[number];
            if task.session != session || task.hold.phase == HoldPhase::None || task.phase == Phase::Done {
                continue;
            }
            self.read_hold(model, number);
            if task.expired
                && matches!(task.phase, Phase::Releasing { .. })
                && self.sessions[session].left > 0
            {
                self.broken = Some(DEAD_HOLD_ENDS);
            }
            match self.tasks[number].hold.phase {
                HoldPhase::Held => carried = Some(number),
                HoldPhase::Releasing if !model.has(Step::NoRenewalOnceReleasing) => {
                    self.broken = Some(NO_LATE_RENEWAL);
                }
                _ => {}
            }
        }
        self.execute_heartbeat(session, carried);
    }

    pub(super) fn execute_heartbeat(&mut self, session: usize, hold: Option<usize>) {
        let there = &mut self.sessions[session];
        if there.alive {
            there.left_there = TTL;
        }
        let renewal = |task| if self.is_of(task) { Renewal::Renewed } else { Renewal::Gone };
        let hold = hold.map(|task| (task, renewal(task)));
        self.heartbeat = Heartbeat::Answered { age: 0, session, hold, gone: !self.sessions[session].alive };
    }

    pub(super) fn receive_heartbeat(&mut self, model: &Keeper, session_only: bool) {
        let Heartbeat::Answered { age, session, hold, gone } =
            std::mem::replace(&mut self.heartbeat, Heartbeat::None)
        else {
            return;
        };
        let left = if model.has(Step::DeadlineFromSending) { TTL.saturating_sub(age) } else { TTL };
        if let Some((number, renewal)) = hold.filter(|_| !session_only) {
            self.read_hold(model, number);
            let hold = &mut self.tasks[number].hold;
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

    /// Resets what no action or property reads any more.
    pub(super) fn forget_finished(&mut self) {
        for session in self.sessions.iter_mut().filter(|session| session.ended) {
            (session.left, session.abandoned) = (0, false);
        }
        for task in
            self.tasks.iter_mut().filter(|task| !matches!(task.phase, Phase::Keeping | Phase::Current))
        {
            if task.hold.phase != HoldPhase::Held {
                task.hold.left = 0;
            }
        }
        if matches!(self.heartbeat, Heartbeat::Answered { session, .. } if self.sessions[session].ended) {
            self.heartbeat = Heartbeat::None;
        }
    }

    pub(super) fn lose_all(&mut self, session: usize) {
        self.sessions[session].holds_lost = true;
        for task in self.tasks.iter_mut().filter(|task| task.session == session && task.phase != Phase::Done)
        {
            task.hold.lose();
        }
    }

    pub(super) fn end_at_server(&mut self, session: usize) {
        self.sessions[session].alive = false;
        self.sessions[session].left_there = 0;
        if matches!(self.entry, ServerEntry::Of { session: its, .. } if its == session) {
            self.entry = ServerEntry::Free;
        }
    }

    pub(super) fn tick(&mut self, model: &Keeper) {
        for session in &mut self.sessions {
            session.left_there = session.left_there.saturating_sub(1);
            session.left = session.left.saturating_sub(1);
        }
        for task in &mut self.tasks {
            task.hold.left = task.hold.left.saturating_sub(1);
            if model.is(RELEASES_REFUSED) && matches!(task.phase, Phase::Releasing { .. }) {
                task.releasing_for = (task.releasing_for + 1).min(TTL);
            }
        }
        if let Heartbeat::Answered { age, .. } = &mut self.heartbeat {
            *age = (*age + 1).min(TTL);
        }
    }
}

impl Session {
    pub(super) fn opened() -> Self {
        Self { alive: true, left_there: TTL, left: TTL, ..Self::default() }
    }
}
