//! Cases that no wrong backend fails, and why.
//!
//! The wrong backends are a memory server's, in one process and on a paused clock. What takes more is shown to be able to fail
//! where it runs: `xtask/mutations/` takes steps out of the real backends, and names cases of this list among others.

use std::collections::BTreeMap;

/// The cases by what keeps a wrong backend from failing them.
const UNPROVEN: &[(&str, &[&str])] = &[
    (
        "other processes cannot reach a memory server",
        &[
            "processes_that_count_in_a_file_lose_no_increment",
            "processes_exclude_each_other",
            "the_lock_of_a_killed_process_goes_to_the_next_in_time",
            "a_killed_waiter_delays_its_successors_for_a_bounded_time",
            "a_process_that_was_stopped_for_long_knows_its_loss",
            "a_process_that_was_stopped_shortly_keeps_its_lock",
            "a_waiter_that_was_stopped_for_long_is_served_when_free",
            "tokens_rise_over_processes",
            "a_process_whose_wall_clock_steps_keeps_its_lock_and_its_place",
            "processes_whose_wall_clocks_are_days_apart_lose_no_increment",
        ],
    ),
    (
        "needs the machine's own time, and a paused clock stands while a thread is blocked",
        &[
            "a_lock_works_on_a_current_thread_runtime",
            "a_client_on_its_own_thread_keeps_its_lock_while_the_executor_is_blocked",
            "a_client_on_its_own_thread_ends_when_dropped_in_async_code",
        ],
    ),
    ("the library has no blocking API, so nothing runs", &["a_blocking_call_inside_async_code_is_refused"]),
    (
        "a memory server has no connection whose bytes could be late",
        &[
            "a_delayed_reply_leaves_less_of_the_lifetime",
            "a_trickle_of_bytes_neither_hangs_nor_doubles_a_lock",
        ],
    ),
    (
        "a memory server grants in one step with its notification, which cannot come late",
        &["a_notification_that_comes_late_grants_nothing"],
    ),
    (
        "a memory server has no history that it could forget",
        &[
            "a_reset_waiter_is_granted_although_history_is_forgotten",
            "a_waiter_that_was_away_is_granted_although_history_is_forgotten",
        ],
    ),
    (
        "a memory server has no members",
        &["no_lock_is_lost_when_the_leader_dies", "a_client_of_an_isolated_member_loses_its_lock_in_time"],
    ),
    (
        "a memory server has no limit of its room that deletions and renewals know of",
        &["a_full_store_grants_nothing_and_ends_no_hold", "a_full_store_passes_a_released_lock_on"],
    ),
    ("a memory server has no logins that it could forget", &["a_forgotten_login_costs_no_lock"]),
    (
        "a memory server keeps nothing that junk could be written over",
        &["junk_in_the_store_is_no_panic_and_no_grant"],
    ),
    (
        "the client refuses it before a backend is asked",
        &["a_ttl_of_zero_is_refused", "an_empty_or_huge_name_is_refused"],
    ),
    (
        "it is the keeper that chooses what is renewed: see keeper-4-renewal-after-release among the mutations",
        &["nothing_renews_a_hold_after_its_release"],
    ),
    (
        "it is the keeper that notices that no handle is left",
        &["the_last_handle_dropped_inside_a_task_ends_the_client"],
    ),
    (
        "it is the keeper that counts entries: see keeper-7-count-forgotten among the mutations",
        &["one_owner_re_enters_from_another_task"],
    ),
];

/// The reason by the name of the case.
pub(crate) fn reasons() -> BTreeMap<&'static str, &'static str> {
    UNPROVEN.iter().flat_map(|(reason, cases)| cases.iter().map(move |case| (*case, *reason))).collect()
}
