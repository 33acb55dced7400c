//! The etcd queue: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every row is a test, named after what happens without the step.

mod common;

use lockkit_models::etcd::{Etcd, Step};

common::tests_of! { Etcd;
    late_copy_without_an_epoch_bump_is_an_orphan: EpochBump,
    late_copy_after_an_operators_delete_is_an_orphan: EpochBumpWhenKeyGone,
    copy_after_a_bump_that_counts_as_fenced_is_an_orphan: LastCopyTagsTheClaim,
    key_of_a_fenced_copy_that_is_not_deleted_is_an_orphan: FencedCopyMayHaveCreated,
    handoff_to_a_deleted_waiter_makes_two_holders: HandoffComparesReceiver,
    release_that_keeps_a_wrong_order_never_ends: WrongOrderForgotten,
    two_claims_with_one_key_both_hold: KeyPerClaim,
    reused_unconfirmed_key_is_deleted_by_an_old_request: UnconfirmedKeyRetired,
    handoff_to_an_earlier_claim_grants_a_later_one: HandoffNamesRevision,
    end_of_a_waiting_predecessor_grants: ReadBeforeGrant,
    read_without_the_own_key_grants_a_deleted_claim: ReadFindsOwnKey,
    lost_notification_without_a_recheck_blocks_for_ever: Recheck,
    recheck_by_name_mistakes_a_later_claim_for_the_predecessor: RecheckComparesRevisions,
    try_that_ignores_the_queue_gets_a_second_hold: TryNeedsEmptyQueue,
    holder_without_a_deadline_outlives_its_lease: DeadlineBeforeExpiry,
    answer_after_the_end_of_its_lease_grants: DeadlineOfLateGrants,
    hold_before_a_foreign_contender_never_ends: ReleaseWithoutHandoff,
    key_whose_deletion_is_refused_stays: RefusalEndsSession,
}
