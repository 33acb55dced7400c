//! Figures of a few seconds: how fast locks are acquired and released, how much of a lease is left at its renewals, and
//! whether the clocks of this host can be trusted.

use std::time::{Duration, Instant, SystemTime};

use lockkit::{LockClient, LockGuard, Result, backend::HeartbeatInterval};
use lockkit_core::lease::validity;
use serde::{Serialize, Serializer};
use tokio::time::{Instant as TimerInstant, sleep};

use super::{
    report::{Level, Report},
    rights::{STEP_MAX, add_error},
};
use crate::clock;

/// How long is measured at least.
const DURATION_MIN: Duration = Duration::from_secs(5);

/// How long is measured at most, also where renewals are rarer.
const DURATION_MAX: Duration = Duration::from_secs(30);

/// Pause between two acquisitions: an examination is no load.
const PAIR_PAUSE: Duration = Duration::from_millis(1);

/// Most acquisitions that are measured.
const PAIRS_MAX: usize = 100_000;

/// Time between two samples of the lease and of the clocks.
const SAMPLE_PAUSE: Duration = Duration::from_millis(50);

/// A process that runs this late is not served well by its host.
const LATE: Duration = Duration::from_millis(250);

/// A wall clock that moves this much against the other clock is being set.
const STEP: Duration = Duration::from_millis(250);

/// The figures.
#[derive(Debug, Default, Serialize)]
pub(super) struct Health {
    pairs: usize,
    #[serde(rename = "pair_p50_ms", serialize_with = "as_millis")]
    p50: Duration,
    #[serde(rename = "pair_p99_ms", serialize_with = "as_millis")]
    p99: Duration,
    renewals: u32,
    /// The ttl of the examination.
    #[serde(rename = "ttl_ms", serialize_with = "as_millis")]
    ttl: Duration,
    /// The shortest time that was left of a lease of this ttl.
    #[serde(rename = "least_left_ms", serialize_with = "as_millis")]
    least_left: Duration,
    /// The longest time that was left right after a renewal.
    #[serde(skip)]
    most_left: Duration,
    /// The ttl of other commands.
    #[serde(rename = "asked_ttl_ms", serialize_with = "as_millis")]
    asked_ttl: Duration,
    /// What would have been left of a lease of that ttl.
    #[serde(rename = "asked_least_left_ms", serialize_with = "as_millis")]
    asked_least_left: Duration,
    #[serde(rename = "timer_late_ms", serialize_with = "as_millis")]
    late: Duration,
    #[serde(rename = "wall_clock_step_ms", serialize_with = "as_millis")]
    wall_clock_step: Duration,
}

fn as_millis<S: Serializer>(time: &Duration, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_f64((time.as_secs_f64() * 1e6).round() / 1e3)
}

/// Measures while `held` is held; `asked` is the ttl that other commands ask for.
pub(super) async fn measure(
    client: &LockClient,
    name: &str,
    asked: Duration,
    held: Option<&LockGuard>,
    report: &mut Report,
) {
    let ttl = client.ttl();
    let renewal = client.info().heartbeat.interval(ttl.min(DURATION_MAX));
    let duration = (renewal * 5 / 2).clamp(DURATION_MIN, DURATION_MAX);
    let until = TimerInstant::now() + duration;
    let (pairs, mut health) = tokio::join!(acquire_and_release(client, name, until), sample(held, until));
    match pairs {
        Ok(pairs) => {
            health.pairs = pairs.len();
            (health.p50, health.p99) = p50_and_p99(pairs);
            add_speed(&health, asked, report);
        }
        Err(error) => add_error(report, "speed", &error),
    }
    health.set_ttls(ttl, asked, client.info().heartbeat);
    if let Some(guard) = held {
        add_renewals(&health, guard, duration, report);
    }
    add_clock(&health, report);
    report.set_health(health);
}

