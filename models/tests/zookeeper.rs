//! The ZooKeeper queue: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every row is a test, named after what happens without the step.

mod common;

use lockkit_models::zookeeper::{Step, ZooKeeper};

common::tests_of! { ZooKeeper;
    stale_look_up_creates_a_second_node: LookUpAfterLeader,
    node_of_the_earlier_session_is_mistaken_for_the_own_one: OwnerIsThisSession,
    cancelled_claim_that_does_not_await_its_create_leaves_a_node: CancelAwaitsCreate,
    list_without_the_own_node_grants_a_deleted_waiter: ListShowsOwnNode,
    end_of_a_waiting_predecessor_grants: ListAfterPredecessor,
    lost_event_without_a_recheck_blocks_for_ever: Recheck,
    holds_read_before_the_check_overlap_with_the_next_one: HoldsReadAfterCheck,
    first_number_after_the_wrap_overtakes: OrderWraps,
    number_as_token_falls_at_the_wrap: TokenIsZxid,
    deletion_that_is_not_repeated_leaves_its_node: DeleteRepeats,
    holder_without_a_deadline_outlives_its_lease: DeadlineBeforeExpiry,
    list_after_the_end_of_its_session_grants: DeadlineOfLateGrants,
    node_whose_deletion_is_refused_stays: RefusalEndsSession,
}
