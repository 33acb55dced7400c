//! What may happen in a state, what comes of it, and what must be true.

use stateright::{Model, Property};

use super::*;

impl Model for Keeper {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut sessions = [Session::default(); SESSIONS];
        sessions[0] = Session::opened();
        vec![State {
            entry: Entry::Free,
            sessions,
            current: Some(0),
            beat: Beat::None,
            table: Place::Empty,
            lives: Default::default(),
            callers: self.asks.map(|asks_left| Caller { asks_left, is: Is::Idle }),
            lost: self.lost,
            revoked: self.revoked,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for (number, caller) in state.callers.iter().enumerate() {
            match caller.is {
                Is::Idle if caller.asks_left > 0 && self.tries && number == 1 => {
                    actions.push(Action::Try(number));
                }
                Is::Idle if caller.asks_left > 0 => actions.push(Action::Ask(number)),
                Is::Idle => {}
                Is::Waiting(_) => actions.push(Action::Leave(number)),
                Is::Guard(_) => actions.extend([Action::Drop(number), Action::IsHeld(number)]),
            }
        }
        for number in 0..LIVES {
            state.actions_of_life(self, number, actions);
        }
        state.actions_of_sessions(self, actions);
        actions.push(Action::Tick);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Ask(caller) => state.ask(self, caller, false),
            Action::Try(caller) => state.ask(self, caller, true),
            Action::Leave(caller) => state.leave(caller),
            Action::Drop(caller) => state.drop_guard(caller),
            Action::IsHeld(caller) => state.look_at_guard(self, caller),
            Action::Live(life) => state.live(self, life),
            Action::Grant(life) => {
                state.entry = Entry::Of { life, session: state.lives[life].session };
                state.lives[life].phase = Phase::Granted;
            }
            Action::Busy(life) => state.settle_busy(life),
            Action::Release(life) => state.release(life),
            Action::GiveUpRelease(life) => {
                if self.has(Step::RefusedReleaseAbandons) {
                    state.sessions[state.lives[life].session].abandoned = true;
                }
                if let Phase::Releasing { again } = state.lives[life].phase {
                    state.given_back(life, again);
                }
            }
            Action::LoseRelease(life, done) => {
                state.lost -= 1;
                if done {
                    state.take_entry_away(life);
                }
                if !self.has(Step::ReleaseRepeats) {
                    state.done(life);
                }
            }
            Action::SendBeat => state.send_beat(self),
            Action::ReceiveBeat => state.receive_beat(self, false),
            Action::LoseBeat => {
                state.lost -= 1;
                state.beat = Beat::None;
            }
            Action::ReceiveBeatOfSessionOnly => {
                state.lost -= 1;
                state.receive_beat(self, true);
            }
            Action::EndSession => {
                if let Some(session) = state.current.take() {
                    state.sessions[session].ended = true;
                }
            }
            Action::LoseAll(session) => state.lose_all(session),
            Action::OpenSession => {
                state.sessions[1] = Session::opened();
                state.current = Some(1);
            }
            Action::CloseSession(session) | Action::Expire(session) => state.end_at_server(session),
            Action::Revoke(session) => {
                state.revoked -= 1;
                state.sessions[session].revoked = true;
                state.end_at_server(session);
            }
            Action::Tick => state.tick(self),
        }
        state.forget_what_is_over();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BELIEF_IS_TRUE, |_, state: &State| {
                (0..LIVES).all(|life| state.believes_rightly(life))
            }),
            Property::always(LOST_IS_FINAL, |_, state: &State| state.broken != Some(LOST_IS_FINAL)),
            Property::always(NO_LATE_RENEWAL, |_, state: &State| state.broken != Some(NO_LATE_RENEWAL)),
            Property::always(NO_ORPHAN, |_, state: &State| !state.has_orphan()),
            Property::always(DEAD_HOLD_ENDS, |_, state: &State| state.broken != Some(DEAD_HOLD_ENDS)),
            Property::always(SESSION_END_IS_TOLD, |_, state: &State| {
                state.lives.iter().all(|life| {
                    let settled = matches!(life.phase, Phase::Keeping);
                    !(settled && life.hold.is_held() && state.sessions[life.session].holds_lost)
                })
            }),
            Property::always(TRUE_ANSWER, |_, state: &State| state.broken != Some(TRUE_ANSWER)),
            Property::always(NO_SELF_WAIT, |_, state: &State| !state.waits_behind_itself()),
            Property::always(LAST_RELEASE_ENDS, |_, state: &State| state.broken != Some(LAST_RELEASE_ENDS)),
            Property::always(SHARE_IS_HELD, |_, state: &State| state.broken != Some(SHARE_IS_HELD)),
            Property::always(ALL_ANSWERED, |_, state: &State| {
                let forgotten = |caller: &Caller| matches!(caller.is, Is::Waiting(life) if state.lives[life].phase == Phase::Done);
                !state.callers.iter().any(forgotten)
            }),
            Property::sometimes("both callers share a hold", |_, state: &State| {
                state.lives.iter().any(|life| life.phase == Phase::Keeping && life.hold.guards == 2)
            }),
            Property::sometimes("a hold of the last session", |model, state: &State| {
                let held = |life: &Life| life.hold.is_held() && life.hold.guards > 0;
                state.lives.iter().any(|life| life.session == model.sessions - 1 && held(life))
            }),
        ]
    }
}
