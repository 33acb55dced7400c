//! The etcd queue: no counterexample to the full protocol, one to each protocol without a step.

mod common;

use common::{holds, is_needed};
use lockkit_models::etcd::{Etcd, Step};

#[test]
fn the_full_protocol_holds() {
    holds::<Etcd>();
}

#[test]
fn without_the_epoch_a_late_copy_is_an_orphan() {
    is_needed::<Etcd>(Step::EpochFence);
}

#[test]
fn without_the_epoch_a_late_copy_comes_back_after_an_operator_has_deleted_the_key() {
    is_needed::<Etcd>(Step::FenceWhenGone);
}

#[test]
fn with_one_key_for_two_claims_both_hold() {
    is_needed::<Etcd>(Step::KeyPerClaim);
}

#[test]
fn a_doubtful_key_that_is_used_again_is_deleted_by_an_old_request() {
    is_needed::<Etcd>(Step::DoubtfulKeyRetired);
}

#[test]
fn a_mail_for_an_earlier_claim_would_grant_a_later_one() {
    is_needed::<Etcd>(Step::MailNamesIncarnation);
}

#[test]
fn the_end_of_a_predecessor_that_only_waited_would_grant() {
    is_needed::<Etcd>(Step::LookBeforeGrant);
}

#[test]
fn a_look_without_the_own_key_would_grant_a_claim_that_is_gone() {
    is_needed::<Etcd>(Step::LookFindsOwnKey);
}

#[test]
fn without_the_re_check_a_lost_notification_is_waited_for_without_end() {
    is_needed::<Etcd>(Step::Recheck);
}

#[test]
fn a_re_check_by_name_alone_takes_a_later_claim_for_the_predecessor() {
    is_needed::<Etcd>(Step::RecheckNamesIncarnation);
}

#[test]
fn a_try_that_does_not_look_at_the_queue_overtakes() {
    is_needed::<Etcd>(Step::TryFindsQueueEmpty);
}

#[test]
fn a_holder_without_a_deadline_of_its_own_believes_too_long() {
    is_needed::<Etcd>(Step::DeadlineBeforeExpiry);
}

#[test]
fn an_answer_that_comes_after_the_end_of_its_lease_would_grant() {
    is_needed::<Etcd>(Step::DeadlineOfGrants);
}

#[test]
fn a_hold_before_a_contender_of_another_program_would_never_end() {
    is_needed::<Etcd>(Step::LeavesUntold);
}

#[test]
fn a_key_whose_deletion_is_refused_would_stay() {
    is_needed::<Etcd>(Step::RefusalEndsSession);
}
