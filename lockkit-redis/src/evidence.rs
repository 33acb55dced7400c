//! What proves a grant inside the store: the value of the lock's key.

/// The beginning of a Lua script that writes only while a grant holds its lock.
///
/// Prepend it to a script of your own. `KEYS[1]` is the key, and `ARGV[1]` the value, of the grant's
/// [`Evidence::KeyValue`](lockkit_core::backend::Evidence::KeyValue); what the script itself needs comes after them.
/// If the grant does not hold the lock, the script fails with an error whose first word is `FENCED`, before it has
/// written anything:
///
/// ```
/// let script = format!("{}{}", lockkit_redis::GUARD, "return redis.call('SET', KEYS[2], ARGV[2])");
/// assert!(script.starts_with("-- Refuses"));
/// ```
///
/// * A script is one step of the server: the lock can neither expire nor be granted between the comparison and the
///   writes. So a write is refused from the moment at which the grant has ended, also before a newer holder has written
///   anything.
/// * **In a cluster** all keys of a script must be in the same slot. Give the data the lock's key as their hash tag: for
///   the lock's key `app:orders%2F42`, a key such as `total:{app:orders%2F42}`. If the lock's key has a hash tag itself
///   ([raw names](crate::Names::Raw) and prefixes may contain braces), use that one.
/// * **After a failover** that lost the grant (replication is asynchronous), the comparison fails for the holder that
///   was lost. But data and locks share their fate: a write that was not replicated is lost, too. So the comparison is
///   as strong as the lock.
/// * The value also releases the lock. Pass it as an argument, and do not print it. `MONITOR` and the slow log of the
///   server show it to operators.
///
/// The example `redis_guarded_writes` of this crate shows a stale writer that is refused.
pub const GUARD: &str = include_str!("scripts/guard.lua");
