//! Every property is proved by several cases.

use lockkit_conformance::{Property, cases};

/// Fewer cases than this would test a single situation.
const CASES_PER_PROPERTY_MIN: usize = 3;

#[test]
fn each_property_has_several_cases() {
    for property in Property::ALL {
        let proofs = cases().into_iter().filter(|case| case.properties.contains(&property)).count();
        assert!(proofs >= CASES_PER_PROPERTY_MIN, "{property}: {proofs}");
    }
}
