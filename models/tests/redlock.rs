//! Redlock: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every other test is named after what happens without the step.

mod common;

use common::{assert_protocol_holds, assert_step_is_needed};
use lockkit_models::redlock::{Redlock, Step};

#[test]
fn full_protocol_holds() {
    assert_protocol_holds::<Redlock>();
}

#[test]
fn highest_answer_as_token_repeats_a_token() {
    assert_step_is_needed::<Redlock>(Step::FastPathNeedsOneValue);
}

#[test]
fn write_back_to_another_claims_key_repeats_a_token() {
    assert_step_is_needed::<Redlock>(Step::WriteBackChecksOwner);
}

#[test]
fn write_back_below_the_counter_repeats_a_token() {
    assert_step_is_needed::<Redlock>(Step::WriteBackChecksCounter);
}

#[test]
fn late_restore_revives_an_ended_grant() {
    assert_step_is_needed::<Redlock>(Step::RestoreChecksCounter);
}

#[test]
fn release_that_keeps_the_counter_admits_a_late_restore() {
    assert_step_is_needed::<Redlock>(Step::ReleaseRaisesCounter);
}

#[test]
fn late_copy_leaves_a_key_without_a_release() {
    assert_step_is_needed::<Redlock>(Step::UncertainAskWithdrawn);
}

#[test]
fn emptied_node_makes_a_second_majority() {
    assert_step_is_needed::<Redlock>(Step::MarkerIsTested);
}

#[test]
fn marker_without_a_wait_makes_a_second_majority() {
    assert_step_is_needed::<Redlock>(Step::MarkerWaits);
}

#[test]
fn marked_node_with_an_empty_counter_repeats_a_token() {
    assert_step_is_needed::<Redlock>(Step::MarkerRaisesCounter);
}

#[test]
fn minority_heartbeat_readmits_an_emptied_node_too_early() {
    assert_step_is_needed::<Redlock>(Step::RenewalNeedsMajority);
}

#[test]
fn counter_of_a_minority_repeats_a_token() {
    assert_step_is_needed::<Redlock>(Step::MarkerNeedsMajority);
}

#[test]
fn marker_on_a_node_emptied_again_makes_a_second_majority() {
    assert_step_is_needed::<Redlock>(Step::MarkerNamesItsNote);
}

#[test]
fn emptied_node_waits_for_a_holder_renewed_without_it() {
    assert_step_is_needed::<Redlock>(Step::RenewalDropsEmptiedNode);
}
