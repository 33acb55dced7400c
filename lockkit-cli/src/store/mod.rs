//! Which store to use.
//!
//! The first of these names it: the arguments, the environment, the user's own lock folder. The last one is announced,
//! because it excludes nobody on another host (decision 0036).

mod own_folder;
mod password;

use lockkit::backend::BackendUrl;

use self::password::{may_hold_password, with_password};
use crate::{
    args::StoreArguments,
    exit::{CONFIG, Failure, USAGE, warn},
};

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
        let url = match (&arguments.backend, environment) {
            (Some(url), _) if may_hold_password(url) => {
                return Err(Failure::new(
                    USAGE,
                    "password in the arguments, which every user of this host can read: pass it with \
                     --password-file or LOCKKIT_PASSWORD, and name only the user in the URL",
                ));
            }
            (Some(url), _) => url.clone(),
            (None, _) if arguments.local => own_folder::url()?,
            (None, Some(url)) => url,
            (None, None) => {
                let url = own_folder::url()?;
                warn(format_args!(
                    "no store is named: using lock files of this user on this host only ({url}); name a store with \
                     --backend or LOCKKIT_BACKEND, or accept this with --local"
                ));
                url
            }
        };
        refuse_memory(&url)?;
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
