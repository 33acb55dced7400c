//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::frame::recorded;

impl Model for Redis {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            server: Server::default(),
            replica: None,
            has_failed_over: false,
            claims: Default::default(),
            late: Few::default(),
            minted_last: 0,
            tokens: Tokens::default(),
            faults: self.faults,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for claim in ClaimNo::all().take(self.claims.into()) {
            state.actions_of(self, claim, actions);
        }
        actions.extend((0..state.late.len()).map(Action::RunLate));
        let believes = |(claim, token): (ClaimNo, Token)| {
            let holds = state.claims[claim.index()].phase == Phase::Held && state.tokens.of(claim) == token;
            holds && self.has(Step::DeadlineBeforeExpiry)
        };
        if state.server.lock.is_some_and(|held| !believes(held)) {
            actions.push(Action::Expire);
        }
        match state.replica {
            None if state.faults.failovers > 0 => actions.push(Action::FallBehind),
            Some(_) => actions.push(Action::FailOver),
            None => {}
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Start(claim) => {
                state.tokens.begin(claim);
                *state.claim(claim) = Claim { phase: Phase::Acquiring, ..Claim::default() };
            }
            Action::Run(claim) => state.call(self, claim),
            Action::LoseReply(claim) => {
                state.faults.lost -= 1;
                state.run(self, state.request(claim, state.script_of(claim)));
            }
            Action::Delay(claim) => state.delay(state.request(claim, state.script_of(claim))),
            Action::DelayHeartbeat(claim) => state.delay(state.request(claim, Script::Heartbeat)),
            Action::DelayRenewal(claim) => state.delay(state.request(claim, Script::Renew)),
            Action::RunWithLateReply(claim) => state.call_with_late_reply(self, claim),
            Action::ReceiveLate(claim) => state.receive_late(self, claim),
            Action::HearLate(claim) => state.hear_late(claim),
            Action::Refuse(claim) => state.refuse(self, claim),
            Action::RunLate(nth) => {
                let request = state.late.remove(nth);
                let over = matches!(state.claim(request.claim).phase, Phase::Ended | Phase::Dead);
                if request.script == Script::Acquire && over {
                    state.claim(request.claim).excused = true;
                }
                state.run(self, request);
            }
            Action::GiveUp(claim) => {
                state.faults.cancels -= 1;
                state.give_up(claim);
            }
            Action::Renew(claim) => state.renew(self, claim),
            Action::Release(claim) => state.claim(claim).phase = Phase::Releasing,
            Action::Expire => state.expire(),
            Action::Lapse(claim) => {
                if state.claim(claim).phase != Phase::Dead && !state.claim(claim).excused {
                    state.faults.lapses -= 1;
                }
                state.server.lapsed[claim.index()] = true;
            }
            Action::Die(claim) => {
                state.faults.deaths -= 1;
                state.tokens.end(claim);
                *state.claim(claim) = Claim { phase: Phase::Dead, ..Claim::default() };
            }
            Action::Deliver(claim) if self.pushes => state.receive_push(self, claim),
            Action::Deliver(claim) if self.has(Step::ConfirmBeforeGrant) => {
                state.claim(claim).message = Message::Arrived;
            }
            Action::Deliver(claim) => {
                state.claim(claim).message = Message::None;
                let token = state.minted_last;
                state.grant(claim, token);
            }
            Action::LoseMessage(claim) => {
                state.faults.lost -= 1;
                state.claim(claim).forget_message();
            }
            Action::FallBehind => {
                state.faults.failovers -= 1;
                state.replica = Some(state.server);
            }
            Action::FailOver => {
                state.server = state.replica.take().unwrap_or_default();
                state.has_failed_over = true;
            }
        }
        state.forget_old_tokens();
        rank::compress(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                let holders = state.claims.iter().filter(|claim| claim.phase == Phase::Held).count();
                holders <= 1 || state.has_failed_over
            }),
            recorded!(TOKENS_RISE),
            recorded!(IN_ORDER),
            recorded!(NO_FOREIGN_RELEASE),
            recorded!(NO_STALE_RENEWAL),
            recorded!(NO_FORMER_GRANT),
            Property::always(NO_ORPHAN, |_, state: &State| !state.is_at_rest() || !state.has_orphan()),
            recorded!(NOT_TURNED_AWAY),
            Property::sometimes("all claims are granted", |model, state: &State| {
                state.tokens.grants == model.claims
            }),
        ]
    }
}
