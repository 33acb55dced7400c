//! The keeper: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every other test is named after what happens without the step.

mod common;

use common::{assert_protocol_holds, assert_step_is_needed};
use lockkit_models::keeper::{Keeper, Step};

#[test]
fn full_protocol_holds() {
    assert_protocol_holds::<Keeper>();
}

#[test]
fn deadline_from_the_answer_is_too_late() {
    assert_step_is_needed::<Keeper>(Step::DeadlineFromSending);
}

#[test]
fn loss_without_a_latch_is_undone() {
    assert_step_is_needed::<Keeper>(Step::LossIsLatched);
}

#[test]
fn heartbeat_renews_a_hold_that_is_being_released() {
    assert_step_is_needed::<Keeper>(Step::NoRenewalOnceReleasing);
}

#[test]
fn untaken_grant_is_kept() {
    assert_step_is_needed::<Keeper>(Step::UntakenGrantReleased);
}

#[test]
fn release_that_is_not_repeated_leaves_its_entry() {
    assert_step_is_needed::<Keeper>(Step::ReleaseRepeats);
}

#[test]
fn dead_hold_stays_alive_with_its_session() {
    assert_step_is_needed::<Keeper>(Step::DeadHoldEndsSession);
}

#[test]
fn grant_at_the_end_of_its_session_stays_held() {
    assert_step_is_needed::<Keeper>(Step::NewHoldChecksSession);
}

#[test]
fn caller_that_joins_a_given_up_attempt_gets_busy() {
    assert_step_is_needed::<Keeper>(Step::NoJoinAfterGiveUp);
}

#[test]
fn owner_that_asks_before_the_table_is_updated_waits_behind_itself() {
    assert_step_is_needed::<Keeper>(Step::TableUpdatedWithAnswers);
}

#[test]
fn caller_that_leaves_before_all_shares_are_counted_ends_the_hold() {
    assert_step_is_needed::<Keeper>(Step::SharesCountedFirst);
}

#[test]
fn owner_whose_try_is_granted_waits_behind_itself() {
    assert_step_is_needed::<Keeper>(Step::GrantServesTheOwner);
}

#[test]
fn refused_release_leaves_its_entry() {
    assert_step_is_needed::<Keeper>(Step::RefusedReleaseEndsSession);
}

#[test]
fn attempt_waits_for_an_ended_session() {
    assert_step_is_needed::<Keeper>(Step::AttemptOutlivesSession);
}
