//! Writes that the store itself refuses once the lock is gone.

use lockkit_core::{Error, ErrorKind, LockGuard, Result};

use crate::ZkBackend;

/// The node that a hold is, to be checked in the same transaction as what the lock protects: the store then refuses the
/// write when the hold has ended, whatever pauses and clocks do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    path: String,
}

impl ZkBackend {
    /// The node behind a guard that this backend's client (or that of a clone) gave out.
    ///
    /// ```no_run
    /// # #[cfg(feature = "zookeeper-client-0-11")]
    /// # async fn example(backend: lockkit_zk::ZkBackend, guard: lockkit_core::LockGuard) -> anyhow::Result<()> {
    /// let zookeeper = zookeeper_client::Client::connect("127.0.0.1:2181").await?;
    /// let mut transaction = zookeeper.new_multi_writer();
    /// backend.owned(&guard)?.check_in(&mut transaction)?;
    /// transaction.add_set_data("/config", b"new", None)?;
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `Lost` when the hold has ended, or is of another backend; `Unsupported` for [`Form::Bare`](crate::Form::Bare) and
    /// [`Form::Single`](crate::Form::Single), where the name of the node does not tell whose it is.
    pub fn owned(&self, guard: &LockGuard) -> Result<Owned> {
        let refused = |kind| Error::new(kind, "check ownership").with_lock(guard.name());
        if self.config.layout().form.names_recur() {
            return Err(refused(ErrorKind::Unsupported));
        }
        guard.check()?;
        let path = self.claims.path(guard.name(), guard.token()).ok_or_else(|| refused(ErrorKind::Lost))?;
        Ok(Owned { path })
    }
}

impl Owned {
    /// The node's path inside the chroot.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Adds the check to a transaction of a client with the same chroot; its commit fails with `NoNode` for this operation
    /// when the hold has ended.
    ///
    /// # Errors
    ///
    /// None for a path that this library has made.
    #[cfg(feature = "zookeeper-client-0-11")]
    pub fn check_in(
        &self,
        transaction: &mut zookeeper_client::MultiWriter<'_>,
    ) -> Result<(), zookeeper_client::Error> {
        transaction.add_check_version(&self.path, crate::call::ANY_VERSION)
    }
}
