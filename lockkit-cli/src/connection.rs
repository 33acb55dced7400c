//! Connecting to a store.

use std::{os::fd::OwnedFd, time::Duration};

use lockkit::{ClientBuilder, ClientOptions, LockClient, LockName};

use crate::{exit::Failure, store::Store};

/// A configured store, not connected yet.
#[derive(Debug)]
pub(crate) struct Connection {
    builder: ClientBuilder,
    #[cfg(feature = "file")]
    files: Option<lockkit::file::FileBackend>,
}

impl Connection {
    /// Configures this store, with these settings instead of those in its URL. No I/O.
    pub(crate) fn to(store: &Store, ttl: Option<Duration>, label: Option<&str>) -> Result<Self, Failure> {
        let mut connection = Self::to_url(store.url())?;
        let mut options = ClientOptions::default();
        (options.ttl, options.label) = (ttl, label.map(str::to_owned));
        connection.builder = connection.builder.options(options);
        Ok(connection)
    }

    /// Connects. The client renews on its own thread, whatever blocks this program.
    pub(crate) async fn open(&self) -> lockkit::Result<LockClient> {
        self.builder.clone().own_thread().build().await
    }

    #[cfg(not(feature = "file"))]
    fn to_url(url: &str) -> Result<Self, Failure> {
        Ok(Self { builder: lockkit::builder(url)? })
    }

    /// Creates the file backend itself, to access the files that it locks.
    #[cfg(feature = "file")]
    fn to_url(url: &str) -> Result<Self, Failure> {
        let mut parts = lockkit::backend::BackendUrl::parse(url)?;
        if parts.scheme() != lockkit::file::SCHEME {
            return Ok(Self { builder: lockkit::builder(url)?, files: None });
        }
        let options = ClientOptions::take_from(&mut parts)?;
        let files = lockkit::file::FileBackend::new(lockkit::file::FileConfig::from_url(parts)?);
        Ok(Self { builder: LockClient::builder(files.clone()).options(options), files: Some(files) })
    }

    /// Returns another handle of the locked file, for a lock that would end with this process; none for a lock with a
    /// lease.
    #[cfg(feature = "file")]
    pub(crate) fn locked_file(&self, name: &LockName) -> Result<Option<OwnedFd>, Failure> {
        let Some(files) = &self.files else { return Ok(None) };
        match files.locked_file(name) {
            Ok(file) => Ok(file.map(OwnedFd::from)),
            Err(cause) => Err(Failure::system("share the lock file", cause)),
        }
    }

    /// Returns none: this build has no file locks.
    #[cfg(not(feature = "file"))]
    pub(crate) fn locked_file(&self, _name: &LockName) -> Result<Option<OwnedFd>, Failure> {
        Ok(None)
    }
}
