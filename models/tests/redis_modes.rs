//! The Redis queue with modes: the full protocol has no counterexample, every protocol without a step has one.
//!
//! Every row is a test, named after what happens without the step.

mod common;

use lockkit_models::redis_modes::{RedisModes, Step};

common::tests_of! { RedisModes;
    permit_joins_an_exclusive_holder: HeedsLimitsOfHolders,
    claims_that_count_before_they_take_both_hold: CountsAndTakesAtOnce,
    shared_claim_overtakes_an_exclusive_waiter: QueueBeforeNewcomers,
    grant_to_the_first_leaves_the_other_shared_claims_waiting: ServesAll,
    last_shared_hold_leaves_an_exclusive_waiter_waiting: SharedReleaseServes,
    withdrawal_leaves_those_behind_waiting: WithdrawalServes,
    expired_holder_that_is_counted_blocks_for_ever: DropsExpired,
    lifetime_for_all_holders_ends_a_live_hold: LifetimePerHolder,
    late_renewal_revives_an_ended_hold: RenewalNeverAdds,
    shared_grant_repeats_the_token_of_an_exclusive_one: SharedTokenRises,
    lost_message_without_a_recheck_blocks_for_ever: Recheck,
    holder_without_a_deadline_outlives_its_entry: DeadlineBeforeExpiry,
}
