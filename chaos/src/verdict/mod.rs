//! Judges a run: finds violations, and checks whether enough happened to find any.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use lockkit_conformance::history::{HoldRecord, Write, fenced_writes, overlaps, queue_order, token_order};
use serde::Serialize;

use crate::{
    coordinator::Report,
    fault::{Fault, StopLength},
    nemesis::{AppliedFault, EndedHolds},
    register::{Access, Registers},
    wire::{ClientId, ClientMessage},
};

/// Minimum number of grants, and of grants that a client had to wait for, in the shortest run.
const GRANTS_MIN: usize = 20;
const CONTENDED_MIN: usize = 10;

/// The same for each step of the schedule of a longer run.
const GRANTS_PER_STEP: usize = 3;
const CONTENDED_PER_STEP: usize = 2;

/// For each of this many steps there must be one more of the rarer events.
const STEPS_PER_RARITY: usize = 15;

/// Of this many grants that were waited for, one must show its place in the queue. (Most runs have more than twice that.)
const CONTENDED_PER_PLACE: usize = 20;

/// A time without any grant that counts as the effect of a fault.
const NO_GRANT_MIN: Duration = Duration::from_secs(1);

/// Minimum number of grants after a release for a judgement of their delays.
const HANDOFFS_MIN: usize = 10;

/// One hold of a client.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Hold {
    pub(crate) client: ClientId,
    pub(crate) lock: String,
    pub(crate) token: u64,
    pub(crate) asked: Duration,
    pub(crate) queued: Option<Duration>,
    pub(crate) granted: Duration,
    /// When the guard last reported that it is held; `None` if it never did.
    pub(crate) believed: Option<Duration>,
    /// Whether the guard reported its loss at the end.
    pub(crate) is_lost: bool,
    /// Whether its end was reported. It was not if the client was killed.
    pub(crate) is_ended: bool,
    /// Whether its release was confirmed.
    pub(crate) is_released: bool,
}

/// The judgement of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) figures: Figures,
    pub(crate) violations: Vec<String>,
    /// Unmet requirements: what happened too rarely.
    pub(crate) missing: Vec<String>,
}

/// Counts of what happened in a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) grants: usize,
    pub(crate) contended: usize,
    /// Waits that ended without a grant: busy, or with an error.
    pub(crate) busy: usize,
    pub(crate) errors: usize,
    /// Guards that were lost before their release.
    pub(crate) losses: usize,
    /// Holders that were stopped or killed in their section, and overtaken.
    pub(crate) overtaken: usize,
    pub(crate) faults: usize,
    /// Faults that clients have noticed.
    pub(crate) noticed: usize,
    pub(crate) writes: usize,
    /// Reads and writes that the fenced register refused.
    pub(crate) refused: usize,
    /// Updates that the registers lost.
    pub(crate) lost_unfenced: usize,
    pub(crate) lost_fenced: usize,
    /// Grants whose queue entry was seen, and which no fault can have removed since.
    pub(crate) in_order: usize,
}

/// What decides how much must happen in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requirements {
    /// The number of steps of its schedule.
    pub(crate) steps: usize,
    /// Whether the store grants in the order of a queue.
    pub(crate) has_queue: bool,
}

/// Everything that was recorded in a run.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) holds: Vec<Hold>,
    pub(crate) accesses: Vec<Access>,
    pub(crate) reports: Vec<Report>,
    pub(crate) faults: Vec<AppliedFault>,
    pub(crate) fenced: BTreeMap<String, u64>,
    pub(crate) ttl: Duration,
}

impl History {
    pub(crate) fn new(
        registers: &Registers,
        reports: &[Report],
        faults: Vec<AppliedFault>,
        ttl: Duration,
    ) -> Self {
        Self {
            holds: holds(reports),
            accesses: registers.log().to_vec(),
            reports: reports.to_vec(),
            faults,
            fenced: registers.fenced().map(|(lock, value)| (lock.to_owned(), value)).collect(),
            ttl,
        }
    }

    /// Judges the run. `others` are violations that were found elsewhere.
    pub(crate) fn judge(&self, required: Requirements, others: Vec<String>) -> Verdict {
        let figures = self.figures();
        let mut violations = others;
        violations.extend(named("exclusion", overlaps(&self.beliefs())));
        violations
            .extend(named("token order", token_order(&self.holds.iter().map(held).collect::<Vec<_>>())));
        violations.extend(named("queue order", queue_order(&self.undisturbed())));
        violations.extend(named("fencing", self.fencing()));
        violations.extend(named("handoff", self.late_handoffs().into_iter().collect()));
        let missing = figures.missing(required);
        Verdict { figures, violations, missing }
    }

