//! The etcd queue: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every other test is named after what happens without the step.

mod common;

use common::{assert_protocol_holds, assert_step_is_needed};
use lockkit_models::etcd::{Etcd, Step};

#[test]
fn full_protocol_holds() {
    assert_protocol_holds::<Etcd>();
}

#[test]
fn late_copy_without_an_epoch_bump_is_an_orphan() {
    assert_step_is_needed::<Etcd>(Step::EpochBump);
}

#[test]
fn late_copy_after_an_operators_delete_is_an_orphan() {
    assert_step_is_needed::<Etcd>(Step::EpochBumpWhenKeyGone);
}

#[test]
fn copy_after_a_bump_that_counts_as_fenced_is_an_orphan() {
    assert_step_is_needed::<Etcd>(Step::LastCopyTagsTheClaim);
}

#[test]
fn key_of_a_fenced_copy_that_is_not_deleted_is_an_orphan() {
    assert_step_is_needed::<Etcd>(Step::FencedCopyMayHaveCreated);
}

#[test]
fn handoff_to_a_deleted_waiter_makes_two_holders() {
    assert_step_is_needed::<Etcd>(Step::HandoffComparesReceiver);
}

#[test]
fn release_that_keeps_a_wrong_order_never_ends() {
    assert_step_is_needed::<Etcd>(Step::WrongOrderForgotten);
}

#[test]
fn two_claims_with_one_key_both_hold() {
    assert_step_is_needed::<Etcd>(Step::KeyPerClaim);
}

#[test]
fn reused_unconfirmed_key_is_deleted_by_an_old_request() {
    assert_step_is_needed::<Etcd>(Step::UnconfirmedKeyRetired);
}

#[test]
fn handoff_to_an_earlier_claim_grants_a_later_one() {
    assert_step_is_needed::<Etcd>(Step::HandoffNamesRevision);
}

#[test]
fn end_of_a_waiting_predecessor_grants() {
    assert_step_is_needed::<Etcd>(Step::ReadBeforeGrant);
}

#[test]
fn read_without_the_own_key_grants_a_deleted_claim() {
    assert_step_is_needed::<Etcd>(Step::ReadFindsOwnKey);
}

#[test]
fn lost_notification_without_a_recheck_blocks_for_ever() {
    assert_step_is_needed::<Etcd>(Step::Recheck);
}

#[test]
fn recheck_by_name_mistakes_a_later_claim_for_the_predecessor() {
    assert_step_is_needed::<Etcd>(Step::RecheckComparesRevisions);
}

#[test]
fn try_that_ignores_the_queue_gets_a_second_hold() {
    assert_step_is_needed::<Etcd>(Step::TryNeedsEmptyQueue);
}

#[test]
fn holder_without_a_deadline_outlives_its_lease() {
    assert_step_is_needed::<Etcd>(Step::DeadlineBeforeExpiry);
}

#[test]
fn answer_after_the_end_of_its_lease_grants() {
    assert_step_is_needed::<Etcd>(Step::DeadlineOfLateGrants);
}

#[test]
fn hold_before_a_foreign_contender_never_ends() {
    assert_step_is_needed::<Etcd>(Step::ReleaseWithoutHandoff);
}

#[test]
fn key_whose_deletion_is_refused_stays() {
    assert_step_is_needed::<Etcd>(Step::RefusalEndsSession);
}
