//! What the tests of all models share.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use lockkit_models::explore::{self, Protocol};

/// The least number of different states that a model goes through.
const STATES_MIN: usize = 100_000;

/// The full protocol holds in all scenes, which together have enough states to say something.
pub(crate) fn holds<M: Protocol>() {
    let scenes = explore::full_protocol::<M>().unwrap();
    for (scene, explored) in &scenes {
        println!("{}, {scene}: {} states in {:.1?}", M::NAME, explored.unique, explored.time);
    }
    let states: usize = scenes.iter().map(|(_, explored)| explored.unique).sum();
    assert!(states >= STATES_MIN, "{states} states");
}

/// Without the step there is a counterexample to the property that the model names.
pub(crate) fn is_needed<M: Protocol>(step: M::Step) {
    let violation = explore::without::<M>(step).unwrap();
    println!("{}, without {step:?}: {violation}", M::NAME);
}
