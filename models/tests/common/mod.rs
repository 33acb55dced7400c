//! What the tests of all models share.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use lockkit_models::explore::{self, Protocol};

/// Two clients with two claims each: what every model goes through, whatever else.
const SCOPE: &str = "2 x 2";

/// The least number of different states that say something about it.
const STATES_MIN: usize = 100_000;

/// What is written about all this.
const DOCUMENT: &str = include_str!("../../../docs/models.md");

/// The full protocol holds in all scenes, and one of them at least is large enough.
pub(crate) fn holds<M: Protocol>() {
    let scenes = explore::full_protocol::<M>().unwrap();
    for (scene, explored) in &scenes {
        println!("{}, {scene}: {} states in {:.1?}", M::NAME, explored.unique, explored.time);
    }
    let in_scope = scenes.iter().filter(|(scene, _)| scene.starts_with(SCOPE));
    let states = in_scope.map(|(_, explored)| explored.unique).max().unwrap_or(0);
    assert!(states >= STATES_MIN, "{states} states");
    for (scene, explored) in &scenes {
        let row = format!("| {scene} | {} | {} |", grouped(explored.unique), explored.depth);
        assert_is_documented::<M>(&row, "");
    }
}

/// Without the step there is a counterexample to the property that the model names.
pub(crate) fn is_needed<M: Protocol>(step: M::Step) {
    let violation = explore::without::<M>(step).unwrap();
    println!("{}, without {step:?}: {violation}", M::NAME);
    let end = format!(" | {} | {} |", violation.property, violation.trace.len());
    assert_is_documented::<M>(&format!("| `{step:?}`"), &end);
}

/// The model's chapter has a line that begins and ends like this.
fn assert_is_documented<M: Protocol>(begin: &str, end: &str) {
    let chapter = DOCUMENT.split("\n## ").find(|chapter| chapter.starts_with(M::NAME)).unwrap_or_default();
    let found = chapter.lines().any(|line| line.starts_with(begin) && line.ends_with(end));
    assert!(found, "docs/models.md does not say: {begin} ... {end}");
}

/// With commas between thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let comma = |place: usize| if place > 0 && (digits.len() - place).is_multiple_of(3) { "," } else { "" };
    digits.char_indices().map(|(place, digit)| format!("{}{digit}", comma(place))).collect()
}
