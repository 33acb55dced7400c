//! The Redis queue: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every row is a test, named after what happens without the step.

mod common;

use lockkit_models::redis::{Redis, Step};

common::tests_of! { Redis;
    newcomer_overtakes_the_queue: QueueBeforeNewcomers,
    newcomer_overtakes_an_unserved_queue: UnservedQueueIsNotFree,
    counter_alone_repeats_a_token_after_a_failover: TokenFromClock,
    unchecked_release_ends_another_claims_hold: ReleaseChecksClaim,
    cancelled_waiter_stays_in_the_queue: ReleaseLeavesQueue,
    heartbeat_after_a_failover_renews_another_grant_of_its_claim: HeartbeatChecksToken,
    late_heartbeat_puts_a_waiter_back: HeartbeatNeverAdds,
    late_message_grants_an_expired_lock: ConfirmBeforeGrant,
    lost_message_without_a_recheck_blocks_for_ever: Recheck,
    holder_without_a_deadline_outlives_its_lease: DeadlineBeforeExpiry,
    late_heartbeat_prolongs_another_claims_hold: HeartbeatChecksHolder,
    confirm_that_never_grants_rejects_the_holder: ConfirmFindsGrant,
    dead_holder_blocks_for_ever: ConfirmServesQueue,
    answer_after_the_expiry_grants: DeadlineFromSending,
    refused_claim_leaves_its_entry: RefusalWithdraws,
    push_from_before_the_answer_grants_an_expired_lock: PushAfterAnswer,
    push_whose_hold_counts_from_its_arrival_outlives_the_key: PushCountsFromAnswer,
    push_of_the_former_master_grants_after_a_failover: PushOfSameMaster,
    repeated_push_grants_another_claim_of_its_client: PushNamesClaim,
    push_that_arrives_again_grants_after_the_release: PushGrantsWaiter,
}
