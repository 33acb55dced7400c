//! Assertions for the tests of all models.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use lockkit_models::explore::{self, Protocol, SafetyStep as _};

/// Two clients with two claims each: every model has such a scene.
const SCOPE: &str = "2 x 2";

/// Minimum number of distinct states of the largest scene in that scope.
const STATES_MIN: usize = 100_000;

/// The document with the tables.
const DOCUMENT: &str = include_str!("../../../docs/models.md");

/// The tests of a model: one of the full protocol, and one for each step.
macro_rules! tests_of {
    ($model:ty; $($without_it:ident: $step:ident,)*) => {
        #[test]
        fn full_protocol_holds() {
            crate::common::assert_protocol_holds::<$model>();
        }

        $(
            #[test]
            fn $without_it() {
                crate::common::assert_step_is_needed::<$model>(Step::$step);
            }
        )*

        #[test]
        fn every_step_has_a_test() {
            crate::common::assert_steps_are_all::<$model>(&[$(Step::$step),*]);
        }
    };
}
pub(crate) use tests_of;

/// Asserts that the full protocol holds in all scenes, and that at least one of them is large enough.
pub(crate) fn assert_protocol_holds<M: Protocol>() {
    let scenes = explore::full_protocol::<M>().unwrap();
    for (scene, explored) in &scenes {
        println!("{}, {scene}: {} states in {:.1?}", M::NAME, explored.unique, explored.time);
    }
    let in_scope = scenes.iter().filter(|(scene, _)| scene.starts_with(SCOPE));
    let states = in_scope.map(|(_, explored)| explored.unique).max().unwrap_or(0);
    assert!(states >= STATES_MIN, "{states} states");
    for (scene, explored) in &scenes {
        let row = format!("| {scene} | {} | {} |", grouped(explored.unique), explored.depth);
        assert_documented::<M>(&row, "");
    }
}

/// Asserts that the protocol without this step breaks the property that the model names.
pub(crate) fn assert_step_is_needed<M: Protocol>(step: M::Step) {
    let violation = explore::without::<M>(step).unwrap();
    println!("{}, without {step:?}: {violation}", M::NAME);
    let end = format!(" | {} | {} |", violation.property, violation.trace.len());
    assert_documented::<M>(&format!("| `{step:?}`"), &end);
}

/// Asserts that these are all steps that the model removes.
pub(crate) fn assert_steps_are_all<M: Protocol>(tested: &[M::Step]) {
    let untested: Vec<_> = M::Step::REMOVALS.iter().filter(|(step, ..)| !tested.contains(step)).collect();
    assert!(untested.is_empty(), "no test of {untested:?}");
}

/// Asserts that the model's chapter has a line that begins and ends like this.
fn assert_documented<M: Protocol>(begin: &str, end: &str) {
    let chapter = DOCUMENT.split("\n## ").find(|chapter| chapter.starts_with(M::NAME)).unwrap_or_default();
    let found = chapter.lines().any(|line| line.starts_with(begin) && line.ends_with(end));
    assert!(found, "docs/models.md does not say: {begin} ... {end}");
}

/// Formats a number with commas between thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let comma = |place: usize| if place > 0 && (digits.len() - place).is_multiple_of(3) { "," } else { "" };
    digits.char_indices().map(|(place, digit)| format!("{}{digit}", comma(place))).collect()
}
