//! `lockkit` over lock files: several processes on one host, no server.
//!
//! ```
//! use lockkit_core::{Clock, LockName, Metadata, backend::{Acquired, Backend, Claim, ClaimControl}};
//! use lockkit_file::{FileBackend, FileConfig};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let folder = folder.path().join("locks");
//! let backend = FileBackend::new(FileConfig::new(folder)?);
//! let session = backend.open_session(std::time::Duration::MAX, Clock::boot()).await?;
//!
//! let name = LockName::new("orders/42")?;
//! let claim = Claim::new(name, true, Metadata::of_this_process(None), &ClaimControl::new());
//! let Acquired::Granted(grant) = session.acquire(claim).await? else { panic!("nobody else wants it") };
//! session.release(&grant).await?;
//! # Ok(()) }
//! ```
//!
//! # What is stored
//!
//! One folder (`file:///var/lib/locks`). Per lock name, encoded, up to three files that are never deleted:
//!
//! | file | contains | locked by |
//! |---|---|---|
//! | `NAME.lock` | the last fencing token, with a checksum | the holder: this **is** the lock |
//! | `NAME.holder` | token, host, process, label and proposal of the last holder, with a checksum | the holder, so that others can check whether it is alive without touching the lock |
//! | `NAME.record` | a record of this name, with a checksum | nobody: only the holder replaces it |
//!
//! The locks are the operating system's advisory file locks (`flock` on Unix). They belong to the open file of one
//! process and end with it: a killed holder frees its locks at once, a stopped one keeps them. There is no ttl, and no
//! other client can be granted the lock before its holder's end. So a stale write cannot happen while the files keep
//! their names. The files are opened close-on-exec, and a release unlocks explicitly, so that no child process keeps a
//! lock.
//!
//! # Besides locks
//!
//! * **Elections.** The holder file shows the leader and its value. A candidate whose holder file cannot be written is
//!   refused, because others would see no leader. Each value is a new file that replaces the earlier one by name, so
//!   that nobody reads a mixture. The folder does not notify: observers read every [`LEADER_POLL_PAUSE`].
//! * **Records.** Each record is a new file too, on the disk before it replaces the earlier one. So it survives a crash
//!   and a power failure. Records stay until somebody deletes them: how long to keep one is ignored. A record has at
//!   most 64 KiB; a foreign file of its name is an error, and is not replaced.
//! * **Not offered: pins** (minimum hold times). The lock ends with its process, and nothing else could keep it.
//! * **Not offered: evidence of a grant** that a write to other files could be checked against. The file system
//!   compares nothing, so use the fencing token.
//!
//! # For operators
//!
//! * **Inspections and lists** read the holder files. They show who holds a lock, not who waits. A lock whose holder could
//!   not write its holder file (a warning says so) is not shown.
//! * **Not offered: breaking a hold.** The operating system takes a file lock from no live process, and to replace the lock
//!   file would grant the lock while its holder still works. The process is on this host, and an inspection shows its id:
//!   end it, and the lock is free at once. In a container, that is the id inside.
//!
//! # Several users
//!
//! A folder that does not exist is created with mode 0700, for one user. For several, create it beforehand with the
//! group and mode that you want, such as `install -d -g builders -m 2770 /var/lib/locks`. The users who may write to
//! the folder, by its mode or its access list, may take its locks, and can break them. All others can neither take nor
//! block them: a lock file is readable and writable for those users and closed to all others, regardless of the umask
//! and the folder's default access list. When the folder's mode changes, a lock file follows once its owner takes the
//! lock. The owner of a folder should be a member of its group, because the files of other users are open to the owner
//! only by that group.
//!
//! # Limits
//!
//! * One host. On Linux, file systems that other hosts may share are refused, and so are FUSE file systems and those of
//!   an unknown kind without a block device. On other systems nothing is checked.
//! * Waiters are granted in no particular order. Within one client they queue, and pass the lock on among themselves
//!   for at most [`STREAK_MAX`] at a time. Between clients they poll, with pauses of at most [`POLL_PAUSE_MAX`] and
//!   jitter.
//! * In a folder with the sticky bit, users cannot replace each other's files. So only one user can campaign for a name,
//!   and only one can write its record: `Denied` for all others. They can still take the lock.
//! * Open files: two per lock that is held, one per lock that a client waits for.
//! * A disk that hangs blocks one thread of a client for all its holds and waiters, and at most [`CHANGES_MAX`] threads
//!   for attempts at locks. Its holds stay as long as the process lives.
//! * Deleting or replacing the files of a held lock ends the hold. The holder notices within [`HEARTBEAT`]; until then
//!   there may be two holders. A leader whose holder file alone is deleted is not seen until it proclaims again.
//! * Tokens rise across restarts of processes and of the machine. After a lock file was deleted they continue from the
//!   wall clock, so they still rise unless it was set back.

#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

#[cfg(not(unix))]
compile_error!("lockkit-file needs a Unix-like system");

mod access;
mod admin;
mod backend;
mod config;
mod contents;
mod disk;
mod error;
mod file_system;
mod folder;
#[cfg(feature = "_fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod holder;
mod inspect;
mod keys;
mod lock_file;
mod new_file;
mod open_file;
mod record;
mod session;

pub use crate::{
    backend::{FileBackend, HEARTBEAT, SCHEME},
    config::FileConfig,
    disk::CHANGES_MAX,
    inspect::INSPECTED_DATA_CHARS_MAX,
    session::{LEADER_POLL_PAUSE, POLL_PAUSE_MAX, POLL_PAUSE_MIN, STREAK_MAX},
};
