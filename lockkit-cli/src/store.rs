//! Which store to use, and how to keep its password to ourselves.
//!
//! Where a password can leak, and what is done: arguments (`ps` shows them to everybody): refused. The environment of
//! the command: taken out. The watcher: gets no environment. Errors and `Debug`: never hold the URL.

use std::{
    fs,
    io::Read,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use etcetera::BaseStrategy;
use lockkit::backend::BackendUrl;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::{
    args::StoreArguments,
    exit::{CONFIG, Failure, USAGE},
};

/// Longest password file that is read, in bytes.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// A store, as the arguments and the environment name it.
pub(crate) struct Store {
    /// The URL: a secret.
    url: String,
    /// Whether LOCKKIT_BACKEND holds a password.
    secret_in_environment: bool,
}

impl Store {
    /// The store that the arguments name, or the environment, or the user's own lock folder.
    pub(crate) fn from(arguments: &StoreArguments) -> Result<Self, Failure> {
        let environment = variable("LOCKKIT_BACKEND")?;
        let secret_in_environment = environment.as_deref().is_some_and(may_hold_password);
        if arguments.backend.as_deref().is_some_and(may_hold_password) {
            return Err(Failure::new(
                USAGE,
                "everybody on this host can read a password in the arguments: give it by --password-file or \
                 LOCKKIT_PASSWORD, and only the user in the URL",
            ));
        }
        let url = match arguments.backend.clone().or(environment) {
            Some(url) => url,
            None => own_folder()?,
        };
        Ok(Self { url: with_password(url, arguments)?, secret_in_environment })
    }

    /// The URL: a secret.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The variables that the command must not see.
    pub(crate) fn secret_variables(&self) -> impl Iterator<Item = &'static str> {
        ["LOCKKIT_PASSWORD"].into_iter().chain(self.secret_in_environment.then_some("LOCKKIT_BACKEND"))
    }
}

/// A variable's value; none when it is empty.
fn variable(name: &str) -> Result<Option<String>, Failure> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::new(CONFIG, format!("{name} is not valid UTF-8")))
        }
    }
}

/// Whether a URL holds a password, or, being no URL at all, could.
fn may_hold_password(url: &str) -> bool {
    match BackendUrl::parse(url) {
        Ok(url) => url.password().is_some(),
        Err(_) => url.contains('@'),
    }
}

/// The user's own lock folder, made if need be.
fn own_folder() -> Result<String, Failure> {
    let failed = |cause: String| Failure::new(CONFIG, format!("no lock folder, use --backend: {cause}"));
    let base = etcetera::choose_base_strategy().map_err(|cause| failed(cause.to_string()))?;
    let state = base.state_dir().unwrap_or_else(|| base.data_dir());
    let folder: PathBuf = state.join("lockkit").join("locks");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|cause| failed(format!("{}: {cause}", folder.display())))?;
    let url =
        Url::from_file_path(&folder).map_err(|()| failed(format!("{} is relative", folder.display())))?;
    Ok(url.into())
}

/// Puts the password from its file or variable behind the user in the URL.
fn with_password(url: String, arguments: &StoreArguments) -> Result<String, Failure> {
    let parsed = BackendUrl::parse(&url)?;
    let password = match &arguments.password_file {
        Some(_) if parsed.user().is_none() => {
            return Err(Failure::new(
                USAGE,
                "--password-file: the URL names no user, such as etcd://user@host",
            ));
        }
        Some(_) if parsed.password().is_some() => {
            return Err(Failure::new(USAGE, "--password-file: the URL holds a password already"));
        }
        Some(file) => Some(read_password(file)?),
        // The variable may have been set for another store than this one.
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

/// The first line of the file.
fn read_password(file: &Path) -> Result<String, Failure> {
    let failed = |cause: String| Failure::new(CONFIG, format!("password file {}: {cause}", file.display()));
    let mut text = String::new();
    fs::File::open(file)
        .and_then(|file| file.take(PASSWORD_BYTES_MAX).read_to_string(&mut text))
        .map_err(|cause| failed(cause.to_string()))?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(failed("is empty".into())),
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
    fn the_password_of_a_file_arrives_in_the_url_whatever_it_is_made_of() {
        for password in ["hunter2", "a@b:c/d?e#f%", "päss wörd"] {
            let url = url_with("etcd://me@h1:1,h2:2/app?ttl=3s", &format!("{password}\n")).unwrap();
            let url = BackendUrl::parse(&url).unwrap();
            assert_eq!((url.user(), url.password()), (Some("me"), Some(password)));
            assert_eq!((url.hosts().len(), url.path()), (2, "/app"));
        }
    }

    #[test]
    fn a_password_without_a_user_or_beside_another_is_refused() {
        for url in ["etcd://h:1", "file:///locks", "etcd://me:other@h:1"] {
            assert_eq!(url_with(url, "hunter2").unwrap_err().status, USAGE, "{url}");
        }
        assert_eq!(url_with("etcd://me@h:1", "\n").unwrap_err().status, CONFIG);
    }

    #[test]
    fn what_is_no_url_is_not_trusted_to_hold_no_password() {
        assert!(may_hold_password("etcd://me:hunter2@h"));
        assert!(may_hold_password("etcd://me:hunter2@h:port"));
        assert!(!may_hold_password("etcd://me@h:1"));
        assert!(!may_hold_password("file:///locks"));
    }
}
