//! The etcd queue with modes: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every other test is named after what happens without the step.

mod common;

use common::{assert_protocol_holds, assert_step_is_needed};
use lockkit_models::etcd_modes::{EtcdModes, Step};

#[test]
fn full_protocol_holds() {
    assert_protocol_holds::<EtcdModes>();
}

#[test]
fn permit_joins_an_exclusive_holder() {
    assert_step_is_needed::<EtcdModes>(Step::HeedsLimitsBefore);
}

#[test]
fn claims_that_count_each_other_block_for_ever() {
    assert_step_is_needed::<EtcdModes>(Step::CountsThoseBefore);
}

#[test]
fn shared_claim_overtakes_an_exclusive_waiter() {
    assert_step_is_needed::<EtcdModes>(Step::CountsWaiters);
}

#[test]
fn count_before_the_enqueue_misses_a_claim() {
    assert_step_is_needed::<EtcdModes>(Step::CountsWithEnqueue);
}

#[test]
fn read_without_the_own_key_grants_a_deleted_claim() {
    assert_step_is_needed::<EtcdModes>(Step::ReadFindsOwnKey);
}

#[test]
fn handoff_to_the_first_leaves_the_other_shared_claims_waiting() {
    assert_step_is_needed::<EtcdModes>(Step::HandsOffToAll);
}

#[test]
fn read_before_the_deletion_misses_a_claim() {
    assert_step_is_needed::<EtcdModes>(Step::QueueReadWithDeletion);
}

#[test]
fn last_shared_hold_leaves_an_exclusive_waiter_waiting() {
    assert_step_is_needed::<EtcdModes>(Step::SharedHoldHandsOff);
}

#[test]
fn withdrawal_leaves_those_behind_waiting() {
    assert_step_is_needed::<EtcdModes>(Step::WithdrawalHandsOff);
}

#[test]
fn repeated_deletion_leaves_those_behind_waiting() {
    assert_step_is_needed::<EtcdModes>(Step::RepetitionHandsOff);
}

#[test]
fn handoff_to_a_deleted_key_grants_its_successor() {
    assert_step_is_needed::<EtcdModes>(Step::HandoffNamesKey);
}

#[test]
fn late_handoff_gives_a_token_above_a_later_claims() {
    assert_step_is_needed::<EtcdModes>(Step::HandoffNamesAdmission);
}

#[test]
fn lost_handoff_without_a_recheck_blocks_for_ever() {
    assert_step_is_needed::<EtcdModes>(Step::Recheck);
}

#[test]
fn holder_without_a_deadline_outlives_its_lease() {
    assert_step_is_needed::<EtcdModes>(Step::DeadlineBeforeExpiry);
}
