//! Which faults come when: all of it decided by the seed, before anything starts.

use std::{fmt, time::Duration};

use fastrand::Rng;
use serde::Serialize;

use crate::{
    fault::{Fault, Member, ServerFault, Until},
    store::Menu,
};

/// A quiet phase, then faults at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Step {
    pub(crate) quiet: Duration,
    pub(crate) faults: Vec<Fault>,
    /// How long the faults last, but for those that end by themselves.
    pub(crate) lasts: Duration,
}

/// All steps of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Schedule(pub(crate) Vec<Step>);

/// Who takes part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cast {
    pub(crate) clients: usize,
    pub(crate) locks: usize,
    pub(crate) ttl: Duration,
}

impl Schedule {
    /// Steps that last for some `length` together.
    ///
    /// The first two bite for certain: a holder is stopped until it is overtaken, and one is killed.
    pub(crate) fn new(seed: u64, cast: Cast, menu: &Menu, length: Duration) -> Self {
        let mut random = Rng::with_seed(seed);
        let (mut steps, mut sum) = (Vec::new(), Duration::ZERO);
        while sum < length || steps.len() < 2 {
            let quiet = Duration::from_millis(random.u64(500..2_500));
            let lock = random.usize(0..cast.locks);
            let faults = match steps.len() {
                0 => vec![Fault::StopHolder { lock, until: Until::Overtaken }],
                1 => vec![Fault::KillHolder { lock }],
                _ => faults(&mut random, cast, menu),
            };
            let lasts = duration(&mut random, cast.ttl, &faults, menu);
            sum += quiet + lasts;
            steps.push(Step { quiet, faults, lasts });
        }
        Self(steps)
    }

    /// About how long all of it takes.
    pub(crate) fn length(&self) -> Duration {
        self.0.iter().map(|step| step.quiet + step.lasts).sum()
    }
}

/// One fault, or two that can be at the same time.
fn faults(random: &mut Rng, cast: Cast, menu: &Menu) -> Vec<Fault> {
    let first = fault(random, cast, menu);
    if random.u8(0..3) == 0 {
        return vec![first];
    }
    // Tried so often, two that go together are found, or there are none.
    let second = (0..20).map(|_| fault(random, cast, menu)).find(|second| go_together(first, *second));
    std::iter::once(first).chain(second).collect()
}

fn fault(random: &mut Rng, cast: Cast, menu: &Menu) -> Fault {
    let (lock, slot) = (random.usize(0..cast.locks), random.usize(0..cast.clients));
    let of_server = !menu.faults.is_empty() && random.bool();
    if of_server {
        let fault = match menu.faults[random.usize(0..menu.faults.len())] {
            ServerFault::ClockForward(most) => ServerFault::ClockForward(random.u32(most / 5..most)),
            ServerFault::ClockBack(most) => ServerFault::ClockBack(random.u32(most / 5..most)),
            ServerFault::Delay(most) => ServerFault::Delay(random.u32(most / 5..most)),
            ServerFault::Slow(most) => ServerFault::Slow(random.u32(most / 5..most)),
            other => other,
        };
        let number = Member::Number(random.usize(0..menu.members));
        let member = if menu.has_leader && random.bool() { Member::Leader } else { number };
        return Fault::Server { fault, member };
    }
    match random.u8(0..if menu.members > 0 { 6 } else { 5 }) {
        0 => Fault::StopHolder { lock, until: Until::Overtaken },
        1 => Fault::StopHolder { lock, until: Until::Thousandths(random.u32(300..1_300)) },
        2 => Fault::KillHolder { lock },
        3 => Fault::StopClient { slot },
        4 => Fault::KillClient { slot },
        _ => Fault::CutClient { slot },
    }
}

fn go_together(first: Fault, second: Fault) -> bool {
    let (Fault::Server { fault: one, member: here }, Fault::Server { fault: other, member: there }) =
        (first, second)
    else {
        // Of two faults of clients one is a cut: a client that is stopped cannot be killed in its section.
        let is_cut = |fault| matches!(fault, Fault::CutClient { .. });
        return first.is_of_client() != second.is_of_client() || is_cut(first) != is_cut(second);
    };
    let is_alone = |fault: ServerFault| matches!(fault, ServerFault::Wipe | ServerFault::MoveLeader);
    // Of two servers that were killed none gets well without the other.
    let both_killed = one.needs_restart() && other.needs_restart();
    !(here == there || both_killed || is_alone(one) || is_alone(other))
}

fn duration(random: &mut Rng, ttl: Duration, faults: &[Fault], menu: &Menu) -> Duration {
    let at_once = |fault: &Fault| match fault {
        Fault::Server { fault, .. } => fault.is_over_at_once(),
        Fault::KillHolder { .. } => true,
        _ => false,
    };
    let of_server = faults.iter().any(|fault| !fault.is_of_client());
    if faults.iter().all(at_once) {
        ttl.mul_f32(0.5)
    } else if of_server {
        // Often long enough for others to take over.
        menu.failover.mul_f32(random.f32() * 1.2) + ttl.mul_f32(0.3 + random.f32())
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

    const CAST: Cast = Cast { clients: 4, locks: 3, ttl: Duration::from_secs(3) };

    fn menu() -> Menu {
        Menu {
            members: 3,
            has_leader: true,
            has_queue: true,
            faults: vec![ServerFault::Kill, ServerFault::Stop, ServerFault::Cut, ServerFault::Wipe],
            failover: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_seed_decides_everything() {
        let schedule = |seed| Schedule::new(seed, CAST, &menu(), Duration::from_secs(600));
        assert_eq!(schedule(7), schedule(7));
        assert_ne!(schedule(7), schedule(8));
        assert!(schedule(7).length() >= Duration::from_secs(600));
    }

    #[test]
    fn two_faults_at_a_time_never_need_each_other_to_heal() {
        let Schedule(steps) = Schedule::new(1, CAST, &menu(), Duration::from_secs(20_000));
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
