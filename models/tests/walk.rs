//! How models are explored: as stateright's own checker does it, with a check of liveness.

use lockkit_models::{
    explore::{Fairness, Protocol, SafetyStep, explore},
    redis::Redis,
};
use stateright::{Checker, Model, Property};

const ARRIVES: &str = "it arrives eventually";

/// Moves between 1 and 2, and may leave for 3. With a trap, 1 also leads to 4 and 5, which lead only to each other.
#[derive(Clone, Debug)]
struct Wanderer {
    leaves: bool,
    has_trap: bool,
}

impl Model for Wanderer {
    type State = u8;
    /// The next place.
    type Action = u8;

    fn init_states(&self) -> Vec<u8> {
        vec![1]
    }

    fn actions(&self, place: &u8, actions: &mut Vec<u8>) {
        match place {
            1 if self.has_trap => actions.extend([2, 4]),
            1 => actions.push(2),
            2 => actions.extend([1, 3]),
            4 => actions.push(5),
            5 => actions.push(4),
            _ => {}
        }
    }

    fn next_state(&self, _: &u8, next: u8) -> Option<u8> {
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::sometimes("it is on its way", |_, place| *place == 2)]
    }
}

impl Fairness<Wanderer> for u8 {
    fn is_fair(&self, wanderer: &Wanderer, _: &u8) -> bool {
        *self != 3 || wanderer.leaves
    }
}

/// It has no safety steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum NoStep {}

impl SafetyStep for NoStep {
    const REMOVALS: &'static [(Self, &'static str, &'static str)] = &[];
}

impl Protocol for Wanderer {
    type Step = NoStep;
    const NAME: &'static str = "wanderer";
    const EVENTUALLY: &'static str = ARRIVES;

    fn is_settled(&self, place: &u8) -> bool {
        *place == 3
    }

    const SCENES: &'static [&'static str] = &[];
    const LONG_SCENES: &'static [&'static str] = &[];

    fn scene(name: &'static str, _: Option<NoStep>) -> Self {
        Self { leaves: name.contains("leaves"), has_trap: name.contains("trap") }
    }
}

#[test]
fn cycle_without_a_fair_exit_breaks_liveness() {
    let end = |scene| explore(&Wanderer::scene(scene, None)).violation;

    assert!(end("leaves").is_none());
    let never_leaves = end("stays").expect("1 and 2 are visited for ever");
    assert_eq!((never_leaves.property, never_leaves.trace.len()), (ARRIVES, 0));
    let trapped = end("leaves, trap").expect("4 and 5 are visited for ever");
    assert_eq!(trapped.trace, ["4"]);
}

#[test]
fn states_are_those_that_stateright_finds() {
    for scene in Redis::SCENES.iter().filter(|scene| scene.contains("death")) {
        let model = Redis::scene(scene, None);
        let explored = explore(&model);
        let checked = model.checker().spawn_bfs().join();
        assert_eq!(explored.unique, checked.unique_state_count(), "{scene}");
        assert_eq!(explored.generated, checked.state_count(), "{scene}");
        assert_eq!(explored.depth, checked.max_depth() - 1, "{scene}");
    }
}
