//! Explores all states of a model.

use std::{
    fmt::Debug,
    hash::Hash,
    time::{Duration, Instant},
};

use stateright::{Expectation, Model};

use crate::{
    frame::EVENTUALLY,
    walk::{Until, Walk},
};

/// A protocol as a model, with all of its safety steps or without one.
pub trait Protocol:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
        Action: Fairness<Self> + Clone + Debug + PartialEq + Send + Sync,
    > + Clone
    + Send
    + Sync
    + 'static
{
    /// The steps that can be removed.
    type Step: SafetyStep;

    /// The name of the model.
    const NAME: &'static str;

    /// The name of the liveness property: every fair run reaches a settled state.
    const EVENTUALLY: &'static str = EVENTUALLY;

    /// Whether nothing waits in this state.
    fn is_settled(&self, state: &Self::State) -> bool;

    /// The names of the scenes in which the full protocol is explored.
    const SCENES: &'static [&'static str];

    /// More scenes, which take longer than a test may.
    const LONG_SCENES: &'static [&'static str];

    /// The protocol with all steps or without one, in the scene of this name.
    fn scene(name: &'static str, without: Option<Self::Step>) -> Self;
}

/// An action of a model.
pub trait Fairness<M: Model> {
    /// Whether it is taken eventually if it is possible again and again. Callers that start or give up are not fair in
    /// this sense, nor are faults.
    fn is_fair(&self, model: &M, state: &M::State) -> bool;
}

/// A safety step that can be removed.
pub trait SafetyStep: Copy + Debug + PartialEq + Send + Sync + 'static {
    /// For every step the property that breaks without it, and a scene in which it does.
    const REMOVALS: &'static [(Self, &'static str, &'static str)];
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Explored {
    /// Distinct states.
    pub unique: usize,
    /// Generated states, each counted as often as it was reached.
    pub generated: usize,
    /// Actions to the states that are farthest from the initial one.
    pub depth: usize,
    /// How long it took.
    pub time: Duration,
    /// A shortest path to a state that breaks a property.
    pub violation: Option<Violation>,
    /// Properties that should be true sometimes and never were: a model that can do nothing breaks no property either.
    pub never: Vec<&'static str>,
}

/// A counterexample.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The property that is broken.
    pub property: &'static str,
    /// The actions that lead there.
    pub trace: Vec<String>,
}

/// Visits all states breadth first, until one breaks a property.
pub fn explore<M: Protocol>(model: &M) -> Explored {
    let started = Instant::now();
    let walk = Walk::through(model, Until::AnythingBreaks);
    let violation = walk.violation();
    let properties = model.properties();
    let sometimes =
        properties.iter().filter(|property| matches!(property.expectation, Expectation::Sometimes));
    let names = sometimes.map(|property| property.name);
    Explored {
        unique: walk.unique(),
        generated: walk.generated,
        depth: walk.depth,
        time: started.elapsed(),
        never: names.filter(|name| !walk.happened.contains(name)).collect(),
        violation,
    }
}

/// Finds a shortest path to a state that breaks this property; always the same one.
pub fn hunt<M: Protocol>(model: &M, property: &'static str) -> Option<Violation> {
    Walk::through(model, Until::Breaks(property)).violation()
}

/// Explores the full protocol in all scenes.
///
/// # Errors
///
/// A counterexample, or properties that were never true.
pub fn full_protocol<M: Protocol>() -> Result<Vec<(&'static str, Explored)>, String> {
    M::SCENES
        .iter()
        .map(|scene| {
            let explored = explore(&M::scene(scene, None));
            match &explored.violation {
                Some(violation) => Err(format!("{scene}: {violation}")),
                None if !explored.never.is_empty() => Err(format!("{scene}: never {:?}", explored.never)),
                None => Ok((*scene, explored)),
            }
        })
        .collect()
}

/// Finds the counterexample that the protocol without this step must have.
///
/// # Errors
///
/// The property holds without the step.
pub fn without<M: Protocol>(step: M::Step) -> Result<Violation, String> {
    let (_, property, scene) = M::Step::REMOVALS
        .iter()
        .find(|(removed, ..)| *removed == step)
        .ok_or_else(|| format!("no removal of {step:?}"))?;
    hunt(&M::scene(scene, Some(step)), property)
        .ok_or_else(|| format!("without {step:?} this still holds: \"{property}\""))
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\" is broken after {} steps:", self.property, self.trace.len())?;
        self.trace.iter().enumerate().try_for_each(|(nth, action)| write!(f, "\n  {:>2} {action}", nth + 1))
    }
}
