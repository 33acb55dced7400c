//! Visits all states of a model breadth first, and checks liveness.
//!
//! stateright checks what must *always* be true. It checks what must be true *eventually* on paths without cycles only
//! (see its documentation of `Property::eventually`), and a protocol whose waiters re-check has cycles. So the states
//! are visited here, and the fair actions between them ([`Fairness::is_fair`]) are recorded.
//!
//! Strong fairness is assumed: a fair action that is possible again and again is taken eventually. In a finite graph a
//! fair run enters a strongly connected component that no fair action leaves, and visits all of its states (Baier and
//! Katoen, Principles of Model Checking, sections 3.5 and 10.1.2). So every fair run reaches a settled state if and
//! only if fair actions lead to a settled state from *every* reachable state, whatever faults happened before. One
//! backward search from the settled states decides that. The first state that it does not find ends a shortest
//! counterexample.

use std::{
    collections::{HashMap, hash_map},
    hash::{BuildHasher as _, Hash},
};

use foldhash::quality::FixedState;
use stateright::{Expectation, Property};

use crate::explore::{Fairness, Protocol, Violation};

/// The position of a state in the order of discovery.
type Number = u32;

/// What a walk looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Any property that breaks first.
    AnythingBreaks,
    /// A state that breaks this property.
    Breaks(&'static str),
}

/// All states that were found, and the paths to them.
pub(crate) struct Walk<'m, M: Protocol> {
    model: &'m M,
    until: Until,
    numbers: HashMap<u64, Number, FixedState>,
    /// By number: the hash of the state, and the state from which it was found.
    fingerprints: Vec<u64>,
    parents: Vec<Number>,
    settled: Vec<bool>,
    /// Fair actions from states that are not settled: from which state to which.
    fair: Vec<(Number, Number)>,
    broken: Option<(&'static str, Number)>,
    pub(crate) generated: usize,
    /// Actions to the states that are farthest from the initial one.
    pub(crate) depth: usize,
    /// `Sometimes` properties that were true in some state.
    pub(crate) happened: Vec<&'static str>,
}

impl<'m, M: Protocol> Walk<'m, M> {
    /// Visits all states, or those up to the first that `until` asks for.
    pub(crate) fn through(model: &'m M, until: Until) -> Self {
        let mut walk = Self {
            model,
            until,
            numbers: HashMap::default(),
            fingerprints: Vec::new(),
            parents: Vec::new(),
            settled: Vec::new(),
            fair: Vec::new(),
            broken: None,
            generated: 0,
            depth: 0,
            happened: Vec::new(),
        };
        let properties = model.properties();
        let mut level: Vec<(Number, M::State)> = Vec::new();
        for state in model.init_states() {
            let (number, _) = walk.enter(&state, 0);
            level.push((number, state));
        }
        while !level.is_empty() {
            let mut next = Vec::new();
            for (number, state) in level {
                walk.judge(&properties, number, &state);
                if walk.broken.is_some() {
                    return walk;
                }
                walk.expand(number, &state, &mut next);
            }
            walk.depth += usize::from(!next.is_empty());
            level = next;
        }
        walk
    }

    pub(crate) fn unique(&self) -> usize {
        self.fingerprints.len()
    }

    /// Returns a shortest path to what `until` asks for.
    pub(crate) fn violation(&self) -> Option<Violation> {
        let checks_liveness =
            self.until == Until::AnythingBreaks || self.until == Until::Breaks(M::EVENTUALLY);
        let stuck = || checks_liveness.then(|| self.first_stuck()).flatten();
        let (property, number) = self.broken.or_else(|| stuck().map(|number| (M::EVENTUALLY, number)))?;
        Some(Violation { property, trace: self.path_to(number) })
    }

    /// Returns the number of the state, and whether it is new.
    fn enter(&mut self, state: &M::State, parent: Number) -> (Number, bool) {
        self.generated += 1;
        let fingerprint = fingerprint(state);
        let number = self.fingerprints.len() as Number;
        match self.numbers.entry(fingerprint) {
            hash_map::Entry::Occupied(known) => (*known.get(), false),
            hash_map::Entry::Vacant(new) => {
                new.insert(number);
                self.fingerprints.push(fingerprint);
                self.parents.push(parent);
                self.settled.push(self.model.is_settled(state));
                (number, true)
            }
        }
    }

    fn judge(&mut self, properties: &[Property<M>], number: Number, state: &M::State) {
        for Property { expectation, name, condition } in properties {
            match expectation {
                Expectation::Sometimes if !self.happened.contains(name) => {
                    self.happened.extend(condition(self.model, state).then_some(*name));
                }
                Expectation::Sometimes => {}
                _ if matches!(self.until, Until::Breaks(other) if other != *name) => {}
                _ if condition(self.model, state) => {}
                _ => self.broken = self.broken.or(Some((name, number))),
            }
        }
    }

    fn expand(&mut self, number: Number, state: &M::State, next: &mut Vec<(Number, M::State)>) {
        let mut actions = Vec::new();
        self.model.actions(state, &mut actions);
        for action in actions {
            let fair = !self.settled[number as usize] && action.is_fair(self.model, state);
            let Some(then) = self.model.next_state(state, action) else { continue };
            let (reached, new) = self.enter(&then, number);
            if fair {
                self.fair.push((number, reached));
            }
            if new {
                next.push((reached, then));
            }
        }
    }

    /// Returns the first state from which no fair actions lead to a settled one.
    fn first_stuck(&self) -> Option<Number> {
        // The predecessors of a state are `from[starts[state]..starts[state + 1]]`.
        let mut starts = vec![0; self.unique() + 2];
        self.fair.iter().for_each(|(_, to)| starts[*to as usize + 2] += 1);
        (2..starts.len()).for_each(|state| starts[state] += starts[state - 1]);
        let mut from = vec![0; self.fair.len()];
        for (state, to) in &self.fair {
            let end: &mut usize = &mut starts[*to as usize + 1];
            from[*end] = *state;
            *end += 1;
        }
        let mut leads_to_settled = self.settled.clone();
        let settled = (0..).zip(&self.settled).filter(|(_, settled)| **settled);
        let mut found: Vec<Number> = settled.map(|(number, _)| number).collect();
        while let Some(number) = found.pop() {
            for before in &from[starts[number as usize]..starts[number as usize + 1]] {
                if !std::mem::replace(&mut leads_to_settled[*before as usize], true) {
                    found.push(*before);
                }
            }
        }
        (0..).zip(leads_to_settled).find(|(_, leads_to_settled)| !leads_to_settled).map(|(number, _)| number)
    }

    /// Returns the actions from the initial state, by repeating those that lead from state to state.
    fn path_to(&self, mut number: Number) -> Vec<String> {
        let mut path = vec![self.fingerprints[number as usize]];
        while number > 0 {
            number = self.parents[number as usize];
            path.push(self.fingerprints[number as usize]);
        }
        let mut states = self.model.init_states();
        let Some(mut state) = states.pop() else { return Vec::new() };
        let mut trace = Vec::new();
        for expected in path.iter().rev().skip(1) {
            let mut actions = Vec::new();
            self.model.actions(&state, &mut actions);
            let step = actions.into_iter().find_map(|action| {
                let then = self.model.next_state(&state, action.clone())?;
                (fingerprint(&then) == *expected).then_some((action, then))
            });
            let Some((action, then)) = step else { break };
            trace.push(format!("{action:?}"));
            state = then;
        }
        trace
    }
}

/// Returns a hash that is the same in each run, so that the same counterexample is found.
fn fingerprint(state: &impl Hash) -> u64 {
    FixedState::default().hash_one(state)
}
