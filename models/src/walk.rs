//! Goes through all states of a model, breadth first, and finds the states that nothing leads out of.
//!
//! stateright judges what must *always* be true. What must be true *in the end* it judges on paths without cycles only (its
//! documentation of `Property::eventually` says so), and a protocol in which waiters ask again and again has cycles.
//! So the states are visited here, and the steps between them kept that are bound to happen ([`Protocol::is_bound`]).
//!
//! Assumed is strong fairness of those steps: one that is possible again and again is taken in the end. In a finite graph a
//! fair run enters a strongly connected component that no such step leaves, and visits all of its states (Baier and
//! Katoen, Principles of Model Checking, sections 3.5 and 10.1.2). So "in the end everything is settled" is true exactly
//! when from *every* state that can be reached, whatever went wrong before, bound steps lead to a settled one: that is one
//! search backwards from the settled states. Where it is not true, the first state that was not found is the end of a
//! shortest counterexample.

use std::{
    collections::{HashMap, hash_map},
    hash::{BuildHasherDefault, Hash, Hasher},
};

use stateright::{Expectation, Property};

use crate::explore::{Protocol, Violation};

/// A state's place in the order in which the states were found.
type Number = u32;

/// What a walk looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Whatever breaks first.
    AnythingBreaks,
    /// A break of this property.
    Breaks(&'static str),
}

/// All states that were found, and how.
pub(crate) struct Walk<'m, M: Protocol> {
    model: &'m M,
    until: Until,
    numbers: HashMap<u64, Number, BuildHasherDefault<AsItIs>>,
    /// By number: what the state is recognised by, and from which other one it was found.
    fingerprints: Vec<u64>,
    parents: Vec<Number>,
    settled: Vec<bool>,
    /// Steps that are bound to happen, from states that are not settled.
    bound: Vec<(Number, Number)>,
    broken: Option<(&'static str, Number)>,
    pub(crate) generated: usize,
    /// Steps to the states that are farthest from the beginning.
    pub(crate) depth: usize,
    /// Properties that were true sometimes.
    pub(crate) happened: Vec<&'static str>,
}

impl<'m, M: Protocol> Walk<'m, M> {
    /// Visits all states, or those up to the first that is looked for.
    pub(crate) fn through(model: &'m M, until: Until) -> Self {
        let mut walk = Self {
            model,
            until,
            numbers: HashMap::default(),
            fingerprints: Vec::new(),
            parents: Vec::new(),
            settled: Vec::new(),
            bound: Vec::new(),
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
                walk.step_on(number, &state, &mut next);
            }
            walk.depth += usize::from(!next.is_empty());
            level = next;
        }
        walk
    }

    pub(crate) fn unique(&self) -> usize {
        self.fingerprints.len()
    }

    /// The shortest way to what was looked for.
    pub(crate) fn violation(&self) -> Option<Violation> {
        let looks = matches!(self.until, Until::AnythingBreaks) || self.until == Until::Breaks(M::IN_THE_END);
        let in_the_end = || looks.then(|| self.first_without_end()).flatten();
        let (property, number) =
            self.broken.or_else(|| in_the_end().map(|number| (M::IN_THE_END, number)))?;
        Some(Violation { property, trace: self.way_to(number) })
    }

    /// Whether the state is new, and its number.
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

    fn step_on(&mut self, number: Number, state: &M::State, next: &mut Vec<(Number, M::State)>) {
        let mut actions = Vec::new();
        self.model.actions(state, &mut actions);
        for action in actions {
            let bound = !self.settled[number as usize] && self.model.is_bound(state, &action);
            let Some(then) = self.model.next_state(state, action) else { continue };
            let (reached, new) = self.enter(&then, number);
            if bound {
                self.bound.push((number, reached));
            }
            if new {
                next.push((reached, then));
            }
        }
    }

    /// The first state from which no bound steps lead to a settled one.
    fn first_without_end(&self) -> Option<Number> {
        // Who leads to a state: `from[starts[state]..starts[state + 1]]`.
        let mut starts = vec![0; self.unique() + 2];
        self.bound.iter().for_each(|(_, to)| starts[*to as usize + 2] += 1);
        (2..starts.len()).for_each(|place| starts[place] += starts[place - 1]);
        let mut from = vec![0; self.bound.len()];
        for (state, to) in &self.bound {
            let place: &mut usize = &mut starts[*to as usize + 1];
            from[*place] = *state;
            *place += 1;
        }
        let mut has_end = self.settled.clone();
        let settled = (0..).zip(&self.settled).filter(|(_, settled)| **settled);
        let mut found: Vec<Number> = settled.map(|(number, _)| number).collect();
        while let Some(number) = found.pop() {
            for before in &from[starts[number as usize]..starts[number as usize + 1]] {
                if !std::mem::replace(&mut has_end[*before as usize], true) {
                    found.push(*before);
                }
            }
        }
        (0..).zip(has_end).find(|(_, has_end)| !has_end).map(|(number, _)| number)
    }

    /// The steps from the beginning: those are taken again that lead from state to state.
    fn way_to(&self, mut number: Number) -> Vec<String> {
        let mut way = vec![self.fingerprints[number as usize]];
        while number > 0 {
            number = self.parents[number as usize];
            way.push(self.fingerprints[number as usize]);
        }
        let mut states = self.model.init_states();
        let Some(mut state) = states.pop() else { return Vec::new() };
        let mut trace = Vec::new();
        for wanted in way.iter().rev().skip(1) {
            let mut actions = Vec::new();
            self.model.actions(&state, &mut actions);
            let step = actions.into_iter().find_map(|action| {
                let then = self.model.next_state(&state, action.clone())?;
                (fingerprint(&then) == *wanted).then_some((action, then))
            });
            let Some((action, then)) = step else { break };
            trace.push(format!("{action:?}"));
            state = then;
        }
        trace
    }
}

fn fingerprint(state: &impl Hash) -> u64 {
    let mut hasher = Folded(1);
    state.hash(&mut hasher);
    hasher.finish()
}

/// Mixes numbers by a multiplication whose halves are folded, as wyhash does: most of the time of a walk is hashing.
struct Folded(u64);

impl Folded {
    /// An odd number without a pattern in its bits: of the digits of the golden ratio.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
}

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut number = [0; 8];
            number[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(number));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0.rotate_left(23) ^ number) * u128::from(Self::FACTOR);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

/// Hashes what is a hash already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
