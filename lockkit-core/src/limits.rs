//! Every bound of the library by name, with its unit. A queue, a retry or a wait that is not bounded by one of
//! these, by a ttl or by the caller's time limit is a bug.

use std::time::Duration;

/// Longest lock name, in bytes of UTF-8.
pub const LOCK_NAME_BYTES_MAX: usize = 1024;

/// Longest metadata record that is written to or read from a store, in bytes of JSON.
pub const METADATA_BYTES_MAX: usize = 8192;

/// Longest value that a candidate or leader proposes, in bytes of UTF-8; its escaped form fits into the metadata.
pub const PROPOSAL_BYTES_MAX: usize = 1024;

/// Longest label of a client, in bytes of UTF-8; it leaves room for the other fields of the metadata.
pub const LABEL_BYTES_MAX: usize = 1024;

/// Most callers of one client that wait for locks at the same time. A caller that left counts until the store has
/// confirmed the withdrawal of its claim.
pub const WAITERS_PER_CLIENT_MAX: usize = 65_536;

/// Most locks of one set, in names: each costs a request, one after the other, and a share of every check.
pub const LOCKS_PER_SET_MAX: usize = 256;

/// The ttl of a client that does not set one.
pub const TTL_DEFAULT: Duration = Duration::from_secs(15);

/// Longest ttl that a backend of this project accepts: a dead holder must not hold a lock for years.
pub const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Longest minimum duration of a hold: an entry that nobody can remove early must end some day.
pub const HOLD_AT_LEAST_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Longest time until `try_acquire` returns, whatever the server does.
pub const TRY_ANSWER_MAX: Duration = Duration::from_secs(5);

/// Longest time until `LockGuard::release` returns; the release itself continues in the background.
pub const RELEASE_ANSWER_MAX: Duration = Duration::from_secs(10);

/// Time limit of one request to a server if a backend's configuration does not set one.
pub const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3);

/// Shortest time limit of one request that a backend's configuration can set.
pub const REQUEST_TIMEOUT_MIN: Duration = Duration::from_millis(10);

/// Longest time limit of one request that a backend's configuration can set.
pub const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Most worker tasks of one session that retry unconfirmed releases. A release that was not confirmed at once waits in
/// a queue for one of them.
pub const RELEASE_WORKERS_MAX: usize = 64;

/// Most unconfirmed releases of one session while new locks are acquired: beyond it an acquire fails as `Unavailable`.
pub const RELEASES_UNCONFIRMED_MAX: usize = 65_536;

/// Longest time until `LockClient::close` returns if the ttl is longer; twice that if the client's runtime is blocked.
pub const CLOSE_ANSWER_MAX: Duration = Duration::from_secs(30);

/// First pause before a failed step is retried; it doubles, with jitter, up to [`RETRY_PAUSE_MAX`].
pub const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);

/// Longest pause between two retries of a failed step.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Clock rate error that a deadline allows for, in per cent of the ttl.
pub const CLOCK_RATE_ERROR_PERCENT: u32 = 1;

/// Clock reading and timer error that a deadline allows for.
pub const CLOCK_READ_ERROR: Duration = Duration::from_millis(2);

/// Longest pause between two readings of the clock by a task that waits for a deadline: timers stop while a machine is
/// suspended.
pub const CLOCK_READ_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Most guards of one owner that share one hold.
pub const REENTRIES_PER_HOLD_MAX: u32 = 1_000_000;

/// Shortest mean pause between two re-checks of a waiter.
pub const RECHECK_PAUSE_MIN: Duration = Duration::from_secs(2);

/// Longest mean pause between two re-checks of a waiter, however long the ttl is.
pub const RECHECK_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Most locks that a session remembers as recently busy. Beyond it the oldest one is forgotten.
pub const BUSY_LOCKS_MAX: usize = 1_024;

/// How many locks a page of a listing has, roughly.
pub const LISTED_PER_PAGE: usize = 256;

/// Most changes of a leader that wait for a slow observer; then several changes are reported as one.
pub const OBSERVED_CHANGES_MAX: usize = 64;

/// Most values of one leadership that wait to be proclaimed: beyond it a proclaim fails as `Unavailable`.
pub const PROCLAIMS_WAITING_MAX: usize = 1_024;

/// How many answers in succession may show an older leader than the last report, before the observation ends.
pub const OLDER_LEADERS_MAX: u32 = 3;

/// Shortest period of work that runs once per period.
pub const ONCE_PERIOD_MIN: Duration = Duration::from_secs(1);

/// Longest period of work that runs once per period.
pub const ONCE_PERIOD_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// How long a record is kept beyond two periods.
pub const ONCE_RECORD_RESERVE: Duration = Duration::from_secs(24 * 60 * 60);

/// Longest wait for the lock of work that runs once per period, before the record is read again.
pub const ONCE_READ_PAUSE: Duration = Duration::from_secs(1);