    /// Returns the holds as their clients believed in them, cut where the store may have ended them early.
    fn beliefs(&self) -> Vec<HoldRecord> {
        let believed = self.holds.iter().filter_map(|hold| {
            let ended = self.faults.iter().filter_map(|fault| fault.ended_holds.as_ref());
            let ended = ended.filter(|ended| self.may_end(ended, hold)).map(|ended| ended.at).min();
            let end = ended.into_iter().chain([hold.believed?]).min()?;
            // A hold that had ended before its client got the answer is no evidence.
            let mut record = held(hold);
            record.ended = end;
            (end >= hold.granted).then_some(record)
        });
        believed.collect()
    }

    /// Whether this hold may have existed when the store ended all holds, or those of one lock.
    fn may_end(&self, ended: &EndedHolds, hold: &Hold) -> bool {
        match &ended.lock {
            Some(lock) => *lock == hold.lock && hold.granted < ended.at,
            // The answer of a server arrives at most one ttl later.
            None => hold.asked < ended.at && hold.granted < ended.at + self.ttl,
        }
    }

    /// Returns the holds, with a time in the queue only where the claim cannot have lost its place between that time and
    /// its grant.
    fn undisturbed(&self) -> Vec<HoldRecord> {
        let undisturbed = self.holds.iter().map(|hold| {
            let mut record = held(hold);
            record.queued = hold.queued.filter(|&queued| {
                // A guard that is lost from the start was returned late: others may have been granted the lock since.
                hold.believed.is_some()
                    && !self.faults.iter().any(|fault| self.may_unqueue(fault, hold, queued))
            });
            record
        });
        undisturbed.collect()
    }

    /// Whether this fault may have removed the claim's entry, which was in the queue at this time.
    ///
    /// An entry ends with its session (etcd, ZooKeeper) or lapses a ttl after its client's last heartbeat (Redis), and its
    /// client claims again at the end of the queue. A fault of another client does neither. Once the servers are
    /// healthy, what a fault has left of sessions and entries ends within a ttl.
    fn may_unqueue(&self, fault: &AppliedFault, hold: &Hold, queued: Duration) -> bool {
        let hits = fault.client.is_none_or(|client| client == hold.client);
        hits && fault.from <= hold.granted && queued <= fault.settled + self.ttl
    }

    fn fencing(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (lock, value) in &self.fenced {
            let accesses: Vec<&Access> = self.accesses.iter().filter(|one| one.lock == *lock).collect();
            // Reads count too: they raise the highest token that the register has seen.
            let writes = accesses.iter().map(|one| Write::new(one.token, one.is_admitted));
            faults.extend(fenced_writes(&writes.collect::<Vec<_>>()));
            let applied = accesses.iter().filter(|one| one.is_write && one.is_admitted).count() as u64;
            if *value != applied {
                faults.push(format!("the fenced register of {lock} has {value} of {applied} updates"));
            }
        }
        let lost = self.accesses.iter().filter(|one| one.lost_fenced);
        faults.extend(lost.map(|one| format!("the fenced register lost an update: {one:?}")));
        faults
    }

    fn figures(&self) -> Figures {
        let count = |is_so: &dyn Fn(&ClientMessage) -> bool| {
            self.reports.iter().filter(|report| is_so(&report.message)).count()
        };
        let accesses =
            |is_so: &dyn Fn(&Access) -> bool| self.accesses.iter().filter(|one| is_so(one)).count();
        Figures {
            grants: self.holds.len(),
            contended: self.contended(),
            busy: count(&|message| matches!(message, ClientMessage::Missed { error: None, .. })),
            errors: count(&|message| matches!(message, ClientMessage::Missed { error: Some(_), .. })),
            losses: self.holds.iter().filter(|hold| hold.is_lost).count(),
            overtaken: self.faults.iter().filter(|fault| fault.is_overtaken).count(),
            faults: self.faults.iter().filter(|fault| fault.failed.is_none()).count(),
            noticed: self.faults.iter().filter(|fault| self.was_noticed(fault)).count(),
            writes: accesses(&|one| one.is_write),
            refused: accesses(&|one| !one.is_admitted),
            lost_unfenced: accesses(&|one| one.lost_unfenced),
            lost_fenced: accesses(&|one| one.lost_fenced),
            in_order: self.undisturbed().iter().filter(|held| held.queued.is_some()).count(),
        }
    }

    /// Counts the grants that were requested while another client held the lock.
    fn contended(&self) -> usize {
        self.waited_for().count()
    }

    /// Returns pairs of holds of which the second was requested while another client had the first.
    fn waited_for(&self) -> impl Iterator<Item = (&Hold, &Hold)> {
        let mut locks: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
        for hold in &self.holds {
            locks.entry(&hold.lock).or_default().push(hold);
        }
        let pairs = locks.into_values().flat_map(|mut holds| {
            holds.sort_by_key(|hold| hold.granted);
            holds.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>()
        });
        pairs.filter(|(first, next)| {
            first.client != next.client && first.believed.is_some_and(|end| end > next.asked)
        })
    }