/// Acquires and releases a lock again and again; returns how long each pair took.
async fn acquire_and_release(client: &LockClient, name: &str, until: TimerInstant) -> Result<Vec<Duration>> {
    let mut pairs = Vec::new();
    let lock = client.lock(name)?;
    while TimerInstant::now() < until && pairs.len() < PAIRS_MAX {
        let begin = Instant::now();
        if let Some(guard) = lock.acquire_timeout(STEP_MAX).await? {
            guard.release().await?;
            pairs.push(begin.elapsed());
        }
        sleep(PAIR_PAUSE).await;
    }
    Ok(pairs)
}

/// Returns what half of the times, and 99 of 100, do not exceed; zero if there are none.
fn p50_and_p99(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)));
    (at(50).copied().unwrap_or_default(), at(99).copied().unwrap_or_default())
}

/// Watches the lease and the clocks.
async fn sample(held: Option<&LockGuard>, until: TimerInstant) -> Health {
    let left = || held.map(LockGuard::remaining).filter(|left| *left != Duration::MAX);
    let mut health = Health { least_left: left().unwrap_or_default(), ..Health::default() };
    let mut before = left().unwrap_or_default();
    let begin = (SystemTime::now(), clock::now());
    while TimerInstant::now() < until {
        let asleep = TimerInstant::now();
        sleep(SAMPLE_PAUSE).await;
        health.late = health.late.max(asleep.elapsed().saturating_sub(SAMPLE_PAUSE));
        if let Some(left) = left() {
            // It falls with time, and only a renewal raises it.
            if left > before {
                health.renewals += 1;
                health.most_left = health.most_left.max(left);
            }
            (before, health.least_left) = (left, health.least_left.min(left));
        }
    }
    let wall = begin.0.elapsed().unwrap_or_default();
    health.wall_clock_step = wall.abs_diff(clock::now().saturating_sub(begin.1));
    health
}

impl Health {
    /// Sets the ttl of the examination and the ttl that other commands ask for.
    ///
    /// The examination may have a shorter ttl. How late a renewal is does not depend on the ttl: what it costs the lease
    /// of the examination, it would cost a longer one. But a part of the ttl may be missing after every renewal, however
    /// fast the answers are: ZooKeeper's leases count from a quarter of the ttl earlier, unless its tick is configured.
    fn set_ttls(&mut self, ttl: Duration, asked: Duration, heartbeat: HeartbeatInterval) {
        self.ttl = ttl;
        // Where the store grants more than is asked for, other commands get that, too.
        self.asked_ttl = asked.max(ttl);
        let left_in_time = |ttl| validity(ttl).saturating_sub(heartbeat.interval(ttl));
        let best = if self.renewals == 0 { validity(ttl) } else { self.most_left };
        let behind = validity(ttl).saturating_sub(best).saturating_sub(self.p50);
        let late = left_in_time(ttl).saturating_sub(behind + self.least_left);
        let asked_behind = behind.mul_f64(self.asked_ttl.div_duration_f64(ttl));
        self.asked_least_left = left_in_time(self.asked_ttl).saturating_sub(asked_behind + late);
    }
}

fn add_speed(health: &Health, asked: Duration, report: &mut Report) {
    let Health { pairs, p50, p99, .. } = health;
    let what =
        format!("{pairs} acquisitions with their release, one after the other: p50 {p50:.1?}, p99 {p99:.1?}");
    if *p99 > asked / 10 {
        let remedy =
            "a renewal has a third of the ttl for its retries: find what is slow, or lengthen the ttl";
        report.add("speed", Level::Warning, what, remedy);
    } else {
        report.fine("speed", what);
    }
}

fn add_renewals(health: &Health, guard: &LockGuard, duration: Duration, report: &mut Report) {
    let Health { renewals, ttl, least_left, asked_ttl, asked_least_left, .. } = health;
    if let Err(error) = guard.check() {
        let remedy = "a lock must not be lost while its holder is well: check the store's log and its load";
        return report.add("renew", Level::Fault, format!("{error:#}"), remedy);
    }
    if *ttl == Duration::MAX {
        return report.fine("renew", "not needed: locks end with their process");
    }
    let mut what = format!("{renewals} renewals; at least {least_left:.1?} of {ttl:?} were left");
    if asked_ttl != ttl {
        what += &format!(", with the ttl of other commands {asked_least_left:.1?} of {asked_ttl:?}");
    }
    match renewals {
        0 if duration < DURATION_MAX => {
            let what = format!("no renewal was acknowledged within {duration:?}");
            report.add("renew", Level::Fault, what, "check the store's load, and the user's right to renew");
        }
        0 => report.add("renew", Level::Note, "the ttl is too long to see a renewal", ""),
        // A job ends when a quarter is left.
        _ if *asked_least_left < *asked_ttl / 2 => {
            let remedy = "renewals are late: check the network, and the load of this host and of the store";
            report.add("renew", Level::Warning, what, remedy);
        }
        _ => report.fine("renew", what),
    }
}

