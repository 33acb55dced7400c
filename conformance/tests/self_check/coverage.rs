//! Every scenario of the design is carried by a case.

use std::collections::BTreeSet;

use lockkit_conformance::cases;

/// The scenarios by letter and how many there are: common ones, faults, etcd, dropped and leaked things, security,
/// long histories. (Those of a backend alone, `Z` and `R`, come with it.)
const SCENARIOS: [(char, u32); 6] = [('C', 20), ('F', 28), ('E', 11), ('A', 8), ('S', 7), ('X', 2)];

/// Those that no case carries, with the reason.
const ELSEWHERE: &[(&str, &str)] = &[("X2", "takes twelve hours: a program of its own")];

#[test]
fn every_scenario_is_carried_by_a_case_or_stands_elsewhere_with_a_reason() {
    let known = |(letter, count): (char, u32)| (1..=count).map(move |number| format!("{letter}{number}"));
    let known: BTreeSet<String> = SCENARIOS.into_iter().flat_map(known).collect();
    let carried = cases().into_iter().flat_map(|case| case.scenarios).map(ToString::to_string);
    let carried: BTreeSet<String> = carried.collect();
    let elsewhere: BTreeSet<String> = ELSEWHERE.iter().map(|(id, _)| (*id).to_owned()).collect();

    let missing: Vec<_> = known.difference(&carried).filter(|id| !elsewhere.contains(*id)).collect();
    assert!(missing.is_empty(), "no case carries {missing:?}");
    let twice: Vec<_> = elsewhere.intersection(&carried).collect();
    assert!(twice.is_empty(), "carried by a case, and listed as elsewhere: {twice:?}");
    let unknown: Vec<_> = elsewhere.difference(&known).collect();
    assert!(unknown.is_empty(), "no scenario: {unknown:?}");
    let of_backends = |id: &&String| id.starts_with(['Z', 'R', 'Q']);
    let unknown: Vec<_> = carried.difference(&known).filter(|id| !of_backends(id)).collect();
    assert!(unknown.is_empty(), "no scenario: {unknown:?}");
}
