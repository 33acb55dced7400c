//! Redlock: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every row is a test, named after what happens without the step.

mod common;

use lockkit_models::redlock::{Redlock, Step};

common::tests_of! { Redlock;
    highest_answer_as_token_repeats_a_token: FastPathNeedsOneValue,
    write_back_to_another_claims_key_repeats_a_token: WriteBackChecksOwner,
    write_back_below_the_counter_repeats_a_token: WriteBackChecksCounter,
    late_restore_revives_an_ended_grant: RestoreChecksCounter,
    release_that_keeps_the_counter_admits_a_late_restore: ReleaseRaisesCounter,
    late_copy_leaves_a_key_without_a_release: UncertainAskWithdrawn,
    emptied_node_makes_a_second_majority: MarkerIsTested,
    marker_without_a_wait_makes_a_second_majority: MarkerWaits,
    marked_node_with_an_empty_counter_repeats_a_token: MarkerRaisesCounter,
    minority_heartbeat_readmits_an_emptied_node_too_early: RenewalNeedsMajority,
    counter_of_a_minority_repeats_a_token: MarkerNeedsMajority,
    marker_on_a_node_emptied_again_makes_a_second_majority: MarkerNamesItsNote,
    emptied_node_waits_for_a_holder_renewed_without_it: RenewalDropsEmptiedNode,
}
