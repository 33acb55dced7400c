//! What the tests of all models share.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use lockkit_models::explore::{self, Protocol};

/// Two clients with two claims each: what every model goes through, whatever else.
const SCOPE: &str = "2 x 2";

/// The least number of different states that say something about it.
const STATES_MIN: usize = 100_000;

/// The full protocol holds in all scenes, and one of them at least is large enough.
pub(crate) fn holds<M: Protocol>() {
    let scenes = explore::full_protocol::<M>().unwrap();
    for (scene, explored) in &scenes {
        println!("{}, {scene}: {} states in {:.1?}", M::NAME, explored.unique, explored.time);
    }
    let in_scope = scenes.iter().filter(|(scene, _)| scene.starts_with(SCOPE));
    let states = in_scope.map(|(_, explored)| explored.unique).max().unwrap_or(0);
    assert!(states >= STATES_MIN, "{states} states");
}

/// Without the step there is a counterexample to the property that the model names.
pub(crate) fn is_needed<M: Protocol>(step: M::Step) {
    let violation = explore::without::<M>(step).unwrap();
    println!("{}, without {step:?}: {violation}", M::NAME);
}
