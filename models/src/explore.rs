//! Runs a model through all of its states.

use std::{
    fmt::Debug,
    hash::Hash,
    time::{Duration, Instant},
};

use stateright::{Expectation, Model};

use crate::walk::{Until, Walk};

/// A protocol as a model: what it does with all of its steps, and what goes wrong without one.
pub trait Protocol:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
        Action: Clone + Debug + PartialEq + Send + Sync,
    > + Clone
    + Send
    + Sync
    + 'static
{
    /// A safety step that can be taken out.
    type Step: Copy + Debug + PartialEq + Send + Sync + 'static;

    /// The name of the model.
    const NAME: &'static str;

    /// What must be true in the end, in the words of a property.
    const IN_THE_END: &'static str;

    /// Whether it is true: nothing is waited for.
    fn is_settled(&self, state: &Self::State) -> bool;

    /// Whether this happens by itself, sooner or later, where it can happen again and again. What callers begin or break
    /// off does not, and no fault does.
    fn is_bound(&self, state: &Self::State, action: &Self::Action) -> bool;

    /// The full protocol, under different faults.
    fn scenes() -> Vec<(&'static str, Self)>;

    /// More of them, which take longer than a test may.
    fn long_scenes() -> Vec<(&'static str, Self)> {
        Vec::new()
    }

    /// Every step: the protocol without it, and the property that breaks.
    fn removals() -> Vec<Removal<Self>>;
}

/// A protocol without one of its steps.
#[derive(Clone, Debug)]
pub struct Removal<M: Protocol> {
    /// What was taken out.
    pub step: M::Step,
    /// The protocol without it.
    pub model: M,
    /// The property that must break.
    pub breaks: &'static str,
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Explored {
    /// Different states.
    pub unique: usize,
    /// States that were generated, the same one as often as it was reached.
    pub generated: usize,
    /// Steps to the states that are farthest from the beginning.
    pub depth: usize,
    /// How long it took.
    pub time: Duration,
    /// The shortest way to a state that breaks a property.
    pub violation: Option<Violation>,
    /// What was expected to happen sometimes and never did: a model that can do nothing breaks no property either.
    pub never: Vec<&'static str>,
}

/// A counterexample.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The property.
    pub property: &'static str,
    /// The steps that lead to it.
    pub trace: Vec<String>,
}

/// Visits all states, breadth first, until one breaks a property.
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

/// Looks for a shortest way to a state that breaks this property; the same one every time.
pub fn hunt<M: Protocol>(model: &M, property: &'static str) -> Option<Violation> {
    Walk::through(model, Until::Breaks(property)).violation()
}

/// Explores the full protocol in all scenes.
///
/// # Errors
///
/// The counterexample, or what never happened.
pub fn full_protocol<M: Protocol>() -> Result<Vec<(&'static str, Explored)>, String> {
    M::scenes()
        .into_iter()
        .map(|(scene, model)| {
            let explored = explore(&model);
            match &explored.violation {
                Some(violation) => Err(format!("{scene}: {violation}")),
                None if !explored.never.is_empty() => Err(format!("{scene}: never {:?}", explored.never)),
                None => Ok((scene, explored)),
            }
        })
        .collect()
}

/// Looks for the counterexample that the protocol without this step must have.
///
/// # Errors
///
/// There is none.
pub fn without<M: Protocol>(step: M::Step) -> Result<Violation, String> {
    let removal = M::removals().into_iter().find(|removal| removal.step == step);
    let removal = removal.ok_or_else(|| format!("{step:?} is not taken out anywhere"))?;
    hunt(&removal.model, removal.breaks)
        .ok_or_else(|| format!("without {step:?} it is still true: \"{}\"", removal.breaks))
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not \"{}\" after {} steps:", self.property, self.trace.len())?;
        self.trace.iter().enumerate().try_for_each(|(nth, action)| write!(f, "\n  {:>2} {action}", nth + 1))
    }
}
