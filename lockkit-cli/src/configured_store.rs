//! Connecting to a store.

use std::{os::fd::OwnedFd, time::Duration};

use lockkit::{ClientBuilder, ClientOptions, LockClient, LockName, backend::BackendUrl};

use crate::{
    exit::Failure,
    store::{Store, with_remedy},
};

/// A configured store, not connected yet.
#[derive(Debug)]
pub(crate) struct ConfiguredStore {
    builder: ClientBuilder,
    /// Whether the URL says how long the store is waited for.
    has_connect_timeout: bool,
    /// What helps if the store denies access.
    remedy: Option<String>,
    #[cfg(feature = "file")]
    files: Option<lockkit::file::FileBackend>,
}

impl ConfiguredStore {
    /// Configures this store, with these settings rather than those of its URL, and those of the URL rather than the configured ones. No I/O.
    pub(crate) fn to(store: &Store, ttl: Option<Duration>, label: Option<&str>) -> Result<Self, Failure> {
        let mut configured = Self::to_url(store.url())?;
        let in_url = ClientOptions::take_from(&mut BackendUrl::parse(store.url())?)?;
        configured.has_connect_timeout = in_url.connect_timeout.is_some();
        configured.remedy = store.login_remedy();
        let mut options = ClientOptions::default();
        (options.ttl, options.label) = (ttl.or(in_url.ttl).or(store.ttl()), label.map(str::to_owned));
        configured.builder = configured.builder.options(options);
        Ok(configured)
    }

    /// Sets how long the store is waited for: this time, or that of its URL, or as long as the caller has for all; `None`
    /// is without a limit.
    pub(crate) fn wait_for_store(&mut self, limit: Option<Duration>, in_all: Option<Duration>) {
        let limit = match (limit, self.has_connect_timeout) {
            (Some(limit), _) => limit,
            (None, true) => return,
            (None, false) => in_all.unwrap_or(Duration::MAX),
        };
        self.builder = self.builder.clone().connect_timeout(limit);
    }

    /// Connects. The client renews on its own thread, whatever blocks this program.
    pub(crate) async fn open(&self) -> Result<LockClient, Failure> {
        let opened = self.builder.clone().own_thread().build().await;
        opened.map_err(|error| with_remedy(error.into(), self.remedy.as_deref()))
    }

    #[cfg(not(feature = "file"))]
    fn to_url(url: &str) -> Result<Self, Failure> {
        Ok(Self { builder: lockkit::builder(url)?, has_connect_timeout: false, remedy: None })
    }

    /// Creates the file backend itself, to access the files that it locks.
    #[cfg(feature = "file")]
    fn to_url(url: &str) -> Result<Self, Failure> {
        let mut parts = BackendUrl::parse(url)?;
        if parts.scheme() != lockkit::file::SCHEME {
            return Ok(Self {
                builder: lockkit::builder(url)?,
                has_connect_timeout: false,
                remedy: None,
                files: None,
            });
        }
        let options = ClientOptions::take_from(&mut parts)?;
        let files = lockkit::file::FileBackend::new(lockkit::file::FileConfig::from_url(parts)?);
        let builder = LockClient::builder(files.clone()).options(options);
        Ok(Self { builder, has_connect_timeout: false, remedy: None, files: Some(files) })
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
