//! How to log in to servers or Sentinels.

use std::{
    fmt, fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use lockkit_core::ErrorKind;

use crate::error::{Effect, RequestError};

/// Longest password in a file, in bytes.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// How to log in.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Password>,
    pub(crate) database: i64,
}

/// A password, or where it is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Password {
    Text(String),
    /// The first line of a file, which every new connection reads again.
    File(PathBuf),
}

impl Password {
    /// Returns the password.
    pub(crate) fn read(&self) -> Result<String, RequestError> {
        match self {
            Self::Text(password) => Ok(password.clone()),
            Self::File(file) => first_line(file),
        }
    }
}

fn first_line(file: &Path) -> Result<String, RequestError> {
    let failed = |why: &dyn fmt::Display| {
        let message = format!("cannot read the password file {}: {why}", file.display());
        RequestError::new(Effect::Refused, ErrorKind::InvalidConfig, message)
    };
    let mut text = String::new();
    // To open a pipe would block the runtime, until somebody writes to it.
    let found = fs::metadata(file).map_err(|cause| failed(&cause))?;
    if !found.is_file() {
        return Err(failed(&"it is no regular file"));
    }
    let opened = fs::File::open(file);
    let read = opened.and_then(|file| BufReader::new(file.take(PASSWORD_BYTES_MAX + 1)).read_line(&mut text));
    read.map_err(|cause| failed(&cause))?;
    match text.lines().next() {
        Some(password) if password.len() as u64 > PASSWORD_BYTES_MAX => {
            Err(failed(&format_args!("its first line is longer than {PASSWORD_BYTES_MAX} bytes")))
        }
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(failed(&"its first line is empty")),
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("***"),
            Self::File(file) => file.fmt(f),
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Destructured in full: a new field does not compile until this decides whether it is secret.
        let Self { user, password, database } = self;
        f.debug_struct("Login")
            .field("user", user)
            .field("password", password)
            .field("database", database)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of it would be a wrong password.
    #[test]
    fn password_that_is_too_long_is_refused_and_what_follows_it_is_not_read() {
        let file = std::env::temp_dir().join(format!("lockkit-{:x}", fastrand::u64(..)));
        let longest = "x".repeat(usize::try_from(PASSWORD_BYTES_MAX).unwrap());
        for (text, password) in [
            (longest.clone(), Some(&*longest)),
            (format!("{longest}x"), None),
            (format!("{longest}\nmore"), Some(&*longest)),
            (format!("secret\n{longest}"), Some("secret")),
        ] {
            fs::write(&file, text).unwrap();
            let read = Password::File(file.clone()).read();
            assert_eq!(read.ok().as_deref(), password);
        }
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn password_file_that_is_a_pipe_is_refused() {
        let pipe = std::env::temp_dir().join(format!("lockkit-{:x}", fastrand::u64(..)));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (sender, answer) = std::sync::mpsc::channel();
        let file = pipe.clone();
        std::thread::spawn(move || sender.send(Password::File(file).read()));
        let answer = answer.recv_timeout(std::time::Duration::from_secs(10));
        fs::remove_file(&pipe).unwrap();
        assert_eq!(answer.expect("no wait").unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}
