//! `lockkit doctor` with sound stores and with bad ones.

use std::process::Command;

use serde_json::Value;

use crate::{
    harness::{Home, done},
    operate::stores,
};

/// How often a store is examined where a busy machine may be the reason for a warning.
const TRIES: usize = 3;

/// What was found, and the exit status.
struct Examined {
    findings: Vec<Value>,
    health: Value,
    status: i32,
}

impl Examined {
    /// Examines the store of a URL, with a password.
    fn store(url: &str, password: &str) -> Self {
        let home = Home::new();
        let mut command = home.lockkit(["doctor", "--json", url]);
        command.env("LOCKKIT_PASSWORD", password);
        Self::by(command)
    }

    fn by(command: Command) -> Self {
        let done = done(command);
        let mut report: Value =
            serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{}", done.stderr));
        assert_eq!(done.stderr, "", "the findings are on stdout");
        let verdict = ["fine", "warning", "fault"][done.status as usize];
        assert_eq!(report["verdict"], verdict, "{report}");
        let Value::Array(findings) = report["findings"].take() else { panic!("{report}") };
        Self { findings, health: report["health"].take(), status: done.status }
    }

    /// Examines a store that hands locks over quickly. Where a waiter got the lock late, a busy machine may be the reason,
    /// but not each time.
    fn quick_store(url: &str) -> Self {
        let mut tries = (0..TRIES).map(|_| Self::store(url, ""));
        let found = tries.find(|found| found.levels("hand over") != ["warning"]);
        found.unwrap_or_else(|| panic!("{url}: each of {TRIES} waiters got the lock late"))
    }

    /// Returns the levels of the findings of a check.
    fn levels(&self, check: &str) -> Vec<&str> {
        self.of(check).map(|finding| finding["level"].as_str().unwrap()).collect()
    }

    /// Asserts that a check has found this, with something to do.
    fn assert_found(&self, check: &str, level: &str, what: &str) {
        let mut found = self.of(check);
        assert!(
            found
                .any(|finding| finding["level"] == level && finding["what"].as_str().unwrap().contains(what)),
            "{check} {level} {what}: {:#?}",
            self.findings
        );
    }

    fn of(&self, check: &str) -> impl Iterator<Item = &Value> {
        self.findings.iter().filter(move |finding| finding["check"] == check)
    }

    /// Whether the report says that each renewal left half of a lease of other commands. A lock file has no lease.
    fn is_renewed_early(&self) -> bool {
        let figure = |name: &str| self.health[name].as_f64().unwrap();
        self.health["renewals"] == 0 || figure("asked_least_left_ms") >= figure("asked_ttl_ms") / 2.0
    }
}

#[test]
fn sound_stores_have_no_faults() {
    for store in stores() {
        let found = Examined::quick_store(&store.url);
        for check in ["reach", "ttl", "acquire", "inspect", "list", "release", "hand over", "renew", "break"]
        {
            let level = match check {
                // Nobody can take a lock file from a live process.
                "break" if store.is_files() => "note",
                // On a busy machine, a warning is the right answer.
                "renew" if !found.is_renewed_early() => "warning",
                _ => "fine",
            };
            assert_eq!(found.levels(check), [level], "{check} {}: {:#?}", store.url, found.findings);
        }
        assert!(
            found.status < 2 && found.health["pairs"].as_u64() > Some(0),
            "{}: {}",
            store.url,
            found.health
        );
        assert!(
            found.health["pair_p99_ms"].as_f64() >= found.health["pair_p50_ms"].as_f64(),
            "{}",
            found.health
        );
        assert_eq!(store.who("a")["holder"], Value::Null);
    }
}

#[test]
fn unreachable_or_wrong_stores_are_faults_and_wrong_urls_are_no_examination() {
    let home = Home::new();
    std::fs::write(home.path("plain"), "").unwrap();
    let found = Examined::store(&home.url("plain"), "");
    assert_eq!((found.status, found.levels("reach")), (2, vec!["fault"]), "{:?}", found.findings);
    found.assert_found("reach", "fault", "plain");
    for (url, status) in [("memory:", 64), ("tape://h", 78), ("/locks", 78)] {
        assert_eq!(done(home.lockkit(["doctor", url])).status, status, "{url}");
    }
}

#[test]
fn text_says_what_to_do() {
    let home = Home::new();
    std::fs::write(home.path("plain"), "").unwrap();
    let text = done(home.lockkit(["doctor", &home.url("plain")])).stdout;
    assert!(text.contains("\nfault    reach: ") && text.contains("\n         -> "), "{text}");
    assert!(text.ends_with("\nfaults: 1, warnings: 0\n"), "{text}");
}

#[cfg(feature = "redis")]
mod redis {
    use lockkit_testbed::{OldRedis, Redis, RedisReplicas};

