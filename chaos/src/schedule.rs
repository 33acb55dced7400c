//! The faults and their times, all determined by the seed before a run starts.

use std::{fmt, time::Duration};

use fastrand::Rng;
use serde::Serialize;

use crate::{
    fault::{Fault, ServerFault, StopLength, Target},
    store::StoreInfo,
};

/// One of this many quiet phases is so long that after the effects of a fault of a server have ended, clients are seen in
/// queues again and granted in their order. Short runs end before the first of them.
const LONG_QUIET_ONE_IN: usize = 6;

/// How long it lasts after these effects have ended, which takes a ttl.
const LONG_QUIET: Duration = Duration::from_secs(3);

/// A quiet phase, then one or two faults at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Step {
    pub(crate) quiet: Duration,
    pub(crate) faults: Vec<Fault>,
    /// How long the faults last, except those that end by themselves.
    pub(crate) lasts: Duration,
}

/// All steps of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Schedule(pub(crate) Vec<Step>);

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) clients: usize,
    pub(crate) locks: usize,
    pub(crate) ttl: Duration,
}

impl Schedule {
    /// Creates steps that last about `length` together.
    ///
    /// The first two always have an effect: a holder is stopped until it is overtaken, and one is killed.
    pub(crate) fn new(seed: u64, scale: Scale, info: &StoreInfo, length: Duration) -> Self {
        let mut random = Rng::with_seed(seed);
        let (mut steps, mut sum) = (Vec::new(), Duration::ZERO);
        while sum < length || steps.len() < 2 {
            let short = Duration::from_millis(random.u64(500..2_500));
            let is_long = (steps.len() + 1).is_multiple_of(LONG_QUIET_ONE_IN);
            let quiet = if is_long { scale.ttl + LONG_QUIET } else { short };
            let lock = random.usize(0..scale.locks);
            let faults = match steps.len() {
                0 => vec![Fault::StopHolder { lock, length: StopLength::Overtaken }],
                1 => vec![Fault::KillHolder { lock }],
                _ => faults(&mut random, scale, info),
            };
            let lasts = duration(&mut random, scale.ttl, &faults, info);
            sum += quiet + lasts;
            steps.push(Step { quiet, faults, lasts });
        }
        Self(steps)
    }

    /// Returns how long all steps take, approximately.
    pub(crate) fn length(&self) -> Duration {
        self.0.iter().map(|step| step.quiet + step.lasts).sum()
    }
}

/// Creates one fault, or two that are possible at the same time.
fn faults(random: &mut Rng, scale: Scale, info: &StoreInfo) -> Vec<Fault> {
    let first = fault(random, scale, info);
    if random.u8(0..3) == 0 {
        return vec![first];
    }
    // After this many tries there is probably no compatible one.
    let second = (0..20).map(|_| fault(random, scale, info)).find(|second| are_compatible(first, *second));
    std::iter::once(first).chain(second).collect()
}

fn fault(random: &mut Rng, scale: Scale, info: &StoreInfo) -> Fault {
    let (lock, slot) = (random.usize(0..scale.locks), random.usize(0..scale.clients));
    let of_server = !info.faults.is_empty() && random.bool();
    if of_server {
        let fault = match info.faults[random.usize(0..info.faults.len())] {
            ServerFault::ClockForward(most) => ServerFault::ClockForward(random.u32(most / 5..most)),
            ServerFault::ClockBack(most) => ServerFault::ClockBack(random.u32(most / 5..most)),
            ServerFault::DelayPeers(most) => ServerFault::DelayPeers(random.u32(most / 5..most)),
            ServerFault::DelayClients(most) => ServerFault::DelayClients(random.u32(most / 5..most)),
            other => other,
        };
        let number = Target::Number(random.usize(0..info.servers));
        let target = if info.has_leader && random.bool() { Target::Leader } else { number };
        return Fault::Server { fault, target };
    }
    match random.u8(0..if info.servers > 0 { 6 } else { 5 }) {
        0 => Fault::StopHolder { lock, length: StopLength::Overtaken },
        1 => Fault::StopHolder { lock, length: StopLength::Thousandths(random.u32(300..1_300)) },
        2 => Fault::KillHolder { lock },
        3 => Fault::StopClient { slot },
        4 => Fault::KillClient { slot },
        _ => Fault::CutClient { slot },
    }
}

