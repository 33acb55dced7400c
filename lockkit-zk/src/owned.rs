//! Writes that the store refuses once the lock is gone.

use lockkit_core::{Error, ErrorKind, LockGuard, Result};

use crate::ZkBackend;

/// The node of a hold, to be checked in the transaction that writes what the lock protects. The store then refuses the
/// write if the hold has ended, whatever pauses and clocks do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    path: String,
}

impl ZkBackend {
    /// Returns the node of a guard of this backend's client, or of a client of its clones.
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
    /// `Lost` when the hold has ended, or belongs to another backend; `Unsupported` for
    /// [`Form::Bare`](crate::Form::Bare) and [`Form::Single`](crate::Form::Single), whose node names do not identify a
    /// claim.
    pub fn owned(&self, guard: &LockGuard) -> Result<Owned> {
        let refused = |kind| Error::new(kind, "check ownership").with_lock(guard.name());
        if self.config.layout().form.names_recur() {
            return Err(refused(ErrorKind::Unsupported));
        }
        guard.check()?;
        let path =
            self.granted_nodes.path(guard.name(), guard.token()).ok_or_else(|| refused(ErrorKind::Lost))?;
        Ok(Owned { path })
    }
}

impl Owned {
    /// Returns the node's path inside the chroot.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Adds the check to a transaction of a client with the same chroot. If the hold has ended, the commit fails with
    /// `NoNode` for this operation.
    ///
    /// # Errors
    ///
    /// None for paths made by this library.
    #[cfg(feature = "zookeeper-client-0-11")]
    pub fn check_in(
        &self,
        transaction: &mut zookeeper_client::MultiWriter<'_>,
    ) -> Result<(), zookeeper_client::Error> {
        transaction.add_check_version(&self.path, crate::wire::ANY_VERSION)
    }
}
