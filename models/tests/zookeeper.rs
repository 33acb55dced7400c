//! The ZooKeeper queue: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every other test is named after what happens without the step.

mod common;

use common::{assert_protocol_holds, assert_step_is_needed};
use lockkit_models::zookeeper::{Step, ZooKeeper};

#[test]
fn full_protocol_holds() {
    assert_protocol_holds::<ZooKeeper>();
}

#[test]
fn stale_look_up_creates_a_second_node() {
    assert_step_is_needed::<ZooKeeper>(Step::LookUpAfterLeader);
}

#[test]
fn node_of_the_earlier_session_is_mistaken_for_the_own_one() {
    assert_step_is_needed::<ZooKeeper>(Step::OwnerIsThisSession);
}

#[test]
fn cancelled_claim_that_does_not_await_its_create_leaves_a_node() {
    assert_step_is_needed::<ZooKeeper>(Step::CancelAwaitsCreate);
}

#[test]
fn list_without_the_own_node_grants_a_deleted_waiter() {
    assert_step_is_needed::<ZooKeeper>(Step::ListShowsOwnNode);
}

#[test]
fn end_of_a_waiting_predecessor_grants() {
    assert_step_is_needed::<ZooKeeper>(Step::ListAfterPredecessor);
}

#[test]
fn lost_event_without_a_recheck_blocks_for_ever() {
    assert_step_is_needed::<ZooKeeper>(Step::Recheck);
}

#[test]
fn holds_read_before_the_check_overlap_with_the_next_one() {
    assert_step_is_needed::<ZooKeeper>(Step::HoldsReadAfterCheck);
}

#[test]
fn first_number_after_the_wrap_overtakes() {
    assert_step_is_needed::<ZooKeeper>(Step::OrderWraps);
}

#[test]
fn number_as_token_falls_at_the_wrap() {
    assert_step_is_needed::<ZooKeeper>(Step::TokenIsZxid);
}

#[test]
fn deletion_that_is_not_repeated_leaves_its_node() {
    assert_step_is_needed::<ZooKeeper>(Step::DeleteRepeats);
}

#[test]
fn holder_without_a_deadline_outlives_its_lease() {
    assert_step_is_needed::<ZooKeeper>(Step::DeadlineBeforeExpiry);
}

#[test]
fn list_after_the_end_of_its_session_grants() {
    assert_step_is_needed::<ZooKeeper>(Step::DeadlineOfLateGrants);
}

#[test]
fn node_whose_deletion_is_refused_stays() {
    assert_step_is_needed::<ZooKeeper>(Step::RefusalEndsSession);
}
