//! Which store to use, and how to keep its password secret.
//!
//! Where a password could leak, and what prevents it: arguments (`ps` shows them to everybody) are refused; the
//! environment of the command does not contain it; the watcher gets no environment; errors and `Debug` never contain
//! the URL.

use std::{
    fs,
    io::Read,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use etcetera::BaseStrategy;
use lockkit::backend::BackendUrl;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode, utf8_percent_encode};

use crate::{
    args::StoreArguments,
    exit::{CONFIG, Failure, USAGE},
};

/// Longest password file that is read, in bytes.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// What is encoded in the path of a URL.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/');

/// The store that the arguments and the environment select.
pub(crate) struct Store {
    /// May contain the password.
    url: String,
    /// Whether LOCKKIT_BACKEND contains a password.
    secret_in_environment: bool,
}

impl Store {
    /// Returns the store of the arguments, or of the environment, or the user's own lock folder.
    pub(crate) fn from(arguments: &StoreArguments) -> Result<Self, Failure> {
        let environment = variable("LOCKKIT_BACKEND")?;
        let secret_in_environment = environment.as_deref().is_some_and(may_hold_password);
        if arguments.backend.as_deref().is_some_and(may_hold_password) {
            return Err(Failure::new(
                USAGE,
                "password in the arguments, which every user of this host can read: pass it with \
                 --password-file or LOCKKIT_PASSWORD, and name only the user in the URL",
            ));
        }
        let url = match arguments.backend.clone().or(environment) {
            Some(url) => url,
            None => own_folder()?,
        };
        Ok(Self { url: with_password(url, arguments)?, secret_in_environment })
    }

    /// Returns the URL, which may contain the password.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the variables that the command must not see.
    pub(crate) fn secret_variables(&self) -> impl Iterator<Item = &'static str> {
        ["LOCKKIT_PASSWORD"].into_iter().chain(self.secret_in_environment.then_some("LOCKKIT_BACKEND"))
    }
}

/// Returns a variable's value; none if it is empty.
fn variable(name: &str) -> Result<Option<String>, Failure> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::new(CONFIG, format!("{name} is not valid UTF-8")))
        }
    }
}

/// Whether a URL contains a password, or is malformed and might.
fn may_hold_password(url: &str) -> bool {
    match BackendUrl::parse(url) {
        Ok(url) => url.password().is_some(),
        Err(_) => url.contains('@'),
    }
}

/// Returns the user's own lock folder; creates it if it is missing.
fn own_folder() -> Result<String, Failure> {
    let failed = |cause: String| {
        Failure::new(
            CONFIG,
            format!("cannot use the default lock folder: {cause}; name a store with --backend"),
        )
    };
    let base = etcetera::choose_base_strategy().map_err(|cause| failed(cause.to_string()))?;
    let state = base.state_dir().unwrap_or_else(|| base.data_dir());
    let folder: PathBuf = state.join("lockkit").join("locks");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|cause| failed(format!("{}: {cause}", folder.display())))?;
    if folder.is_relative() {
        return Err(failed(format!("{} is relative", folder.display())));
    }
    Ok(format!("file://{}", percent_encode(folder.as_os_str().as_bytes(), IN_PATH)))
}

/// Adds the password from its file or variable to the URL.
fn with_password(url: String, arguments: &StoreArguments) -> Result<String, Failure> {
    let parsed = BackendUrl::parse(&url)?;
    let password = match &arguments.password_file {
        Some(_) if parsed.user().is_none() => {
            return Err(Failure::new(
                USAGE,
                "--password-file needs a user in the URL, such as etcd://user@host",
            ));
        }
        Some(_) if parsed.password().is_some() => {
            return Err(Failure::new(
                USAGE,
                "--password-file given, but the URL already contains a password; remove one of them",
            ));
        }
        Some(file) => Some(read_password(file)?),
        // The variable may be meant for another store.
        None if parsed.user().is_none() || parsed.password().is_some() => None,
        None => variable("LOCKKIT_PASSWORD")?,
    };
    match (password, url.split_once("://")) {
        (Some(password), Some((scheme, rest))) => {
            let login_end = rest.find('@').unwrap_or(0);
            let (user, hosts) = rest.split_at(login_end);
            let user = user.trim_end_matches(':');
            let password = utf8_percent_encode(&password, NON_ALPHANUMERIC);
            Ok(format!("{scheme}://{user}:{password}{hosts}"))
        }
        _ => Ok(url),
    }
}

/// Returns the first line of the file.
fn read_password(file: &Path) -> Result<String, Failure> {
    let failed = |cause: String| {
        Failure::new(CONFIG, format!("cannot read the password file {}: {cause}", file.display()))
    };
    let mut text = String::new();
    fs::File::open(file)
        .and_then(|file| file.take(PASSWORD_BYTES_MAX).read_to_string(&mut text))
        .map_err(|cause| failed(cause.to_string()))?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(failed("it is empty".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url_with(url: &str, password: &str) -> Result<String, Failure> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), password).unwrap();
        let arguments = StoreArguments { backend: None, password_file: Some(file.path().to_owned()) };
        with_password(url.to_owned(), &arguments)
    }

    #[test]
    fn password_file_with_any_characters_reaches_the_url() {
        for password in ["hunter2", "a@b:c/d?e#f%", "päss wörd"] {
            let url = url_with("etcd://me@h1:1,h2:2/app?ttl=3s", &format!("{password}\n")).unwrap();
            let url = BackendUrl::parse(&url).unwrap();
            assert_eq!((url.user(), url.password()), (Some("me"), Some(password)));
            assert_eq!((url.hosts().len(), url.path()), (2, "/app"));
        }
    }

    #[test]
    fn password_without_user_or_second_password_is_refused() {
        for url in ["etcd://h:1", "file:///locks", "etcd://me:other@h:1"] {
            assert_eq!(url_with(url, "hunter2").unwrap_err().status, USAGE, "{url}");
        }
        assert_eq!(url_with("etcd://me@h:1", "\n").unwrap_err().status, CONFIG);
    }

    #[test]
    fn malformed_url_counts_as_containing_a_password() {
        assert!(may_hold_password("etcd://me:hunter2@h"));
        assert!(may_hold_password("etcd://me:hunter2@h:port"));
        assert!(!may_hold_password("etcd://me@h:1"));
        assert!(!may_hold_password("file:///locks"));
    }
}