    use super::*;
    use crate::harness::redis_with_password;

    #[test]
    fn careless_server_is_warned_of() {
        let redis = Redis::start_with(&["--maxmemory-policy", "allkeys-lru", "--appendonly", "no"]).unwrap();
        let found = Examined::store(&redis.url(), "");
        assert!(found.status == 1, "{:#?}", found.findings);
        found.assert_found("set-up", "warning", "set maxmemory-policy to noeviction");
        found.assert_found("set-up", "warning", "set appendonly yes");
        assert_eq!(found.levels("set-up").len(), 2, "once for both sessions: {:#?}", found.findings);
        // Advice is for those who ask.
        let home = Home::new();
        let ran = done(home.run(&["--backend", &redis.url(), "a"], "true"));
        assert!(ran.status == 0 && !ran.stderr.contains("appendonly"), "{}", ran.stderr);
    }

    #[test]
    fn missing_rights_are_named() {
        let redis = Redis::start().unwrap();
        let rights = ["ACL", "SETUSER", "me", "on", ">hunter2", "~*", "&*", "+@all"];
        let url = redis.url().replace("redis://", "redis://me@");
        redis.cli(&[&rights[..], &["-evalsha", "-eval"]].concat()).unwrap();
        let found = Examined::store(&url, "hunter2");
        assert_eq!((found.status, found.levels("acquire")), (2, vec!["fault"]), "{:#?}", found.findings);
        found.assert_found("acquire", "fault", "denied");
        redis.cli(&[&rights[..], &["-publish"]].concat()).unwrap();
        let found = Examined::store(&url, "hunter2");
        assert_eq!(found.status, 2);
        found.assert_found("reach", "fault", "denied");
        let found = Examined::store(&redis.url().replace("redis://", "redis://me@"), "hunter3");
        found.assert_found("reach", "fault", "denied");
    }

    #[test]
    fn missing_login_is_explained() {
        let redis = redis_with_password("hunter2");
        Examined::store(&redis.url(), "hunter2").assert_found("reach", "fault", "redis://default@HOST");
    }

    #[test]
    fn password_file_and_the_ttl_of_the_url_are_used() {
        let (home, redis) = (Home::new(), redis_with_password("hunter2"));
        std::fs::write(home.path("password"), "hunter2\n").unwrap();
        std::fs::create_dir_all(home.path("config/lockkit")).unwrap();
        std::fs::write(home.path("config/lockkit/config.toml"), "ttl = 47\n").unwrap();
        let url = redis.url().replace("redis://", "redis://default@") + "?ttl=20s";
        let found = Examined::by(home.lockkit(["doctor", "--json", "--password-file", "password", &url]));
        assert_eq!(found.levels("reach"), ["fine"], "{:#?}", found.findings);
        found.assert_found("ttl", "fine", "20s; the store allows");
    }

    #[test]
    fn warnings_about_a_store_that_is_not_reached_are_findings() {
        let found = Examined::store("redis://127.0.0.1:1?connect_timeout=3s", "");
        assert_eq!((found.status, found.levels("reach")), (2, vec!["fault"]), "{:#?}", found.findings);
        found.assert_found("set-up", "warning", "no new session yet");
    }

    #[test]
    fn old_servers_and_replicas_are_faults() {
        let old = OldRedis::start("5.0.14").unwrap();
        Examined::store(&old.url(), "").assert_found("reach", "fault", "5.0.14");
        let replicas = RedisReplicas::start().unwrap();
        let found = Examined::store(&replicas.node(1).url(), "");
        assert_eq!(found.status, 2, "{:#?}", found.findings);
        let found = Examined::store(&replicas.node(0).url(), "");
        found.assert_found("set-up", "warning", "set min_replicas");
    }
}

#[cfg(feature = "etcd")]
mod etcd {
    use lockkit_testbed::Etcd;

    use super::*;

    #[test]
    fn user_without_rights_for_the_locks_is_a_fault() {
        let mut etcd = Etcd::start().unwrap();
        etcd.enable_auth_within("me", "hunter2", "other/").unwrap();
        let url = etcd.url().replace("etcd://", "etcd://me@");
        let found = Examined::store(&url, "hunter2");
        assert_eq!(found.status, 2);
        let denied =
            found.findings.iter().filter(|finding| finding["what"].as_str().unwrap().contains("denied"));
        assert!(denied.count() > 0, "{:#?}", found.findings);
    }

    #[test]
    fn known_faults_of_the_version_are_a_warning() {
        let etcd = Etcd::start().unwrap();
        let found = Examined::store(&etcd.url(), "");
        // Debian's version has them.
        found.assert_found("set-up", "warning", "this etcd has known faults");
        assert_eq!(found.status, 1, "{:#?}", found.findings);
    }
}
