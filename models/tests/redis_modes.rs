//! The Redis queue with modes: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every other test is named after what happens without the step.

mod common;

use common::{assert_protocol_holds, assert_step_is_needed};
use lockkit_models::redis_modes::{RedisModes, Step};

#[test]
fn full_protocol_holds() {
    assert_protocol_holds::<RedisModes>();
}

#[test]
fn permit_joins_an_exclusive_holder() {
    assert_step_is_needed::<RedisModes>(Step::HeedsLimitsOfHolders);
}

#[test]
fn claims_that_count_before_they_take_both_hold() {
    assert_step_is_needed::<RedisModes>(Step::CountsAndTakesAtOnce);
}

#[test]
fn shared_claim_overtakes_an_exclusive_waiter() {
    assert_step_is_needed::<RedisModes>(Step::QueueBeforeNewcomers);
}

#[test]
fn grant_to_the_first_leaves_the_other_shared_claims_waiting() {
    assert_step_is_needed::<RedisModes>(Step::ServesAll);
}

#[test]
fn last_shared_hold_leaves_an_exclusive_waiter_waiting() {
    assert_step_is_needed::<RedisModes>(Step::SharedReleaseServes);
}

#[test]
fn withdrawal_leaves_those_behind_waiting() {
    assert_step_is_needed::<RedisModes>(Step::WithdrawalServes);
}

#[test]
fn expired_holder_that_is_counted_blocks_for_ever() {
    assert_step_is_needed::<RedisModes>(Step::DropsExpired);
}

#[test]
fn lifetime_for_all_holders_ends_a_live_hold() {
    assert_step_is_needed::<RedisModes>(Step::LifetimePerHolder);
}

#[test]
fn late_renewal_revives_an_ended_hold() {
    assert_step_is_needed::<RedisModes>(Step::RenewalNeverAdds);
}

#[test]
fn shared_grant_repeats_the_token_of_an_exclusive_one() {
    assert_step_is_needed::<RedisModes>(Step::SharedTokenRises);
}

#[test]
fn lost_message_without_a_recheck_blocks_for_ever() {
    assert_step_is_needed::<RedisModes>(Step::Recheck);
}

#[test]
fn holder_without_a_deadline_outlives_its_entry() {
    assert_step_is_needed::<RedisModes>(Step::DeadlineBeforeExpiry);
}
