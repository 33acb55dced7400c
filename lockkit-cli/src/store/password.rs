//! How the password of a store stays secret.
//!
//! Where a password could leak, and what prevents it: arguments (`ps` shows them to everybody) are refused, also a URL in
//! the place of a lock's name; the environment of the command names the same store without it; the watcher gets no
//! environment; errors and `Debug` never contain the URL, nor does a message about wrong arguments ([`usage`](crate::usage)). A hint
//! that repeats a mistyped URL ([`remedies`](super::remedies)) is not given for a URL that may contain a password, in its
//! login or in an option.

use std::{fs, io::Read, path::Path};

use lockkit::backend::BackendUrl;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{remedies::with_user, variable};
use crate::exit::{CONFIG, Failure, USAGE};

/// Longest password file that is read, in bytes.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// Whether a URL contains a password, or is malformed and might.
pub(crate) fn may_hold_password(url: &str) -> bool {
    /// The second one is an option in the URLs of other clients.
    const OPTIONS: [&str; 2] = ["sentinel_password", "password"];
    match BackendUrl::parse(url) {
        Ok(mut url) => url.password().is_some() || OPTIONS.iter().any(|option| url.take(option).is_some()),
        Err(_) => url.contains('@') || url.contains("password="),
    }
}

/// Returns a URL without its passwords, which the command may see. It must name the same store: a `lockkit` that the command
/// calls would otherwise take its locks somewhere else, unnoticed.
pub(super) fn without_password(url: &str) -> String {
    /// No command takes it for a store.
    const HIDDEN: &str = "hidden, because it may contain a password";
    stripped(url).filter(|url| !may_hold_password(url)).unwrap_or_else(|| HIDDEN.to_owned())
}

/// Removes what looks like a password from a URL.
fn stripped(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let user = login.split(':').next().filter(|user| !user.is_empty());
    let user = user.map(|user| format!("{user}@")).unwrap_or_default();
    let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
    let is_password = |option: &&str| option.split('=').next().is_some_and(|key| key.ends_with("password"));
    let options: Vec<&str> = query.split('&').filter(|option| !is_password(option)).collect();
    let query = if options.concat().is_empty() { String::new() } else { format!("?{}", options.join("&")) };
    Some(format!("{scheme}://{user}{hosts}{path}{query}"))
}

