//! A Redis server: isolation, restart, errors.

use lockkit_testbed::Redis;

#[test]
fn servers_share_nothing() {
    let (one, other) = (Redis::start().unwrap(), Redis::start().unwrap());
    assert_ne!(one.endpoint(), other.endpoint());
    one.cli(&["SET", "a", "1"]).unwrap();
    assert_eq!((one.keys("*").unwrap(), other.keys("*").unwrap()), (vec!["a".to_owned()], Vec::new()));
    assert_eq!((one.calls("set").unwrap(), other.calls("set").unwrap()), (1, 0));
}

#[test]
fn data_survives_a_restart_but_not_a_wipe() {
    let mut redis = Redis::start().unwrap();
    let (endpoint, pid) = (redis.endpoint(), redis.pid().unwrap());
    redis.cli(&["SET", "a", "1"]).unwrap();
    redis.kill().unwrap();
    assert!(redis.cli(&["PING"]).is_err());
    redis.restart().unwrap();
    assert_eq!(redis.endpoint(), endpoint);
    assert_ne!(redis.pid(), Some(pid));
    assert_eq!(redis.keys("*").unwrap(), ["a"]);
    redis.wipe().unwrap();
    assert_eq!(redis.keys("*").unwrap(), [""; 0]);
}

#[test]
fn failed_start_reports_the_server_log() {
    let error = Redis::start_with(&["--maxmemory-policy", "sometimes"]).unwrap_err().to_string();
    assert!(error.contains("sometimes"), "{error}");
}

#[test]
fn error_replies_are_returned_verbatim() {
    let redis = Redis::start().unwrap();
    redis.cli(&["HSET", "h", "a", "1"]).unwrap();
    assert!(redis.cli(&["GET", "h"]).unwrap_err().to_string().starts_with("WRONGTYPE"));
    assert!(redis.socket().exists());
}
