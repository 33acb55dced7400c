//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::{actions::actions, frame::recorded};

actions! { |model: &Keeper, state: State|
    /// A caller asks for the lock, and waits.
    Ask(caller: usize) => state.ask(model, caller, false),
    /// A caller tries to get the lock.
    Try(caller: usize) => state.ask(model, caller, true),
    /// A caller drops its ticket.
    Leave(caller: usize) => state.leave(caller),
    /// A caller drops its guard.
    Drop(caller: usize) fair => state.drop_guard(caller),
    /// A caller asks its guard whether the lock is held.
    IsHeld(caller: usize) => state.ask_guard(model, caller),
    /// A claim task takes its next step.
    RunTask(task: usize) fair => state.run_task(model, task),
    /// The server grants the claim.
    Grant(task: usize) fair => {
        state.entry = ServerEntry::Of { task, session: state.tasks[task].session };
        state.tasks[task].phase = Phase::Granted;
    },
    /// The server answers a try that the lock is held.
    Busy(task: usize) fair => state.settle_busy(task),
    /// The server executes the release and answers.
    Release(task: usize) fair => state.release(task),
    /// The release, or its answer (true), is lost.
    LoseRelease(task: usize, done: bool) => state.lose_release(model, task, done),
    /// The server has refused the release for a ttl.
    GiveUpRelease(task: usize) fair => state.give_up_release(model, task),
    /// The session task sends a heartbeat, and the server executes it.
    SendHeartbeat fair => state.send_heartbeat(model),
    /// The answer arrives.
    ReceiveHeartbeat fair => state.receive_heartbeat(model, false),
    /// The heartbeat or its answer is lost.
    LoseHeartbeat => {
        state.faults.lost -= 1;
        state.heartbeat = Heartbeat::None;
    },
    /// The answer arrives without naming the hold.
    ReceiveHeartbeatOfSessionOnly => {
        state.faults.lost -= 1;
        state.receive_heartbeat(model, true);
    },
    /// The session task notices the end of the session.
    EndSession fair => {
        if let Some(session) = state.current.take() {
            state.sessions[session].ended = true;
        }
    },
    /// The session task marks the session's holds as lost.
    LoseAll(session: usize) fair => state.lose_all(session),
    /// The next session is opened.
    OpenSession fair => {
        state.sessions[1] = Session::opened();
        state.current = Some(1);
    },
    /// The server ends a session that the client has closed.
    CloseSession(session: usize) fair => state.end_at_server(session),
    /// The lifetime of a session ends at the server.
    Expire(session: usize) fair => state.end_at_server(session),
    /// An operator ends a session.
    Revoke(session: usize) => {
        state.faults.revoked -= 1;
        state.sessions[session].revoked = true;
        state.end_at_server(session);
    },
    /// Half a ttl passes.
    Tick fair if !state.has_heartbeat_due(model) => state.tick(model),
}

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
        action.apply(self, &mut state);
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
