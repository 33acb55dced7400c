//! The configuration: the folder of the lock files.

use std::path::{Path, PathBuf, absolute};

use lockkit_core::{
    Error, ErrorKind, Result,
    backend::{BackendUrl, Host},
};

use crate::SCHEME;

/// The folder of the lock files.
///
/// ```
/// use lockkit_core::backend::BackendUrl;
/// use lockkit_file::FileConfig;
///
/// let config = FileConfig::from_url(BackendUrl::parse("file:///var/lib/locks")?)?;
/// assert_eq!(config.folder(), std::path::Path::new("/var/lib/locks"));
/// # Ok::<(), lockkit_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileConfig {
    folder: PathBuf,
}

impl FileConfig {
    /// Creates a configuration for this folder. A relative path is resolved against the current working directory at
    /// once. Opening a client creates the folder and its parents.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if the path is empty, or relative without a working directory.
    pub fn new(folder: impl AsRef<Path>) -> Result<Self> {
        // Absolute from here on: a later change of the working directory must not change the locks.
        match absolute(folder.as_ref()) {
            Ok(folder) => Ok(Self { folder }),
            Err(cause) => Err(invalid("the path of the lock folder cannot be resolved").with_source(cause)),
        }
    }

    /// Parses the URL `file:///path/of/the/folder`.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for another scheme, for a host or a user (the folder is on this host), for a missing path
    /// and for any option.
    pub fn from_url(url: BackendUrl) -> Result<Self> {
        if url.scheme() != SCHEME {
            return Err(invalid(format!("the scheme of a lock folder is {SCHEME}:")));
        }
        // RFC 8089: `file://localhost/path` is the same as `file:///path`.
        let is_local = |host: &Host| host.port.is_none() && host.name.eq_ignore_ascii_case("localhost");
        if !url.hosts().iter().all(is_local) || url.user().is_some() || url.password().is_some() {
            return Err(invalid("a lock folder is on this host: file:///path has three slashes and no host"));
        }
        if !url.path().starts_with('/') || url.path() == "/" {
            return Err(invalid("the URL has no absolute path: use file:///path/of/the/folder"));
        }
        let folder = url.path().to_owned();
        url.finish()?;
        Self::new(folder)
    }

    /// Returns the absolute path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidConfig, "configure lock folder").with_message(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_url(text: &str) -> Result<FileConfig> {
        FileConfig::from_url(BackendUrl::parse(text)?)
    }

    #[test]
    fn a_url_names_an_absolute_folder() {
        for text in
            ["file:///var/lib/my%20locks", "file:/var/lib/my%20locks", "file://localhost/var/lib/my%20locks"]
        {
            assert_eq!(from_url(text).unwrap().folder(), Path::new("/var/lib/my locks"), "{text}");
        }
    }

    #[test]
    fn urls_without_a_local_folder_are_refused() {
        for text in [
            "file:",
            "file:locks",
            "file:///",
            "file://server/share",
            "file://localhost:1/locks",
            "file://me@localhost/locks",
            "file://:secret@localhost/locks",
            "file:///locks?names=raw",
            "etcd:///locks",
        ] {
            assert_eq!(from_url(text).unwrap_err().kind(), ErrorKind::InvalidConfig, "{text}");
        }
        assert_eq!(FileConfig::new("").unwrap_err().kind(), ErrorKind::InvalidConfig);
        for text in ["file:", "file:locks"] {
            let error = from_url(text).unwrap_err().to_string();
            assert!(error.contains("no absolute path: use file:///path/of/the/folder"), "{error}");
        }
    }

    #[test]
    fn a_relative_folder_is_taken_from_the_working_directory() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(FileConfig::new("locks").unwrap().folder(), here.join("locks"));
    }
}
