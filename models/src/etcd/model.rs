//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::{actions::actions, frame::recorded};

actions! { |model: &Etcd, state: State|
    /// A caller asks for the lock.
    Start(claim: ClaimNo) => state.start(model, claim),
    /// The claim sends the next request of its phase.
    Send(claim: ClaimNo) fair => state.send(model, claim, false),
    /// As `Send`, after a stale answer to the read for the successor.
    SendAfterStaleRead(claim: ClaimNo) => state.send(model, claim, true),
    /// The enqueue is sent, and executed at a later time or never; its sender stops waiting for the reply.
    SendLate(claim: ClaimNo) => state.send_late(model, claim),
    /// The server executes the request that ends the claim, and answers.
    Execute(claim: ClaimNo) fair => state.end(model, claim),
    /// The reply to the enqueue arrives.
    Receive(claim: ClaimNo) fair => state.receive(model, claim),
    /// The reply is lost; the request is lost, late, or was executed.
    LoseReply(claim: ClaimNo) => state.lose_reply(claim),
    /// The server executes a request whose sender no longer waits.
    ExecuteLate(nth: usize) fair => {
        let request = state.late.remove(nth);
        state.execute(model, request);
    },
    /// The caller gives up.
    GiveUp(claim: ClaimNo) => state.give_up(claim),
    /// The oldest handoff arrives at a client.
    Deliver(client: usize) fair => state.deliver(model, client),
    /// The oldest handoff to a client is lost.
    LoseHandoff(client: usize) => state.lose_handoff(client),
    /// The re-check and, unless it finds both keys, the read of the queue.
    Recheck(claim: ClaimNo) fair => state.read_queue(model, claim),
    /// The watch reports the end of the predecessor.
    Notify(claim: ClaimNo) fair => match model.has(Step::ReadBeforeGrant) {
        true => state.claims[claim.index()].notified = true,
        false => state.grant(claim, false),
    },
    /// That event is lost.
    LoseEvent(claim: ClaimNo) => state.claims[claim.index()].predecessor = None,
    /// The guard is dropped.
    Release(claim: ClaimNo) fair => state.claims[claim.index()].phase = Phase::Leaving,
    /// The heartbeat does not find the key of a hold.
    Miss(claim: ClaimNo) fair => state.claims[claim.index()].phase = Phase::Leaving,
    /// A client's deadline passes without an acknowledged heartbeat.
    Lapse(client: usize) => {
        state.faults.lapses -= 1;
        state.end_session(model, client);
    },
    /// The server ends the lease of a client.
    Expire(client: usize) fair if state.clients[client].session_ended => state.expire(client),
    /// An operator deletes a key.
    Delete(key: ClaimNo) => state.delete(key),
    /// The server refuses the claim's request.
    Refuse(claim: ClaimNo) => state.refuse(model, claim),
    /// Another program's contender enters the queue.
    ForeignComes => state.foreign_comes(),
    /// It finds itself first.
    ForeignIsFirst fair => state.foreign_holds = true,
    /// It releases.
    ForeignGoes fair => state.foreign_goes(),
}

impl Model for Etcd {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = || Client { epoch: 1, ..Client::default() };
        vec![State {
            epoch_last: [1; CLIENTS],
            epochs: [1; CLIENTS],
            clients: [client(), client()],
            faults: self.faults,
            ..State::default()
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for claim in ClaimNo::all() {
            state.actions_of(self, claim, actions);
            if state.faults.deletes > 0 && state.keys[claim.index()].is_some() {
                actions.push(Action::Delete(claim));
            }
        }
        actions.extend((0..state.late.len()).map(Action::ExecuteLate));
        match state.keys[ClaimNo::FOREIGN.index()] {
            None if state.faults.foreign > 0 => actions.push(Action::ForeignComes),
            Some(_) if state.foreign_holds => actions.push(Action::ForeignGoes),
            Some(_) if state.is_foreign_first() => actions.push(Action::ForeignIsFirst),
            _ => {}
        }
        for client in 0..CLIENTS {
            let Client { session_ended, lease_gone, .. } = state.clients[client];
            if !state.handoffs[client].is_empty() && !session_ended {
                actions.push(Action::Deliver(client));
                if state.faults.lost > 0 {
                    actions.push(Action::LoseHandoff(client));
                }
            }
            if state.faults.lapses > 0 && !session_ended {
                actions.push(Action::Lapse(client));
            }
            let early = !self.has(Step::DeadlineBeforeExpiry) && state.faults.lapses > 0;
            let may_expire = session_ended || early;
            if may_expire && !lease_gone {
                actions.push(Action::Expire(client));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        action.apply(self, &mut state);
        state.forget_old_tokens();
        let highest = rank::compress(&mut state);
        state.created_last = highest[CREATED];
        state.epoch_last = [highest[EPOCH], highest[EPOCH + 1]];
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                state.holders().count() + usize::from(state.foreign_holds) <= 1
            }),
            recorded!(TOKENS_RISE),
            Property::always(IN_ORDER, |_, state: &State| !state.has_overtaken()),
            recorded!(NO_FOREIGN_DELETE),
            recorded!(FIRST_FINDS_NO_KEY),
            Property::always(NO_ORPHAN, |_, state: &State| !state.is_at_rest() || !state.has_orphan()),
            Property::sometimes("all claims are granted", |model, state: &State| {
                usize::from(state.tokens.grants) == model.count()
            }),
        ]
    }
}
