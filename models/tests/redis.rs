//! The Redis queue: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every other test is named after what happens without the step.

mod common;

use common::{assert_protocol_holds, assert_step_is_needed};
use lockkit_models::redis::{Redis, Step};

#[test]
fn full_protocol_holds() {
    assert_protocol_holds::<Redis>();
}

#[test]
fn newcomer_overtakes_the_queue() {
    assert_step_is_needed::<Redis>(Step::QueueBeforeNewcomers);
}

#[test]
fn newcomer_overtakes_an_unserved_queue() {
    assert_step_is_needed::<Redis>(Step::UnservedQueueIsNotFree);
}

#[test]
fn counter_alone_repeats_a_token_after_a_failover() {
    assert_step_is_needed::<Redis>(Step::TokenFromClock);
}

#[test]
fn unchecked_release_ends_another_claims_hold() {
    assert_step_is_needed::<Redis>(Step::ReleaseChecksClaim);
}

#[test]
fn cancelled_waiter_stays_in_the_queue() {
    assert_step_is_needed::<Redis>(Step::ReleaseLeavesQueue);
}

#[test]
fn heartbeat_after_a_failover_renews_another_grant_of_its_claim() {
    assert_step_is_needed::<Redis>(Step::HeartbeatChecksToken);
}

#[test]
fn late_heartbeat_puts_a_waiter_back() {
    assert_step_is_needed::<Redis>(Step::HeartbeatNeverAdds);
}

#[test]
fn late_message_grants_an_expired_lock() {
    assert_step_is_needed::<Redis>(Step::ConfirmBeforeGrant);
}

#[test]
fn lost_message_without_a_recheck_blocks_for_ever() {
    assert_step_is_needed::<Redis>(Step::Recheck);
}

#[test]
fn holder_without_a_deadline_outlives_its_lease() {
    assert_step_is_needed::<Redis>(Step::DeadlineBeforeExpiry);
}

#[test]
fn late_heartbeat_prolongs_another_claims_hold() {
    assert_step_is_needed::<Redis>(Step::HeartbeatChecksHolder);
}

#[test]
fn confirm_that_never_grants_rejects_the_holder() {
    assert_step_is_needed::<Redis>(Step::ConfirmFindsGrant);
}

#[test]
fn dead_holder_blocks_for_ever() {
    assert_step_is_needed::<Redis>(Step::ConfirmServesQueue);
}

#[test]
fn answer_after_the_expiry_grants() {
    assert_step_is_needed::<Redis>(Step::DeadlineFromSending);
}

#[test]
fn refused_claim_leaves_its_entry() {
    assert_step_is_needed::<Redis>(Step::RefusalWithdraws);
}

#[test]
fn push_from_before_the_answer_grants_an_expired_lock() {
    assert_step_is_needed::<Redis>(Step::PushAfterAnswer);
}

#[test]
fn push_whose_hold_counts_from_its_arrival_outlives_the_key() {
    assert_step_is_needed::<Redis>(Step::PushCountsFromAnswer);
}

#[test]
fn push_of_the_former_master_grants_after_a_failover() {
    assert_step_is_needed::<Redis>(Step::PushOfSameMaster);
}

#[test]
fn repeated_push_grants_another_claim_of_its_client() {
    assert_step_is_needed::<Redis>(Step::PushNamesClaim);
}

#[test]
fn push_that_arrives_again_grants_after_the_release() {
    assert_step_is_needed::<Redis>(Step::PushGrantsWaiter);
}
