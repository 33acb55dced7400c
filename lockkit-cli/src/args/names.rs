//! Names of locks on the command line.
//!
//! Failure case: the URL of the store, with its password, is in the place of a name, such as after `who`. A name is in the
//! store, in messages and in `LOCKKIT_NAME`, so this one is refused. A URL without a password is a name like any text.

use crate::store::may_hold_password;

/// Returns the name of a lock, or the beginning of names.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    if is_with_password(text) {
        return Err("a name that is a URL with a password would be shown to others; the URL of a store \
                    belongs after --backend, and its password into --password-file or LOCKKIT_PASSWORD"
            .into());
    }
    Ok(text.to_owned())
}

/// Whether a name is a URL that contains a password, or is malformed and looks like one.
fn is_with_password(name: &str) -> bool {
    let Some((_, rest)) = name.split_once("://") else { return false };
    let has_login = rest.rsplit_once('@').is_some_and(|(login, _)| login.contains(':'));
    (has_login || rest.contains("password=")) && may_hold_password(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_a_name_unless_it_contains_a_password() {
        for name in [
            "",
            "a: b@c",
            "redis://me@h",
            "https://h:443/page?from=me@h",
            "https://h/@me/page#part",
            "s3://bucket/a b@c",
        ] {
            assert_eq!(parse_name(name), Ok(name.to_owned()), "{name}");
        }
        for url in [
            "redis://me:hunter2@h",
            "redis://:hunter2@h",
            "etcd://me:hunter2@h:port",
            "etcd://me:hunter2#@h",
            "redis://me@example.com:hunter2@h",
            "redis://h?password=hunter2",
        ] {
            let refused = parse_name(url).unwrap_err();
            assert!(refused.contains("after --backend") && !refused.contains("hunter2"), "{refused}");
        }
    }
}
