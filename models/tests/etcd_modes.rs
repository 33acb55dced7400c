//! The etcd queue with modes: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every row is a test, named after what happens without the step.

mod common;

use lockkit_models::etcd_modes::{EtcdModes, Step};

common::tests_of! { EtcdModes;
    permit_joins_an_exclusive_holder: HeedsLimitsBefore,
    claims_that_count_each_other_block_for_ever: CountsThoseBefore,
    shared_claim_overtakes_an_exclusive_waiter: CountsWaiters,
    count_before_the_enqueue_misses_a_claim: CountsWithEnqueue,
    read_without_the_own_key_grants_a_deleted_claim: ReadFindsOwnKey,
    handoff_to_the_first_leaves_the_other_shared_claims_waiting: HandsOffToAll,
    read_before_the_deletion_misses_a_claim: QueueReadWithDeletion,
    last_shared_hold_leaves_an_exclusive_waiter_waiting: SharedHoldHandsOff,
    withdrawal_leaves_those_behind_waiting: WithdrawalHandsOff,
    repeated_deletion_leaves_those_behind_waiting: RepetitionHandsOff,
    handoff_to_a_deleted_key_grants_its_successor: HandoffNamesKey,
    late_handoff_gives_a_token_above_a_later_claims: HandoffNamesAdmission,
    lost_handoff_without_a_recheck_blocks_for_ever: Recheck,
    holder_without_a_deadline_outlives_its_lease: DeadlineBeforeExpiry,
}
