//! The keeper: no counterexample to the full protocol, one to each protocol without a step.

mod common;

use common::{holds, is_needed};
use lockkit_models::keeper::{Keeper, Step};

#[test]
fn the_full_protocol_holds() {
    holds::<Keeper>();
}

#[test]
fn a_deadline_that_counts_from_the_answer_is_too_late() {
    is_needed::<Keeper>(Step::DeadlineFromSending);
}

#[test]
fn a_loss_that_is_not_latched_is_taken_back() {
    is_needed::<Keeper>(Step::LossIsLatched);
}

#[test]
fn a_beat_would_renew_what_is_being_released() {
    is_needed::<Keeper>(Step::NoRenewalOnceReleasing);
}

#[test]
fn a_grant_that_nobody_takes_would_be_kept() {
    is_needed::<Keeper>(Step::UntakenGrantReleased);
}

#[test]
fn a_release_that_is_not_repeated_leaves_its_entry() {
    is_needed::<Keeper>(Step::ReleaseRepeats);
}

#[test]
fn a_dead_hold_would_live_on_with_its_session() {
    is_needed::<Keeper>(Step::DeadHoldAbandons);
}

#[test]
fn a_grant_at_the_end_of_its_session_would_not_hear_of_it() {
    is_needed::<Keeper>(Step::LateHoldSeesTheEnd);
}

#[test]
fn a_caller_who_joins_an_attempt_that_gives_up_would_be_told_busy() {
    is_needed::<Keeper>(Step::NoJoinAfterGiveUp);
}

#[test]
fn an_owner_who_asks_between_answer_and_table_would_wait_behind_itself() {
    is_needed::<Keeper>(Step::TableWithAnswers);
}

#[test]
fn a_caller_that_leaves_before_all_shares_are_counted_would_end_the_hold() {
    is_needed::<Keeper>(Step::SharesCountedFirst);
}

#[test]
fn an_owner_whose_try_is_granted_would_wait_behind_itself() {
    is_needed::<Keeper>(Step::GrantServesTheOwner);
}

#[test]
fn a_release_that_is_refused_would_leave_its_entry() {
    is_needed::<Keeper>(Step::RefusedReleaseAbandons);
}

#[test]
fn an_attempt_would_wait_for_a_session_that_has_ended() {
    is_needed::<Keeper>(Step::AttemptOutlivesSession);
}
