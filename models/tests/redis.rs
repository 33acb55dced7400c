//! The Redis queue: no counterexample to the full protocol, one to each protocol without a step.

mod common;

use common::{holds, is_needed};
use lockkit_models::redis::{Redis, Step};

#[test]
fn the_full_protocol_holds() {
    holds::<Redis>();
}

#[test]
fn a_newcomer_would_overtake_the_queue() {
    is_needed::<Redis>(Step::QueueBeforeNewcomers);
}

#[test]
fn a_newcomer_would_overtake_a_queue_that_was_not_gone_through() {
    is_needed::<Redis>(Step::UnservedIsNotFree);
}

#[test]
fn a_counter_alone_would_repeat_a_token_after_a_failover() {
    is_needed::<Redis>(Step::TokenFromClock);
}

#[test]
fn a_release_that_does_not_look_would_end_another_claims_hold() {
    is_needed::<Redis>(Step::ReleaseChecksClaim);
}

#[test]
fn a_cancelled_waiter_would_stay_in_the_queue() {
    is_needed::<Redis>(Step::ReleaseLeavesQueue);
}

#[test]
fn after_a_failover_a_beat_would_renew_another_grant_of_its_claim() {
    is_needed::<Redis>(Step::BeatChecksToken);
}

#[test]
fn a_late_beat_would_bring_a_waiter_back() {
    is_needed::<Redis>(Step::BeatNeverAdds);
}

#[test]
fn a_late_message_would_grant_what_has_expired() {
    is_needed::<Redis>(Step::ConfirmBeforeGrant);
}

#[test]
fn without_the_re_check_a_lost_message_is_waited_for_without_end() {
    is_needed::<Redis>(Step::Recheck);
}

#[test]
fn a_holder_without_a_deadline_of_its_own_believes_too_long() {
    is_needed::<Redis>(Step::DeadlineBeforeExpiry);
}

#[test]
fn a_late_beat_would_prolong_what_another_claim_holds() {
    is_needed::<Redis>(Step::BeatChecksHolder);
}

#[test]
fn a_confirm_that_never_grants_turns_away_who_has_the_lock() {
    is_needed::<Redis>(Step::ConfirmFindsGrant);
}

#[test]
fn a_dead_holder_would_be_waited_for_without_end() {
    is_needed::<Redis>(Step::ConfirmServes);
}

#[test]
fn an_answer_that_comes_after_the_expiry_would_grant() {
    is_needed::<Redis>(Step::DeadlineFromSending);
}

#[test]
fn a_claim_that_is_refused_would_leave_what_it_has_sent() {
    is_needed::<Redis>(Step::RefusalWithdraws);
}