fn are_compatible(first: Fault, second: Fault) -> bool {
    let (Fault::Server { fault: one, target: here }, Fault::Server { fault: other, target: there }) =
        (first, second)
    else {
        // Of two client faults one must be a cut: a client that is stopped cannot be killed in its section.
        let is_cut = |fault| matches!(fault, Fault::CutClient { .. });
        return first.is_of_client() != second.is_of_client() || is_cut(first) != is_cut(second);
    };
    let must_be_alone = |fault: ServerFault| matches!(fault, ServerFault::Wipe | ServerFault::MoveLeader);
    // Of two killed servers none recovers without the other.
    let both_killed = one.needs_restart() && other.needs_restart();
    !(here == there || both_killed || must_be_alone(one) || must_be_alone(other))
}

fn duration(random: &mut Rng, ttl: Duration, faults: &[Fault], info: &StoreInfo) -> Duration {
    let at_once = |fault: &Fault| match fault {
        Fault::Server { fault, .. } => fault.is_instant(),
        Fault::KillHolder { .. } => true,
        _ => false,
    };
    let of_server = faults.iter().any(|fault| !fault.is_of_client());
    if faults.iter().all(at_once) {
        ttl.mul_f32(0.5)
    } else if of_server {
        // Often long enough for a failover.
        info.failover.mul_f32(random.f32() * 1.2) + ttl.mul_f32(0.3 + random.f32())
    } else {
        ttl.mul_f32(0.3 + 1.7 * random.f32())
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut at = Duration::ZERO;
        for (number, step) in self.0.iter().enumerate() {
            at += step.quiet;
            let faults: Vec<_> = step.faults.iter().map(ToString::to_string).collect();
            let (at_s, lasts) = (at.as_secs_f64(), step.lasts.as_secs_f64());
            writeln!(f, "{number:4}  {at_s:7.1} s  {lasts:5.1} s  {}", faults.join("; "))?;
            at += step.lasts;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: Scale = Scale { clients: 4, locks: 3, ttl: Duration::from_secs(3) };

    fn info() -> StoreInfo {
        StoreInfo {
            servers: 3,
            has_leader: true,
            has_one_clock: false,
            has_queue: true,
            faults: vec![ServerFault::Kill, ServerFault::Stop, ServerFault::Partition, ServerFault::Wipe],
            failover: Duration::from_secs(1),
        }
    }

    #[test]
    fn schedule_is_determined_by_the_seed() {
        let schedule = |seed| Schedule::new(seed, SCALE, &info(), Duration::from_secs(600));
        assert_eq!(schedule(7), schedule(7));
        assert_ne!(schedule(7), schedule(8));
        assert!(schedule(7).length() >= Duration::from_secs(600));
    }

    #[test]
    fn quiet_phases_outlast_the_effects_of_faults_now_and_then() {
        let Schedule(steps) = Schedule::new(7, SCALE, &info(), Duration::from_secs(600));
        let long: Vec<_> = (0..steps.len()).filter(|&number| steps[number].quiet > SCALE.ttl).collect();
        assert!(long.len() > 10 && long.iter().enumerate().all(|(n, &step)| step == 6 * n + 5), "{long:?}");
    }

    #[test]
    fn concurrent_faults_never_need_each_other_to_heal() {
        let Schedule(steps) = Schedule::new(1, SCALE, &info(), Duration::from_secs(20_000));
        let (mut kinds, mut pairs) = (0, 0);
        for step in &steps {
            let killed =
                |fault: &&Fault| matches!(fault, Fault::Server { fault, .. } if fault.needs_restart());
            assert!(step.faults.iter().filter(killed).count() < 2, "{step:?}");
            let wiped = |fault: &Fault| matches!(fault, Fault::Server { fault: ServerFault::Wipe, .. });
            let of_servers = step.faults.iter().filter(|fault| !fault.is_of_client()).count();
            assert!(of_servers < 2 || !step.faults.iter().any(wiped), "{step:?}");
            kinds += usize::from(step.faults.len() == 1);
            pairs += usize::from(step.faults.len() == 2);
        }
        assert!(kinds > 100 && pairs > 100 && kinds + pairs == steps.len());
    }
}