    /// Reports releases without an effect, after which waiters wait for the ttl. A fault may delay a single grant and a
    /// busy machine all of them, so the median decides.
    fn late_handoffs(&self) -> Option<String> {
        let released = self.waited_for().filter(|(first, _)| first.is_released);
        let mut pauses: Vec<Duration> =
            released.filter_map(|(first, next)| Some(next.granted.saturating_sub(first.believed?))).collect();
        pauses.sort_unstable();
        let (count, median) = (pauses.len(), *pauses.get(pauses.len() / 2)?);
        (count >= HANDOFFS_MIN && median > self.ttl / 2)
            .then(|| format!("half of {count} grants came more than {median:.1?} after the release"))
    }

    /// Whether any client has noticed the fault.
    fn was_noticed(&self, fault: &AppliedFault) -> bool {
        if fault.failed.is_some() {
            return false;
        }
        if fault.client.is_some() && !matches!(fault.fault, Fault::CutClient { .. }) {
            return !matches!(fault.fault, Fault::StopHolder { length: StopLength::Overtaken, .. })
                || fault.is_overtaken;
        }
        let span = fault.from..=fault.until + self.ttl;
        let noticed = self.reports.iter().filter(|report| span.contains(&report.at)).any(|report| {
            match &report.message {
                ClientMessage::SessionProblem { .. } | ClientMessage::Missed { error: Some(_), .. } => true,
                ClientMessage::Ended { lost, released, .. } => *lost || released.is_some(),
                _ => false,
            }
        });
        let lasted = fault.until.saturating_sub(fault.from);
        let no_grant = !self.holds.iter().any(|hold| (fault.from..fault.until).contains(&hold.granted));
        noticed || (lasted > NO_GRANT_MIN && no_grant)
    }
}

impl Figures {
    /// Returns what happened too rarely. A short run needs what its first two steps cause; a longer one needs more.
    fn missing(&self, Requirements { steps, has_queue }: Requirements) -> Vec<String> {
        let rare = steps / STEPS_PER_RARITY;
        let in_order = if has_queue { 1.max(self.contended / CONTENDED_PER_PLACE) } else { 0 };
        let requirements = [
            ("grants", self.grants, GRANTS_MIN.max(GRANTS_PER_STEP * steps)),
            ("grants that were waited for", self.contended, CONTENDED_MIN.max(CONTENDED_PER_STEP * steps)),
            ("holders that were overtaken", self.overtaken, 2 + rare),
            ("faults that a client noticed", self.noticed, 2.max(self.faults / 2)),
            ("reads and writes that the fenced register refused", self.refused, 1 + rare),
            ("updates that the unfenced register lost", self.lost_unfenced, 1 + rare),
            ("grants whose queue entry was seen", self.in_order, in_order),
        ];
        let short = requirements.into_iter().filter(|(_, count, least)| count < least);
        short.map(|(what, count, least)| format!("{count} {what}, {least} required")).collect()
    }
}

/// Converts a hold for the checkers, as its client believed in it.
fn held(hold: &Hold) -> HoldRecord {
    let ended = hold.believed.unwrap_or(hold.granted);
    let mut record =
        HoldRecord::new(&hold.lock, hold.client.number(), hold.token, hold.asked..hold.granted, ended);
    record.queued = hold.queued;
    record
}

fn named(property: &str, faults: Vec<String>) -> impl Iterator<Item = String> {
    faults.into_iter().map(move |fault| format!("{property}: {fault}"))
}

/// Collects the holds that clients have reported.
fn holds(reports: &[Report]) -> Vec<Hold> {
    let mut holds: Vec<Hold> = Vec::new();
    let mut indices = BTreeMap::new();
    for report in reports {
        let client = report.client;
        match &report.message {
            ClientMessage::Granted { lock, token, asked, queued, granted, is_held } => {
                indices.insert((client, lock.clone(), *token), holds.len());
                holds.push(Hold {
                    client,
                    lock: lock.clone(),
                    token: *token,
                    asked: *asked,
                    queued: *queued,
                    granted: *granted,
                    believed: is_held.then_some(*granted),
                    is_lost: false,
                    is_ended: false,
                    is_released: false,
                });
            }
            ClientMessage::Believed { lock, token, at } => {
                if let Some(&index) = indices.get(&(client, lock.clone(), *token)) {
                    holds[index].believed = Some(*at);
                }
            }
            ClientMessage::Ended { lock, token, believed, lost, released } => {
                if let Some(&index) = indices.get(&(client, lock.clone(), *token)) {
                    let hold = &mut holds[index];
                    hold.believed = hold.believed.map(|_| *believed);
                    (hold.is_lost, hold.is_ended) = (*lost, true);
                    hold.is_released = !lost && released.is_none();
                }
            }
            _ => {}
        }
    }
    holds
}
