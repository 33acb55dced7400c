//! A user with no more rights than the documentation of `RedlockConfig` asks for.

/// Name and password, as URLs have them.
pub const LOGIN: &str = "app:secret";

/// What the user may do, as `ACL SETUSER` wants it told.
pub const RIGHTS: &str = "~* &lockkit:released:* +evalsha +eval +subscribe +unsubscribe +publish +info +hello +select \
                          +time +getrange +exists +get +set +del +pexpire +hset +hsetnx +hget +hdel +hstrlen";

/// The user from nothing: the words after `ACL SETUSER`.
pub fn user(rights: &str) -> Vec<&str> {
    let mut words = vec!["app", "on", ">secret"];
    words.extend(rights.split_whitespace());
    words
}
