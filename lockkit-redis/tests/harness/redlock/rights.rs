//! A user with only the rights that the documentation of `RedlockConfig` lists.

/// Name and password, as in a URL.
pub const LOGIN: &str = "app:secret";

/// The user's rights, in the syntax of `ACL SETUSER`.
pub const RIGHTS: &str = "~* &lockkit:released:* +evalsha +eval +subscribe +unsubscribe +publish +pubsub|numsub +info +hello \
                          +select +time +getrange +exists +get +set +del +pexpire +hset +hsetnx +hget +hmget +hdel";

/// The words after `ACL SETUSER` that create the user.
pub fn user(rights: &str) -> Vec<&str> {
    let mut words = vec!["app", "on", ">secret"];
    words.extend(rights.split_whitespace());
    words
}
