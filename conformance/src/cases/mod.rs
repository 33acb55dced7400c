//! The cases. Each proves what its name says.

mod attempts;
mod breaking;
mod cancel;
mod clocks;
mod disk;
mod elections;
mod evidence;
mod exclusion;
mod inspection;
mod lifetimes;
mod links;
mod lock_sets;
mod losses;
mod names;
mod order;
mod pins;
mod processes;
mod promptness;
mod random;
mod records;
mod reentry;
mod residue;
mod server;
mod sessions;
mod silence;
mod stores;
mod takeover;
mod trust;
mod ttl;

use crate::Case;

/// Every case, in a stable order.
pub(crate) fn all() -> Vec<Case> {
    [
        exclusion::CASES,
        attempts::CASES,
        order::CASES,
        reentry::CASES,
        ttl::CASES,
        lifetimes::CASES,
        residue::CASES,
        names::CASES,
        trust::CASES,
        cancel::CASES,
        lock_sets::CASES,
        sessions::CASES,
        silence::CASES,
        clocks::CASES,
        losses::CASES,
        server::CASES,
        disk::CASES,
        links::CASES,
        stores::CASES,
        elections::CASES,
        records::CASES,
        pins::CASES,
        inspection::CASES,
        breaking::CASES,
        evidence::CASES,
        processes::CASES,
        random::CASES,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_several_words() {
        let mut seen = HashSet::new();
        for case in all() {
            assert!(seen.insert(case.name), "{} twice", case.name);
            assert!(case.name.split('_').count() >= 3, "{} is too short a name", case.name);
            assert!(!case.properties.is_empty(), "{case:?}");
        }
    }
}
