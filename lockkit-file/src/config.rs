//! Where the lock files are.

use std::path::{Path, PathBuf, absolute};

use lockkit_core::{Error, ErrorKind, Result, backend::BackendUrl};

use crate::SCHEME;

/// Where the lock files are.
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
    /// Lock files in this folder; a relative path is taken from the working directory of now. The folder is made,
    /// with its parents, when a client opens.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the path is empty, or relative without a working directory.
    pub fn new(folder: impl AsRef<Path>) -> Result<Self> {
        // Made absolute here, once: a later change of the working directory must not change the locks.
        match absolute(folder.as_ref()) {
            Ok(folder) => Ok(Self { folder }),
            Err(cause) => Err(invalid("the path of the lock folder").with_source(cause)),
        }
    }

    /// The folder that `file:///path/of/the/folder` names.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for another scheme, for a host or user (locks are on this machine only), for a missing path
    /// and for any option.
    pub fn from_url(url: BackendUrl) -> Result<Self> {
        if url.scheme() != SCHEME {
            return Err(invalid(format!("the scheme of a lock folder is {SCHEME}:")));
        }
        if !url.hosts().is_empty() || url.user().is_some() || url.password().is_some() {
            return Err(invalid(
                "a lock folder is on this machine: file:///path has three slashes and no host",
            ));
        }
        if matches!(url.path(), "" | "/") {
            return Err(invalid("the URL names no folder: file:///path/of/the/folder"));
        }
        let folder = url.path().to_owned();
        url.finish()?;
        Self::new(folder)
    }

    /// The folder, as an absolute path.
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
    fn what_is_no_folder_of_this_machine_is_refused() {
        for text in ["file:", "file:///", "file://server/share", "file:///locks?names=raw", "etcd:///locks"] {
            assert_eq!(from_url(text).unwrap_err().kind(), ErrorKind::InvalidConfig, "{text}");
        }
        assert_eq!(FileConfig::new("").unwrap_err().kind(), ErrorKind::InvalidConfig);
    }

    #[test]
    fn a_relative_folder_is_taken_from_the_working_directory() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(FileConfig::new("locks").unwrap().folder(), here.join("locks"));
    }
}
