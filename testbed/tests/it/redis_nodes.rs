//! Groups of Redis servers: replicas, Sentinels, a cluster, independent masters, clocks.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use lockkit_testbed::{
    BehindProxies, Flow, HANG, OldRedis, Redis, RedisCluster, RedisMasters, RedisReplicas, RedisSentinels,
    Reply, ServerClock, until,
};

fn timed<T>(what: &str, start: impl FnOnce() -> anyhow::Result<T>) -> T {
    let started = Instant::now();
    let value = start().unwrap();
    println!("{what}: {:?}", started.elapsed());
    value
}

fn set(node: &Redis, key: &str) {
    node.cli(&["SET", key, "v"]).unwrap();
}

fn has(node: &Redis, key: &str) -> bool {
    node.cli(&["EXISTS", key]).unwrap() == Reply::Number(1)
}

/// The text of the error that a command fails with.
#[track_caller]
fn refusal(node: &Redis, words: &[&str]) -> String {
    node.cli(words).unwrap_err().to_string()
}

#[test]
fn replica_that_was_cut_off_is_promoted_without_the_latest_writes() {
    let mut redis = timed("master and replicas", RedisReplicas::start);
    assert_eq!(
        redis.url(),
        format!(
            "redis://{},{},{}",
            redis.node(0).endpoint(),
            redis.node(1).endpoint(),
            redis.node(2).endpoint()
        )
    );
    assert!(redis.node(0).is_master().unwrap() && redis.node(1).is_replicating().unwrap());
    assert!(refusal(redis.node(2), &["SET", "a", ""]).starts_with("READONLY"));

    set(redis.node(0), "early");
    redis.wait_until_in_sync(0).unwrap();
    redis.node(1).stop_replicating().unwrap();
    set(redis.node(0), "late");
    until("the replica has the key", || has(redis.node(2), "late"));
    assert!(has(redis.node(1), "early") && !has(redis.node(1), "late"));

    redis.node_mut(0).kill().unwrap();
    redis.promote(1).unwrap();
    redis.node(1).replicate_again().unwrap();
    redis.wait_until_in_sync(1).unwrap();
    assert!(!has(redis.node(2), "late"), "a replica keeps a write that its master does not have");
    redis.node_mut(0).restart().unwrap();
    assert!(
        redis.node(0).is_master().unwrap() && has(redis.node(0), "late"),
        "the former master lost its data"
    );
}

fn link_down_seconds(replica: &Redis) -> Option<u32> {
    let info = replica.cli(&["INFO", "replication"]).unwrap();
    info.text().lines().find_map(|line| line.strip_prefix("master_link_down_since_seconds:")?.parse().ok())
}

#[test]
fn replica_that_was_cut_off_catches_up() {
    let redis = RedisReplicas::start().unwrap();
    redis.node(2).stop_replicating().unwrap();
    // Replicas try to reach their master once a second.
    until("the link is down for some seconds", || link_down_seconds(redis.node(2)) >= Some(3));
    set(redis.node(0), "a");
    assert!(!has(redis.node(2), "a"));
    redis.node(2).replicate_again().unwrap();
    redis.wait_until_in_sync(0).unwrap();
    assert!(has(redis.node(2), "a"));
    assert!(redis.node(0).stop_replicating().is_err(), "a master does not replicate");
}

#[test]
fn sentinels_promote_a_replica_of_a_killed_master() {
    let mut redis = timed("Sentinels", RedisSentinels::start);
    assert!(redis.url().ends_with(&format!(",{}/main", redis.sentinel(2).endpoint())), "{}", redis.url());
    let first = redis.master().unwrap();
    set(redis.node(first), "a");
    redis.replicas().wait_until_in_sync(first).unwrap();
    redis.node_mut(first).kill().unwrap();
    let second = timed("another master", || redis.wait_for_master_after(first));
    assert!(has(redis.node(second), "a"));
    redis.node_mut(first).restart().unwrap();
    // It may be another one than `second`: on a busy machine that one may have counted as down meanwhile.
    let master = timed("the old one back as a replica", || redis.wait_until_in_sync());
    set(redis.node(master), "b");
    redis.wait_until_in_sync().unwrap();
    assert!(has(redis.node(first), "b"));
}

#[test]
fn sentinels_fail_over_on_command_and_to_a_replica_that_was_cut_off() {
    let mut redis = RedisSentinels::start().unwrap();
    let second = timed("failover on command", || redis.failover());
    assert!(redis.node(second).is_master().unwrap());
    redis.replicas().wait_until_in_sync(second).unwrap();

    let replicas: Vec<usize> = (0..3).filter(|&node| node != second).collect();
    for &replica in &replicas {
        redis.node(replica).stop_replicating().unwrap();
    }
    set(redis.node(second), "late");
    redis.sentinel_mut(1).kill().unwrap();
    redis.node(second).pause().unwrap();
    let third = timed("another master, by two Sentinels", || redis.wait_for_master_after(second));
    assert!(replicas.contains(&third) && !has(redis.node(third), "late"));
    redis.node(second).resume().unwrap();
    redis.sentinel_mut(1).restart().unwrap();
    assert_eq!(redis.master().unwrap(), third);
}

