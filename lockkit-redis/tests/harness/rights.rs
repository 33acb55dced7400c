//! A user with exactly the rights that the documentation of `RedisConfig::user` lists.

/// Name and password as in a URL.
pub(crate) const LOGIN: &str = "app:secret";

/// The rights of the user, as arguments of `ACL SETUSER`.
pub(crate) const RIGHTS: &str = "~* &lockkit:client:* &lockkit:leader:* +evalsha +eval +subscribe +unsubscribe \
                                 +publish +ping +info +hello +select +time +getrange +exists +get +set +del \
                                 +pttl +pexpire \
                                 +zadd +zrange +zrevrange +zrem +zscore +hset +hget +hmget +hdel +hexists +hstrlen";

/// Returns what replaces `~*` where keys have a prefix.
pub(crate) fn keys_of(prefix: &str) -> String {
    format!("~{prefix}* ~lockkit:{{{prefix}* ~lockkit::{prefix}*")
}

/// Returns the arguments of `ACL SETUSER` that create the user.
pub(crate) fn user(rights: &str) -> Vec<&str> {
    let mut command = vec!["app", "on", ">secret"];
    command.extend(rights.split_whitespace());
    command
}
