//! Which store to use.
//!
//! The first of these names it: the arguments, the environment, the configuration file, the user's own lock folder. The
//! last one is announced, because it excludes nobody on another host (decision 0036).

mod config_file;
mod own_folder;
mod password;
mod remedies;

use std::{path::PathBuf, time::Duration};

use lockkit::backend::BackendUrl;

pub(crate) use self::password::may_hold_password;
use self::{
    config_file::ConfigFile,
    password::{with_password, without_password},
};
use crate::{
    args::StoreArguments,
    exit::{CONFIG, DENIED, Failure, USAGE, warn},
};

/// The store that the arguments, the environment and the configuration select.
pub(crate) struct Store {
    /// May contain the password.
    url: String,
    /// The ttl that the configuration sets.
    ttl: Option<Duration>,
    /// LOCKKIT_BACKEND without its password, if it contains one.
    backend_without_password: Option<String>,
}

impl Store {
    /// Returns the store that is named first.
    pub(crate) fn from(arguments: &StoreArguments) -> Result<Self, Failure> {
        let environment = variable("LOCKKIT_BACKEND")?;
        let with_password = environment.as_deref().filter(|url| may_hold_password(url));
        let backend_without_password = with_password.map(without_password);
        if arguments.backend.as_deref().is_some_and(may_hold_password) {
            return Err(Failure::new(
                USAGE,
                "password in the arguments, which every user of this host can read: pass it with \
                 --password-file or LOCKKIT_PASSWORD (that of Sentinels with sentinel_password_file=FILE), and \
                 name only the user in the URL",
            ));
        }
        let config = ConfigFile::read()?;
        let mut password_file = arguments.password_file.clone();
        let url = match arguments.backend.clone().or(environment) {
            _ if arguments.local => own_folder::url()?,
            Some(url) => url,
            None => match config.backend {
                Some(url) => {
                    // The variable counts before the file.
                    if password_file.is_none() && variable("LOCKKIT_PASSWORD")?.is_none() {
                        password_file = config.password_file;
                    }
                    url
                }
                None => default()?,
            },
        };
        refuse_memory(&url)?;
        Ok(Self { url: complete(url, password_file)?, ttl: config.ttl, backend_without_password })
    }

    /// Returns the URL, which may contain the password.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the ttl of the configuration, for a URL without one.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// Returns what helps if the store denies access.
    pub(crate) fn login_remedy(&self) -> Option<String> {
        let has_variable = variable("LOCKKIT_PASSWORD").is_ok_and(|password| password.is_some());
        remedies::login(&BackendUrl::parse(&self.url).ok()?, has_variable)
    }

    /// Returns the variables that the command must not see, and what it sees in their place.
    pub(crate) fn secret_variables(&self) -> impl Iterator<Item = (&'static str, Option<String>)> {
        let backend = self.backend_without_password.clone();
        [("LOCKKIT_PASSWORD", None)].into_iter().chain(backend.map(|url| ("LOCKKIT_BACKEND", Some(url))))
    }
}

/// Returns the URL of the user's own lock folder, and says so.
fn default() -> Result<String, Failure> {
    let url = own_folder::url()?;
    warn(format_args!(
        "no store is named: using lock files of this user on this host only ({url}); name a store with --backend, \
         LOCKKIT_BACKEND or the configuration file, or accept this with --local"
    ));
    Ok(url)
}

/// Returns the URL with its password; a text that is no URL is an error that says what may be meant.
fn complete(url: String, password_file: Option<PathBuf>) -> Result<String, Failure> {
    match (BackendUrl::parse(&url), remedies::did_you_mean(&url)) {
        (_, Some(meant)) => {
            Err(Failure::new(CONFIG, format!("not the URL of a store: did you mean {meant}?")))
        }
        (Ok(parsed), None) => with_password(url, &parsed, password_file.as_deref()),
        (Err(_), None) if !url.contains(':') => Err(Failure::new(
            CONFIG,
            "not the URL of a store, which begins with its kind, such as etcd://host:2379 or file:///var/locks",
        )),
        (Err(error), None) => Err(error.into()),
    }
}

/// Refuses the store that is inside a process: it would exclude nobody.
fn refuse_memory(url: &str) -> Result<(), Failure> {
    match BackendUrl::parse(url) {
        Ok(url) if url.scheme() == "memory" => Err(Failure::new(
            USAGE,
            "the store memory: is inside one process: no other process ever sees its locks, so it protects nothing; name \
             another store",
        )),
        _ => Ok(()),
    }
}

/// Adds what helps to a failure of access.
pub(crate) fn with_remedy(mut failure: Failure, remedy: Option<&str>) -> Failure {
    if let (DENIED, Some(remedy)) = (failure.status, remedy) {
        failure.message += &format!("; {remedy}");
    }
    failure
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