/// Whether a new connection to the announced address is answered.
fn is_answered(node: &Redis) -> bool {
    let mut client = TcpStream::connect(node.endpoint()).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    client.write_all(b"PING\r\n").unwrap();
    client.read(&mut [0; 64]).is_ok_and(|read| read > 0)
}

#[test]
fn servers_behind_proxies_are_cut_from_each_other_and_clients_from_them() {
    let clock = ServerClock::new().unwrap();
    let redis = timed("Sentinels behind proxies", || RedisSentinels::start_behind_proxies(&clock));
    let quick = ["SENTINEL", "SET", RedisSentinels::NAME, "down-after-milliseconds", "1000"];
    redis.sentinels().iter().for_each(|sentinel| drop(sentinel.cli(&quick).unwrap()));
    let first = redis.master().unwrap();
    redis.cut(first);
    let second = timed("another master", || redis.wait_for_master_after(first));
    assert!(redis.node(first).is_master().unwrap(), "the former master was demoted");
    assert!(is_answered(redis.node(first)) && is_answered(redis.node(second)), "clients reach both");
    // A busy machine takes longer for an answer now and then.
    let patient = ["SENTINEL", "SET", RedisSentinels::NAME, "down-after-milliseconds", "60000"];
    redis.sentinels().iter().for_each(|sentinel| drop(sentinel.cli(&patient).unwrap()));
    redis.heal(first);
    let second = timed("one master again", || redis.wait_until_in_sync());

    redis.cut_client(std::process::id());
    assert!(!is_answered(redis.node(second)) && !is_answered(redis.sentinel(0)));
    redis.heal_client(std::process::id());
    assert!(is_answered(redis.node(second)) && is_answered(redis.sentinel(0)));

    redis.set_clients(second, Flow::Hold);
    assert!(!is_answered(redis.node(second)) && is_answered(redis.sentinel(0)));
    set(redis.node(second), "replicated");
    assert_eq!(timed("the replicas follow the master", || redis.wait_until_in_sync()), second);
    redis.set_clients(second, Flow::Pass);
    assert!(is_answered(redis.node(second)));
}

#[test]
fn cluster_node_behind_proxies_is_cut_from_the_others() {
    let clock = ServerClock::new().unwrap();
    let cluster = timed("cluster behind proxies", || RedisCluster::start_behind_proxies(&clock));
    cluster.cut(0);
    timed("its replica takes over", || {
        until("the replica takes over", || cluster.node(3).is_master().unwrap());
        Ok(())
    });
    cluster.heal(0);
    until("the old master is a replica", || !cluster.node(0).is_master().unwrap());
    cluster.wait_until_healthy().unwrap();
    assert!(is_answered(cluster.node(0)));
    cluster.cut_client(std::process::id());
    assert!(!is_answered(cluster.node(0)));
    cluster.heal_client(std::process::id());
    assert!(is_answered(cluster.node(0)));
}

#[test]
fn slot_migrates_step_by_step() {
    let cluster = timed("cluster", RedisCluster::start);
    assert_eq!(cluster.url().matches(',').count(), 5, "{}", cluster.url());
    let slot = cluster.slot("{k}1").unwrap();
    let from = cluster.owner(slot).unwrap();
    let to = (from + 1) % 3;
    set(cluster.node(from), "{k}1");
    set(cluster.node(from), "{k}2");
    assert!(refusal(cluster.node(to), &["GET", "{k}1"]).starts_with("MOVED"));

    assert!(cluster.migrate(slot, from).is_err(), "the slot is there already");
    let migration = cluster.migrate(slot, to).unwrap();
    assert!(migration.move_key("{k}1").unwrap());
    assert!(!migration.move_key("{k}1").unwrap());
    assert!(has(cluster.node(from), "{k}2"));
    assert!(refusal(cluster.node(from), &["GET", "{k}1"]).starts_with("ASK"));
    assert!(refusal(cluster.node(from), &["MGET", "{k}1", "{k}2"]).starts_with("TRYAGAIN"));
    migration.move_keys().unwrap();
    migration.finish().unwrap();
    assert_eq!(cluster.owner(slot).unwrap(), to);
    assert!(has(cluster.node(to), "{k}1") && has(cluster.node(to), "{k}2"));
    until("the source redirects", || refusal(cluster.node(from), &["GET", "{k}1"]).starts_with("MOVED"));

    set(cluster.node(to), "{k}3");
    let back = cluster.migrate(slot, from).unwrap();
    assert!(back.finish().is_err(), "keys are left on the source");
    assert_eq!(cluster.owner(slot).unwrap(), to);
}

