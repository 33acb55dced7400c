//! The rights of a user whom access control lists allow no more than locking.

/// As the documentation of `RedisConfig::user` has it, for all keys.
pub(crate) const RIGHTS: &str = "~* &lockkit:client:* +evalsha +eval +subscribe +publish +ping +info +hello +select \
                                 +time +getrange +exists +get +set +del +pttl +pexpire +type \
                                 +zadd +zrange +zrevrange +zrem +hset +hget +hdel +hexists +hstrlen";
