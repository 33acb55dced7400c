//! What may happen in a state, what comes of it, and what must be true.

use stateright::{Model, Property};

use super::*;

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
            token_last: 0,
            grants: 0,
            faults: self.faults,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for claim in 0..self.claims {
            state.actions_of(self, claim, actions);
        }
        actions.extend((0..state.late.len()).map(Action::RunLate));
        let believes = |(claim, token): (ClaimNo, Token)| {
            let holder = &state.claims[usize::from(claim)];
            holder.phase == Phase::Held && holder.token == token && self.has(Step::DeadlineBeforeExpiry)
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
                let floor = state.token_last;
                *state.claim(claim) = Claim { phase: Phase::Acquiring, floor, ..Claim::default() };
            }
            Action::Run(claim) => state.call(self, claim),
            Action::LoseAnswer(claim) => {
                state.faults.lost -= 1;
                state.run(self, state.request(claim, state.script_of(claim)));
            }
            Action::Delay(claim) => state.delay(state.request(claim, state.script_of(claim))),
            Action::DelayBeat(claim) => state.delay(state.request(claim, Script::Beat)),
            Action::DelayRenewal(claim) => state.delay(state.request(claim, Script::Renew)),
            Action::RunUnheard(claim) => state.call_unheard(self, claim),
            Action::Hear(claim) => state.hear_late(self, claim),
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
            Action::Release(claim) | Action::TimeOut(claim) => state.claim(claim).phase = Phase::Releasing,
            Action::Expire => state.expire(),
            Action::Lapse(claim) => {
                if state.claim(claim).phase != Phase::Dead && !state.claim(claim).excused {
                    state.faults.lapses -= 1;
                }
                state.server.lapsed[usize::from(claim)] = true;
            }
            Action::Die(claim) => {
                state.faults.deaths -= 1;
                let token = state.claim(claim).token;
                *state.claim(claim) = Claim { phase: Phase::Dead, token, ..Claim::default() };
            }
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
                state.claim(claim).message = Message::None;
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
            Property::always(TOKENS_RISE, |_, state: &State| state.broken != Some(TOKENS_RISE)),
            Property::always(IN_ORDER, |_, state: &State| state.broken != Some(IN_ORDER)),
            Property::always(NO_FOREIGN_RELEASE, |_, state: &State| state.broken != Some(NO_FOREIGN_RELEASE)),
            Property::always(NO_STALE_RENEWAL, |_, state: &State| state.broken != Some(NO_STALE_RENEWAL)),
            Property::always(NO_ORPHAN, |_, state: &State| !state.is_at_rest() || !state.has_orphan()),
            Property::always(NOT_TURNED_AWAY, |_, state: &State| state.broken != Some(NOT_TURNED_AWAY)),
            Property::sometimes("all claims are granted", |model, state: &State| {
                state.grants == model.claims
            }),
        ]
    }
}