#[test]
fn replicas_of_a_cluster_take_over() {
    let mut cluster = RedisCluster::start().unwrap();
    let slot = cluster.slot("k").unwrap();
    let owner = cluster.owner(slot).unwrap();
    let replica = owner + 3;
    cluster.node(replica).stop_replicating().unwrap();
    until("the replica is cut off", || !cluster.node(replica).is_replicating().unwrap());
    set(cluster.node(owner), "k");
    timed("failover on command", || cluster.failover(replica));
    assert_eq!(cluster.owner(slot).unwrap(), replica);
    assert!(!has(cluster.node(replica), "k"), "the write was replicated");

    let other = (owner + 1) % 3;
    cluster.node_mut(other).kill().unwrap();
    timed("failover by itself", || cluster.wait_until_master(other + 3));
    cluster.node_mut(other).restart().unwrap();
    until("the old master is a replica", || !cluster.node(other).is_master().unwrap());
    cluster.wait_until_healthy().unwrap();
}

#[test]
fn independent_masters_share_nothing_and_keep_data_until_wiped() {
    let mut masters = timed("five masters", || RedisMasters::start(5));
    assert_eq!(masters.len(), 5);
    set(masters.node(0), "a");
    assert!((1..5).all(|number| !has(masters.node(number), "a")));
    masters.node_mut(0).restart().unwrap();
    assert!(has(masters.node(0), "a"));
    masters.node_mut(0).wipe().unwrap();
    assert!(!has(masters.node(0), "a"));
    masters.node(1).pause().unwrap();
    set(masters.node(2), "a");
    masters.node(1).resume().unwrap();
    assert!(!has(masters.node(1), "a"));
}

/// Seconds between the server's clock and ours.
fn ahead(node: &Redis) -> i64 {
    let seconds = node.cli(&["TIME"]).unwrap().list()[0].number().unwrap();
    let ours = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    seconds - i64::try_from(ours.as_secs()).unwrap()
}

#[test]
fn clock_of_a_running_server_steps() {
    const HOUR: Duration = Duration::from_secs(3600);
    let clocks = [timed("clock", ServerClock::new), ServerClock::new().unwrap()];
    let masters = RedisMasters::start_on(&clocks).unwrap();
    let near =
        |node: usize, seconds: i64| (ahead(masters.node(node)) - seconds).abs() <= HANG.as_secs() as i64;
    assert!(near(0, 0) && near(1, 0));
    for node in [0, 1] {
        masters.node(node).cli(&["SET", "k", "v", "PX", "1800000"]).unwrap();
    }
    clocks[0].step_forward(HOUR).unwrap();
    assert!(near(0, 3600) && near(1, 0));
    assert!(!has(masters.node(0), "k") && has(masters.node(1), "k"));
    clocks[1].step_back(HOUR + Duration::from_millis(500)).unwrap();
    assert!(near(1, -3600));
    let left = masters.node(1).cli(&["PTTL", "k"]).unwrap().number().unwrap();
    assert!(left > 3_600_000, "{left} ms are left of half an hour");
    let in_script = ["EVAL", "return redis.call('TIME')[1] - ARGV[1]", "0", "0"];
    assert!(
        masters.node(0).cli(&in_script).unwrap().number() > masters.node(1).cli(&in_script).unwrap().number()
    );
}

#[test]
fn operator_commands_work() {
    let redis = Redis::start_with(&["--rename-command", "HELLO", "", "--maxmemory", "3mb"]).unwrap();
    assert!(refusal(&redis, &["HELLO", "3"]).contains("unknown command"));
    assert!(refusal(&redis, &["SET", "k", &"v".repeat(3 << 20)]).starts_with("OOM"));
    redis.cli(&["ACL", "SETUSER", "app", "on", ">secret", "~a*", "&*", "+get"]).unwrap();
    assert!(refusal(&redis, &["AUTH", "app", "wrong"]).starts_with("WRONGPASS"));
    assert_eq!(redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap(), Reply::Number(0));
    for words in
        [&["SCRIPT", "FLUSH"][..], &["FLUSHALL"], &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]]
    {
        assert_eq!(redis.cli(words).unwrap().text(), "OK", "{words:?}");
    }
    let sleep = redis.begin(&["DEBUG", "SLEEP", "0.1"]).unwrap();
    assert_eq!(sleep.reply().unwrap().text(), "OK");

    let script = redis.keep_busy().unwrap();
    assert!(refusal(&redis, &["GET", "k"]).starts_with("BUSY"));
    assert_eq!(redis.cli(&["SCRIPT", "KILL"]).unwrap().text(), "OK");
    assert!(script.reply().is_err());
    assert_eq!(redis.cli(&["GET", "k"]).unwrap(), Reply::Nil);
}

#[test]
fn old_server_reports_its_version_and_knows_no_new_command() {
    let old = OldRedis::start("5.0.14").unwrap();
    let info = old.cli(&["INFO", "server"]).unwrap();
    assert!(info.text().contains("redis_version:5.0.14\r\n"), "{info:?}");
    assert!(old.cli(&["HELLO", "3"]).unwrap_err().to_string().contains("unknown command `HELLO`"));
    let endpoint = old.endpoint();
    drop(old);
    // A process that another test is just starting inherits all sockets of this one until it executes its program.
    until("nothing listens", || std::net::TcpStream::connect(&endpoint).is_err());
}