fn add_clock(health: &Health, report: &mut Report) {
    let Health { late, wall_clock_step, .. } = health;
    if *wall_clock_step > STEP {
        let what = format!(
            "the wall clock moved by {wall_clock_step:.1?} against the time since the start of the host"
        );
        let remedy = "let NTP slew the clock instead of stepping it: --once-per and some tokens use it";
        report.add("clock", Level::Warning, what, remedy);
    }
    if *late > LATE {
        let what = format!("this process ran up to {late:.1?} late");
        report.add(
            "clock",
            Level::Warning,
            what,
            "the host is overloaded, or is paused at times: lengthen the ttl",
        );
    }
    if *wall_clock_step <= STEP && *late <= LATE {
        report.fine("clock", format!("the clocks of this host agree; timers were at most {late:.1?} late"));
    }
}

#[cfg(test)]
mod tests {
    use lockkit::{backend::BackendUrl, memory::MemoryServer};

    use super::*;

    fn text_of(add: impl FnOnce(&mut Report)) -> String {
        let mut report = Report::new(&BackendUrl::parse("memory:").unwrap());
        add(&mut report);
        report.as_text()
    }

    #[tokio::test]
    async fn late_and_missing_renewals_are_found() {
        let client = LockClient::builder(MemoryServer::new().backend()).build().await.unwrap();
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let ttl = Duration::from_secs(6);
        for (renewals, least_left, asked, expected) in [
            (3, 3.9, 6, "fine     renew: 3 renewals; at least 3.9s of 6s were left\n"),
            (3, 3.0, 6, "fine     renew"),
            (3, 2.0, 6, "warning  renew: 3 renewals; at least 2.0s of 6s were left\n"),
            (0, 3.9, 6, "fault    renew: no renewal"),
            // Renewals that are almost two seconds late: too late for a short ttl only.
            (3, 2.0, 2, "warning  renew: 3 renewals; at least 2.0s of 6s were left\n"),
            (3, 2.0, 15, "fine     renew: 3 renewals; at least 2.0s of 6s were left, with"),
            (3, 1.0, 15, "warning  renew"),
            (3, 1.0, 60, "fine     renew"),
        ] {
            let mut health = Health { renewals, most_left: validity(ttl), ..Health::default() };
            health.least_left = Duration::from_secs_f64(least_left);
            health.set_ttls(ttl, Duration::from_secs(asked), client.info().heartbeat);
            let text = text_of(|report| add_renewals(&health, &guard, DURATION_MIN, report));
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn renewals_are_as_late_with_every_ttl() {
        let left = |least_left: u64, ttl: u64, asked: u64, heartbeats| {
            let mut health = Health { least_left: Duration::from_millis(least_left), ..Health::default() };
            let heartbeat = HeartbeatInterval::PerTtl(heartbeats);
            health.set_ttls(Duration::from_secs(ttl), Duration::from_secs(asked), heartbeat);
            (health.asked_ttl.as_secs(), health.asked_least_left.as_millis())
        };
        // In time, 3,938 ms are left of 6 s with three heartbeats, and 9,848 ms of 15 s.
        assert_eq!(left(3_938, 6, 15, 3), (15, 9_848));
        assert_eq!(left(2_938, 6, 15, 3), (15, 8_848), "a second late");
        assert_eq!(left(2_938, 6, 6, 3), (6, 2_938), "the examined ttl");
        assert_eq!(left(3_960, 6, 15, 3), (15, 9_848), "a sample may miss the end of a lease");
        assert_eq!(left(2_938, 6, 2, 3), (6, 2_938), "the store grants no less");
        assert_eq!(left(4_338, 6, 15, 10), (15, 12_348), "a second late, with ten heartbeats");
    }

    /// As on ZooKeeper.
    #[test]
    fn part_of_the_ttl_that_every_renewal_misses_grows_with_it() {
        let left = |least_left: u64, most_left, asked: u64, p50, heartbeats| {
            let [least_left, most_left, p50] = [least_left, most_left, p50].map(Duration::from_millis);
            let mut health = Health { renewals: 5, least_left, most_left, p50, ..Health::default() };
            let heartbeat = HeartbeatInterval::PerTtl(heartbeats);
            health.set_ttls(Duration::from_secs(6), Duration::from_secs(asked), heartbeat);
            health.asked_least_left.as_millis()
        };
        // In time, 4,438 ms are left of 6 s after a renewal, and 11,098 ms of 15 s.
        assert_eq!(left(3_838, 4_438, 15, 0, 10), 9_598);
        assert_eq!(left(2_838, 4_438, 15, 0, 10), 8_598, "a second late");
        assert_eq!(left(2_838, 4_438, 6, 0, 10), 2_838, "the examined ttl");
        assert_eq!(left(2_938, 4_938, 15, 2_000, 3), 8_848, "each answer takes a second");
    }

    #[test]
    fn slow_pairs_count_whenever_they_were() {
        let ms = Duration::from_millis;
        let falling: Vec<Duration> = (1..=200).rev().map(ms).collect();
        assert_eq!(p50_and_p99(falling), (ms(101), ms(199)));
        assert_eq!(p50_and_p99(vec![ms(7)]), (ms(7), ms(7)));
        assert_eq!(p50_and_p99(Vec::new()), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn slow_stores_and_bad_clocks_are_warned_of() {
        let (fast, slow) = (Duration::from_millis(2), Duration::from_secs(2));
        for (p99, late, step, expected) in [
            (fast, fast, fast, ["fine     speed", "fine     clock"]),
            (slow, fast, fast, ["warning  speed", "fine     clock"]),
            (fast, slow, fast, ["fine     speed", "warning  clock: this process ran"]),
            (fast, fast, slow, ["fine     speed", "warning  clock: the wall clock"]),
        ] {
            let health = Health { pairs: 1, p99, late, wall_clock_step: step, ..Health::default() };
            let text = text_of(|report| {
                add_speed(&health, Duration::from_secs(15), report);
                add_clock(&health, report);
            });
            assert!(expected.iter().all(|part| text.contains(part)), "{expected:?}: {text}");
        }
    }

    #[tokio::test]
    async fn lost_lock_is_a_fault_although_it_needs_no_renewals() {
        let server = MemoryServer::new();
        let client = LockClient::builder(server.backend()).build().await.unwrap();
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let health = Health { ttl: Duration::MAX, ..Health::default() };
        let found = || text_of(|report| add_renewals(&health, &guard, DURATION_MIN, report));
        assert!(found().contains("fine     renew: not needed"), "{}", found());
        server.expire_all();
        assert!(guard.lost().await.is_lost());
        assert!(found().contains("fault    renew"), "{}", found());
    }

    #[tokio::test(start_paused = true)]
    async fn process_that_was_late_once_is_late() {
        let until = TimerInstant::now() + DURATION_MIN;
        let pause_of_the_host = async {
            sleep(Duration::from_secs(1)).await;
            tokio::time::advance(LATE * 4).await;
        };
        let (health, ()) = tokio::join!(sample(None, until), pause_of_the_host);
        assert!(health.late > LATE, "{health:?}");
    }

    #[tokio::test]
    async fn renewal_that_is_not_due_is_not_missed() {
        let client = LockClient::builder(MemoryServer::new().backend()).build().await.unwrap();
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let health = Health { ttl: DURATION_MAX * 9, ..Health::default() };
        for (duration, expected) in [(DURATION_MIN, "fault    renew"), (DURATION_MAX, "note     renew")] {
            let text = text_of(|report| add_renewals(&health, &guard, duration, report));
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