/// Adds the password from its file or variable to the URL.
pub(super) fn with_password(
    url: String,
    parsed: &BackendUrl,
    file: Option<&Path>,
) -> Result<String, Failure> {
    let password = match file {
        Some(_) if parsed.user().is_none() => {
            let example = with_user(parsed.scheme());
            return Err(Failure::new(
                USAGE,
                format!("--password-file needs a user in the URL, as in {example}"),
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
    Ok(password.and_then(|password| insert(&url, &password)).unwrap_or(url))
}

/// Returns the URL with a password for its user; `None` if it names no user.
fn insert(url: &str, password: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // The last `@`: that of a user such as me@example.com may be written as it is.
    let (user, hosts) = authority.rsplit_once('@')?;
    let user = user.trim_end_matches(':');
    let password = utf8_percent_encode(password, NON_ALPHANUMERIC);
    Some(format!("{scheme}://{user}:{password}@{hosts}{tail}"))
}

/// Returns the first line of the file.
fn read_password(file: &Path) -> Result<String, Failure> {
    let failed = |cause: String| {
        Failure::new(CONFIG, format!("cannot read the password file {}: {cause}", file.display()))
    };
    let mut text = String::new();
    fs::File::open(file)
        // One byte more, to detect a longer file: a part of a password is another one.
        .and_then(|file| file.take(PASSWORD_BYTES_MAX + 1).read_to_string(&mut text))
        .map_err(|cause| failed(cause.to_string()))?;
    if text.len() as u64 > PASSWORD_BYTES_MAX {
        return Err(failed(format!("it has more than {PASSWORD_BYTES_MAX} bytes")));
    }
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
        with_password(url.to_owned(), &BackendUrl::parse(url)?, Some(file.path()))
    }

    #[test]
    fn password_is_removed_from_a_url_and_nothing_else() {
        for (url, without) in [
            ("etcd://me:hunter2@h1:1,h2/app?ttl=3s&names=raw", "etcd://me@h1:1,h2/app?ttl=3s&names=raw"),
            ("redis://:hunter2@h/1", "redis://h/1"),
            ("etcd://me@example.com:hunter2@h", "etcd://me@example.com@h"),
            (
                "redis+sentinel://s1,s2/m?sentinel_user=u&sentinel_password=hunter2&db=1",
                "redis+sentinel://s1,s2/m?sentinel_user=u&db=1",
            ),
            ("redis+sentinel://s/m?sentinel_password=hunter2", "redis+sentinel://s/m"),
        ] {
            assert_eq!(without_password(url), without);
        }
        for hidden in [
            "etcd://me:hunter2@h:port",
            "redis:h?password=hunter2",
            "redis+sentinel://s/m?sentinel_pass%77ord=hunter2",
        ] {
            let text = without_password(hidden);
            assert!(BackendUrl::parse(&text).is_err() && !text.contains("hunter2"), "{hidden}: {text}");
        }
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
    fn only_the_first_line_of_the_file_is_the_password() {
        for file in ["hunter2\nof the test system\n", "hunter2\r\n\r\n"] {
            let url = BackendUrl::parse(&url_with("etcd://me@h:1", file).unwrap()).unwrap();
            assert_eq!(url.password(), Some("hunter2"));
        }
    }

    #[test]
    fn password_is_that_of_a_user_with_an_at_sign() {
        let url = url_with("etcd://me@example.com@h1:1,h2:2/app@x?ttl=3s", "hunter2").unwrap();
        let url = BackendUrl::parse(&url).unwrap();
        assert_eq!((url.user(), url.password()), (Some("me@example.com"), Some("hunter2")));
        assert_eq!((url.hosts().len(), url.path()), (2, "/app@x"));
    }

    #[test]
    fn password_without_user_or_second_password_is_refused() {
        for url in ["etcd://h:1", "file:///locks", "etcd://me:other@h:1"] {
            assert_eq!(url_with(url, "hunter2").unwrap_err().status, USAGE, "{url}");
        }
        assert_eq!(url_with("etcd://me@h:1", "\n").unwrap_err().status, CONFIG);
    }

    #[test]
    fn password_file_that_is_too_long_is_refused_and_not_read_to_its_end() {
        let longest = "x".repeat(PASSWORD_BYTES_MAX as usize);
        let url = BackendUrl::parse(&url_with("etcd://me@h:1", &longest).unwrap()).unwrap();
        assert_eq!(url.password(), Some(&*longest));
        for refused in [
            url_with("etcd://me@h:1", &format!("{longest}x")).map(drop),
            read_password(Path::new("/dev/zero")).map(drop),
        ] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.status, CONFIG);
            assert!(refused.message.contains("more than 4096 bytes"), "{}", refused.message);
        }
    }

    #[test]
    fn malformed_url_counts_as_containing_a_password() {
        assert!(may_hold_password("etcd://me:hunter2@h"));
        assert!(may_hold_password("etcd://me:hunter2@h:port"));
        for option in ["sentinel_password", "password"] {
            assert!(may_hold_password(&format!("redis+sentinel://h/main?{option}=hunter2")));
            assert!(may_hold_password(&format!("redis+sentinel://h:port/main?{option}=hunter2")));
        }
        assert!(!may_hold_password("redis+sentinel://h/main?sentinel_password_file=/run/secret"));
        assert!(!may_hold_password("etcd://me@h:1"));
        assert!(!may_hold_password("file:///locks"));
    }

    #[test]
    fn user_with_an_empty_password_gets_that_of_the_file() {
        let url = BackendUrl::parse(&url_with("etcd://me:@h:1", "hunter2").unwrap()).unwrap();
        assert_eq!((url.user(), url.password()), (Some("me"), Some("hunter2")));
    }
}
