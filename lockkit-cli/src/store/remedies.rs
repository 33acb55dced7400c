//! What somebody may have meant, and what helps.

use lockkit::backend::BackendUrl;

use super::password::may_hold_password;

/// The kinds of stores whose URLs name no server.
const WITHOUT_SERVERS: [&str; 3] = ["memory", "file", "redis+unix"];

/// Returns the URL that is probably meant by a text that is none. Nothing is repeated that may contain a password.
pub(super) fn did_you_mean(text: &str) -> Option<String> {
    // Before the slashes are added, the parser finds no login.
    if text.contains('@') || may_hold_password(text) {
        return None;
    }
    if text.starts_with('/') {
        return Some(format!("file://{text}"));
    }
    let (scheme, rest) = text.split_once(':')?;
    let is_of_servers = lockkit::schemes().any(|known| known == scheme) && !WITHOUT_SERVERS.contains(&scheme);
    (is_of_servers && !rest.starts_with("//")).then(|| format!("{scheme}://{}", rest.trim_start_matches('/')))
}

/// Returns what helps if the store denies access to this URL.
pub(super) fn login(url: &BackendUrl, has_variable: bool) -> Option<String> {
    if url.user().is_some() {
        return None;
    }
    let example = with_user(url.scheme());
    Some(match has_variable {
        true => format!("LOCKKIT_PASSWORD is not used, because the URL names no user: write {example}"),
        false => format!("if it needs a password: name the user, as in {example}, and set LOCKKIT_PASSWORD"),
    })
}

/// Returns an example of a URL with a user.
pub(super) fn with_user(scheme: &str) -> String {
    // The user of a Redis connection that names none.
    let user = if scheme.starts_with("redis") || scheme.starts_with("redlock") { "default" } else { "USER" };
    format!("{scheme}://{user}@HOST")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_missing_slashes_are_recognised() {
        assert_eq!(did_you_mean("/var/locks").as_deref(), Some("file:///var/locks"));
        let scheme = lockkit::schemes().find(|scheme| !WITHOUT_SERVERS.contains(scheme));
        if let Some(scheme) = scheme {
            for text in [format!("{scheme}:h:1/x"), format!("{scheme}:/h:1/x")] {
                assert_eq!(did_you_mean(&text), Some(format!("{scheme}://h:1/x")));
            }
            assert_eq!(did_you_mean(&format!("{scheme}://h")), None);
            for secret in [
                "me:secret@h",
                "h/x?sentinel_password=secret",
                "h?sentinel%5Fpassword=secret",
                "h?password=secret",
            ] {
                assert_eq!(did_you_mean(&format!("{scheme}:{secret}")), None);
            }
            let file = "h/x?sentinel_password_file=/run/secret";
            assert_eq!(did_you_mean(&format!("{scheme}:{file}")), Some(format!("{scheme}://{file}")));
        }
        for text in
            ["", "no url", "memory:", "file:x", "redis+unix:/run/redis.sock", "tape:h", "/home/me@work"]
        {
            assert_eq!(did_you_mean(text), None, "{text}");
        }
    }

    #[test]
    fn remedy_for_a_login_knows_the_store() {
        let remedy = |url: &str, has_variable| login(&BackendUrl::parse(url).unwrap(), has_variable);
        assert!(remedy("redis+cluster://h", true).unwrap().ends_with("write redis+cluster://default@HOST"));
        assert!(remedy("etcd://h", true).unwrap().contains("not used"));
        assert!(remedy("etcd://h", false).unwrap().contains("etcd://USER@HOST"));
        assert_eq!(remedy("redis://default@h", true), None);
    }
}
