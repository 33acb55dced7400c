//! Redlock: no counterexample to the full protocol, one to each protocol without a step.

mod common;

use common::{holds, is_needed};
use lockkit_models::redlock::{Redlock, Step};

#[test]
fn the_full_protocol_holds() {
    holds::<Redlock>();
}

#[test]
fn the_highest_answer_is_no_token() {
    is_needed::<Redlock>(Step::FastPathNeedsOneValue);
}

#[test]
fn a_write_back_to_a_node_of_others_would_repeat_a_token() {
    is_needed::<Redlock>(Step::WriteBackChecksOwner);
}

#[test]
fn a_write_back_below_the_counter_would_repeat_a_token() {
    is_needed::<Redlock>(Step::WriteBackChecksCounter);
}

#[test]
fn a_late_restore_would_revive_a_grant_that_has_ended() {
    is_needed::<Redlock>(Step::RestoreChecksCounter);
}

#[test]
fn a_release_that_leaves_the_counter_would_let_a_late_restore_in() {
    is_needed::<Redlock>(Step::ReleaseRaisesCounter);
}

#[test]
fn a_copy_that_is_late_would_leave_a_key_that_nobody_takes_back() {
    is_needed::<Redlock>(Step::DoubtIsTakenBack);
}

#[test]
fn a_node_that_restarted_empty_would_make_a_second_majority() {
    is_needed::<Redlock>(Step::MarkerIsTested);
}

#[test]
fn a_marker_that_comes_back_at_once_would_make_a_second_majority() {
    is_needed::<Redlock>(Step::MarkerWaits);
}

#[test]
fn a_marked_node_with_an_empty_counter_would_repeat_a_token() {
    is_needed::<Redlock>(Step::MarkerRaisesCounter);
}

#[test]
fn a_beat_of_a_minority_would_let_an_emptied_node_back_too_early() {
    is_needed::<Redlock>(Step::RenewNeedsMajority);
}

#[test]
fn a_counter_that_a_minority_has_would_repeat_a_token() {
    is_needed::<Redlock>(Step::MarkerNeedsMajority);
}

#[test]
fn a_marker_on_a_node_that_was_emptied_again_would_make_a_second_majority() {
    is_needed::<Redlock>(Step::MarkerNamesItsNote);
}

#[test]
fn an_emptied_node_would_wait_for_a_holder_that_needs_it_no_more() {
    is_needed::<Redlock>(Step::RenewMakesUp);
}
