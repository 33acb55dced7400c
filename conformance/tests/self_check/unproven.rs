//! Cases that pass on every wrong backend, and why.
//!
//! The wrong backends use a memory server in one process, on a paused clock. Other cases are shown to fail where they
//! run: `xtask/mutations/` removes steps from the real backends, and its tests include cases of this list.

use std::collections::BTreeMap;

/// The cases by the reason why no wrong backend fails them.
const UNPROVEN: &[(&str, &[&str])] = &[
    (
        "other processes cannot reach a memory server",
        &[
            "processes_that_count_in_a_file_lose_no_increment",
            "processes_exclude_each_other",
            "the_lock_of_a_killed_process_goes_to_the_next_in_time",
            "a_killed_waiter_delays_its_successors_for_a_bounded_time",
            "process_stopped_for_long_sees_its_loss",
            "process_stopped_briefly_keeps_its_lock",
            "waiter_stopped_for_long_is_granted_once_free",
            "server_that_is_down_costs_its_clients_little_processor_time",
            "tokens_rise_over_processes",
            "process_whose_wall_clock_steps_keeps_lock_and_place",
            "processes_whose_wall_clocks_are_days_apart_lose_no_increment",
        ],
    ),
    (
        "needs the real clock: a paused clock does not advance while a thread is blocked",
        &[
            "a_lock_works_on_a_current_thread_runtime",
            "own_thread_client_keeps_its_lock_while_the_executor_is_blocked",
            "own_thread_client_ends_when_dropped_in_async_code",
        ],
    ),
    (
        "a memory server has no evidence: nothing can be written to it",
        &[
            "evidence_holds_as_long_as_its_grant",
            "evidence_of_a_silent_holder_fails_before_the_next_one_writes",
        ],
    ),
    (
        "a memory server has no connection whose bytes could be delayed",
        &["delayed_reply_shortens_the_lifetime", "a_trickle_of_bytes_neither_hangs_nor_doubles_a_lock"],
    ),
    (
        "a memory server grants and notifies in one step, so a notification cannot be late",
        &["late_notification_grants_nothing"],
    ),
    (
        "a memory server has no history that it could lose",
        &[
            "reset_waiter_is_granted_after_history_is_lost",
            "disconnected_waiter_is_granted_after_history_is_lost",
        ],
    ),
    (
        "a memory server has no members",
        &["no_lock_is_lost_when_the_leader_dies", "a_client_of_an_isolated_member_loses_its_lock_in_time"],
    ),
    (
        "a memory server has no size limit that spares deletions and renewals",
        &["a_full_store_grants_nothing_and_ends_no_hold", "a_full_store_passes_a_released_lock_on"],
    ),
    ("a memory server has no logins", &["expired_login_costs_no_lock"]),
    (
        "a memory server stores no metadata that junk could replace",
        &["junk_in_the_store_causes_no_panic_and_no_grant"],
    ),
    (
        "the client refuses it before a backend is asked",
        &[
            "a_ttl_of_zero_is_refused",
            "an_empty_or_huge_name_is_refused",
            "a_blocking_call_inside_async_code_is_refused",
        ],
    ),
    (
        "the keeper chooses what is renewed: see keeper-renewal-after-release among the mutations",
        &["nothing_renews_a_hold_after_its_release"],
    ),
    (
        "the keeper ends holds and time limits by its own clock",
        &[
            "late_reply_revives_no_lost_hold",
            "holds_and_waits_end_in_time_when_no_reply_arrives",
            "timeout_returns_none_in_time",
        ],
    ),
    (
        "a memory server has no connections: a reset loses one reply, and waiters send hardly any request",
        &["all_waiters_are_granted_over_flapping_connections"],
    ),
    ("the keeper notices that no handle is left", &["the_last_handle_dropped_inside_a_task_ends_the_client"]),
    (
        "the keeper counts entries: see keeper-count-forgotten among the mutations",
        &["one_owner_re_enters_from_another_task"],
    ),
];

/// Returns the reasons by the name of the case.
pub(crate) fn reasons() -> BTreeMap<&'static str, &'static str> {
    UNPROVEN.iter().flat_map(|(reason, cases)| cases.iter().map(move |case| (*case, *reason))).collect()
}
