//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::frame::recorded;

impl Model for Keeper {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut sessions = [Session::default(); SESSIONS];
        sessions[0] = Session::opened();
        vec![State {
            entry: ServerEntry::Free,
            sessions,
            current: Some(0),
            heartbeat: Heartbeat::None,
            table: OwnerEntry::Empty,
            tasks: Default::default(),
            callers: self.claims.map(|asks_left| Caller { asks_left, state: CallerState::Idle }),
            faults: self.faults,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for (number, caller) in state.callers.iter().enumerate() {
            match caller.state {
                CallerState::Idle if caller.asks_left > 0 && self.is(SECOND_TRIES) && number == 1 => {
                    actions.push(Action::Try(number));
                }
                CallerState::Idle if caller.asks_left > 0 => actions.push(Action::Ask(number)),
                CallerState::Idle => {}
                CallerState::Waiting(_) => actions.push(Action::Leave(number)),
                CallerState::Guard(_) => actions.extend([Action::Drop(number), Action::IsHeld(number)]),
            }
        }
        for number in 0..TASKS {
            state.actions_of_task(self, number, actions);
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
            Action::IsHeld(caller) => state.ask_guard(self, caller),
            Action::RunTask(task) => state.run_task(self, task),
            Action::Grant(task) => {
                state.entry = ServerEntry::Of { task, session: state.tasks[task].session };
                state.tasks[task].phase = Phase::Granted;
            }
            Action::Busy(task) => state.settle_busy(task),
            Action::Release(task) => state.release(task),
            Action::GiveUpRelease(task) => state.give_up_release(self, task),
            Action::LoseRelease(task, done) => state.lose_release(self, task, done),
            Action::SendHeartbeat => state.send_heartbeat(self),
            Action::ReceiveHeartbeat => state.receive_heartbeat(self, false),
            Action::LoseHeartbeat => {
                state.faults.lost -= 1;
                state.heartbeat = Heartbeat::None;
            }
            Action::ReceiveHeartbeatOfSessionOnly => {
                state.faults.lost -= 1;
                state.receive_heartbeat(self, true);
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
                state.faults.revoked -= 1;
                state.sessions[session].revoked = true;
                state.end_at_server(session);
            }
            Action::Tick => state.tick(self),
        }
        state.forget_finished();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BELIEF_IS_TRUE, |_, state: &State| {
                (0..TASKS).all(|task| state.believes_rightly(task))
            }),
            recorded!(LOST_IS_FINAL),
            recorded!(NO_LATE_RENEWAL),
            Property::always(NO_ORPHAN, |_, state: &State| !state.has_orphan()),
            recorded!(DEAD_HOLD_ENDS),
            Property::always(SESSION_END_ENDS_HOLDS, |_, state: &State| {
                state.tasks.iter().all(|task| {
                    let settled = matches!(task.phase, Phase::Keeping);
                    !(settled && task.hold.is_held() && state.sessions[task.session].holds_lost)
                })
            }),
            recorded!(TRUE_ANSWER),
            Property::always(NO_SELF_WAIT, |_, state: &State| !state.waits_behind_itself()),
            recorded!(LAST_RELEASE_ENDS),
            recorded!(SHARE_IS_HELD),
            Property::always(ALL_ANSWERED, |_, state: &State| {
                let forgotten = |caller: &Caller| {
                    caller.waits_for().is_some_and(|task| state.tasks[task].phase == Phase::Done)
                };
                !state.callers.iter().any(forgotten)
            }),
            Property::sometimes("both callers share a hold", |_, state: &State| {
                state.tasks.iter().any(|task| task.phase == Phase::Keeping && task.hold.guards == 2)
            }),
            Property::sometimes("a hold of the last session", |model, state: &State| {
                let held = |task: &ClaimTask| task.hold.is_held() && task.hold.guards > 0;
                state.tasks.iter().any(|task| task.session == model.sessions() - 1 && held(task))
            }),
        ]
    }
}
