//! The keeper: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every row is a test, named after what happens without the step.

mod common;

use lockkit_models::keeper::{Keeper, Step};

common::tests_of! { Keeper;
    deadline_from_the_answer_is_too_late: DeadlineFromSending,
    loss_without_a_latch_is_undone: LossIsLatched,
    heartbeat_renews_a_hold_that_is_being_released: NoRenewalOnceReleasing,
    untaken_grant_is_kept: UntakenGrantReleased,
    release_that_is_not_repeated_leaves_its_entry: ReleaseRepeats,
    dead_hold_stays_alive_with_its_session: DeadHoldEndsSession,
    grant_at_the_end_of_its_session_stays_held: NewHoldChecksSession,
    caller_that_joins_a_given_up_attempt_gets_busy: NoJoinAfterGiveUp,
    owner_that_asks_before_the_table_is_updated_waits_behind_itself: TableUpdatedWithAnswers,
    caller_that_leaves_before_all_shares_are_counted_ends_the_hold: SharesCountedFirst,
    owner_whose_try_is_granted_waits_behind_itself: GrantServesTheOwner,
    refused_release_leaves_its_entry: RefusedReleaseEndsSession,
    attempt_waits_for_an_ended_session: AttemptOutlivesSession,
}
