//! A user with no more rights than the documentation of `RedisConfig::user` asks for.

/// Name and password, as URLs have them.
pub(crate) const LOGIN: &str = "app:secret";

/// What the user may do, as `ACL SETUSER` wants it told.
pub(crate) const RIGHTS: &str = "~* &lockkit:client:* +evalsha +eval +subscribe +publish +ping +info +hello +select \
                                 +time +getrange +exists +get +set +del +pttl +pexpire +type \
                                 +zadd +zrange +zrevrange +zrem +zscore +hset +hget +hdel +hexists +hstrlen";

/// What stands for `~*` where keys have a prefix.
pub(crate) fn keys_of(prefix: &str) -> String {
    format!("~{prefix}* ~lockkit:{{{prefix}* ~lockkit::{prefix}*")
}

/// The user from nothing: the words after `ACL SETUSER`.
pub(crate) fn user(rights: &str) -> Vec<&str> {
    let mut words = vec!["app", "on", ">secret"];
    words.extend(rights.split_whitespace());
    words
}
