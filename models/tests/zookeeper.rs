//! The ZooKeeper queue: no counterexample to the full protocol, one to each protocol without a step.

mod common;

use common::{holds, is_needed};
use lockkit_models::zookeeper::{Step, ZooKeeper};

#[test]
fn the_full_protocol_holds() {
    holds::<ZooKeeper>();
}

#[test]
fn a_stale_look_up_would_create_a_second_node() {
    is_needed::<ZooKeeper>(Step::LookUpBehindLeader);
}

#[test]
fn a_node_of_the_earlier_session_would_be_taken_for_the_own_one() {
    is_needed::<ZooKeeper>(Step::OwnerIsThisSession);
}

#[test]
fn a_cancelled_claim_that_does_not_wait_for_its_create_leaves_a_node() {
    is_needed::<ZooKeeper>(Step::CancelAwaitsCreate);
}

#[test]
fn a_waiter_whose_node_was_deleted_would_be_granted_by_a_list_without_it() {
    is_needed::<ZooKeeper>(Step::ListShowsOwnNode);
}

#[test]
fn the_end_of_a_predecessor_that_only_waited_would_grant() {
    is_needed::<ZooKeeper>(Step::ListAfterPredecessor);
}

#[test]
fn without_the_re_check_a_lost_event_is_waited_for_without_end() {
    is_needed::<ZooKeeper>(Step::Recheck);
}

#[test]
fn holds_that_a_heartbeat_reads_before_its_check_overlap_with_the_next_one() {
    is_needed::<ZooKeeper>(Step::HoldsReadBehindCheck);
}

#[test]
fn the_first_number_after_the_wrap_would_overtake() {
    is_needed::<ZooKeeper>(Step::OrderWraps);
}

#[test]
fn numbers_are_no_tokens_across_the_wrap() {
    is_needed::<ZooKeeper>(Step::TokenIsZxid);
}

#[test]
fn a_deletion_that_is_not_repeated_leaves_its_node() {
    is_needed::<ZooKeeper>(Step::DeleteRepeats);
}

#[test]
fn a_holder_without_a_deadline_of_its_own_believes_too_long() {
    is_needed::<ZooKeeper>(Step::DeadlineBeforeExpiry);
}

#[test]
fn a_list_that_comes_after_the_end_of_its_session_would_grant() {
    is_needed::<ZooKeeper>(Step::DeadlineOfGrants);
}

#[test]
fn a_node_whose_deletion_is_refused_would_stay() {
    is_needed::<ZooKeeper>(Step::RefusalEndsSession);
}
