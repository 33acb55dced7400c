//! Every bound of the library by name, with its unit. A queue, a retry or a wait that is not bounded by one of
//! these, by a ttl or by the caller's own deadline is a bug.

use std::time::Duration;

/// Longest lock name, in bytes of UTF-8.
pub const LOCK_NAME_BYTES_MAX: usize = 1024;

/// Longest metadata record that is written to or read from a store, in bytes of JSON.
pub const METADATA_BYTES_MAX: usize = 4096;

/// Longest label of a client, in bytes of UTF-8; leaves room for the other fields of the metadata.
pub const LABEL_BYTES_MAX: usize = 1024;

/// Callers of one client that may be waiting for locks at the same moment. One who has left counts until the store
/// has confirmed that the claim is withdrawn.
pub const WAITERS_PER_CLIENT_MAX: usize = 65_536;

/// The ttl of a client that names none.
pub const TTL_DEFAULT: Duration = Duration::from_secs(15);

/// Longest ttl that a backend of this project accepts: a dead holder must not lock for years.
pub const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Longest time after which `try_acquire` answers, whatever the server does.
pub const TRY_ANSWER_MAX: Duration = Duration::from_secs(5);

/// Longest time after which `LockGuard::release` answers; the release itself goes on behind it.
pub const RELEASE_ANSWER_MAX: Duration = Duration::from_secs(10);

/// Tasks of one session that repeat releases that the store has not confirmed. A release that was not confirmed at once
/// waits for one of them in a queue.
pub const RELEASE_WORKERS_MAX: usize = 64;

/// Releases of one session that may be waiting for confirmation while new locks are acquired: beyond it an acquire is
/// refused as `Unavailable`.
pub const RELEASES_UNCONFIRMED_MAX: usize = 65_536;

/// Longest time that `LockClient::close` spends, should the ttl be longer than this.
pub const CLOSE_ANSWER_MAX: Duration = Duration::from_secs(30);

/// First pause before a failed step is tried again; it doubles, with jitter, up to [`RETRY_PAUSE_MAX`].
pub const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);

/// Longest pause between two tries of a failed step.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Clock rate error that a deadline allows for, in per cent of the ttl.
pub const CLOCK_RATE_ERROR_PERCENT: u32 = 1;

/// Clock reading and timer error that a deadline allows for.
pub const CLOCK_READ_ERROR: Duration = Duration::from_millis(2);

/// Longest pause between two looks at the clock of whoever waits for a deadline: timers stop while a machine is
/// suspended.
pub const CLOCK_LOOK_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Guards of one owner that may share one hold.
pub const REENTRIES_PER_HOLD_MAX: u32 = 1_000_000;

/// Shortest mean pause between two looks of a waiter that nothing has notified.
pub const RECHECK_PAUSE_MIN: Duration = Duration::from_secs(2);

/// Longest mean pause between two looks of a waiter that nothing has notified, however long the ttl is.
pub const RECHECK_PAUSE_MAX: Duration = Duration::from_secs(10);
