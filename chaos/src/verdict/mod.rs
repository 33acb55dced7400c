//! What a run has shown: violations, and whether there was enough in it to show any.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use lockkit_conformance::history::{Held, Write, fenced_writes, overlaps, queue_order, token_order};
use serde::Serialize;

use crate::{
    fault::{Fault, Until},
    hub::Report,
    nemesis::{EndedHolds, Inflicted},
    register::{Registers, Use},
    wire::{ClientId, Said},
};

/// So much longer than a ttl may what a fault did to a place in a queue take to be seen.
const AFTER_A_FAULT: u32 = 2;

/// Grants that the shortest run must have, and those that somebody had to wait for.
const GRANTS_MIN: usize = 20;
const CONTENDED_MIN: usize = 10;

/// Grants and contended grants for each step of the schedule of a longer run.
const GRANTS_PER_STEP: usize = 3;
const CONTENDED_PER_STEP: usize = 2;

/// For each so many steps there must be one more of what is rarer.
const STEPS_PER_RARITY: usize = 15;

/// A time without any grant that shows a fault.
const NO_GRANT_MIN: Duration = Duration::from_secs(1);

/// Grants right after a release from which their pauses can be judged.
const HAND_OVERS_MIN: usize = 10;

/// One hold, with who had it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Hold {
    pub(crate) client: ClientId,
    pub(crate) lock: String,
    pub(crate) token: u64,
    pub(crate) asked: Duration,
    pub(crate) queued: Option<Duration>,
    pub(crate) granted: Duration,
    /// The guard last said then that it is held; `None` when it never did.
    pub(crate) believed: Option<Duration>,
    /// The guard said at its end that it is lost.
    pub(crate) is_lost: bool,
    /// Its end was reported: it was not killed.
    pub(crate) is_ended: bool,
    /// Its release was confirmed.
    pub(crate) is_released: bool,
}

/// What a run has shown.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) figures: Figures,
    pub(crate) violations: Vec<String>,
    /// Why the run has not shown enough.
    pub(crate) missing: Vec<String>,
}

/// What was in a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) grants: usize,
    pub(crate) contended: usize,
    /// Waits that ended without a grant: busy, and with an error.
    pub(crate) busy: usize,
    pub(crate) errors: usize,
    /// Guards that were lost before their release.
    pub(crate) losses: usize,
    /// Holders that were stopped or killed in their section, and overtaken.
    pub(crate) overtaken: usize,
    pub(crate) faults: usize,
    /// Those that clients have noticed.
    pub(crate) hits: usize,
    pub(crate) writes: usize,
    /// Reads and writes that the fenced register refused.
    pub(crate) refused: usize,
    /// Updates that the registers lost.
    pub(crate) lost_unfenced: usize,
    pub(crate) lost_fenced: usize,
    /// Grants whose place in the queue was known, in quiet times.
    pub(crate) in_order: usize,
}

/// What a run is asked to have in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// Steps of its schedule.
    pub(crate) steps: usize,
    /// The store grants in the order of its queue.
    pub(crate) has_queue: bool,
}

/// Everything there is of a run.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) holds: Vec<Hold>,
    pub(crate) uses: Vec<Use>,
    pub(crate) reports: Vec<Report>,
    pub(crate) faults: Vec<Inflicted>,
    pub(crate) fenced: BTreeMap<String, u64>,
    pub(crate) ttl: Duration,
}

impl History {
    pub(crate) fn new(
        registers: &Registers,
        reports: &[Report],
        faults: Vec<Inflicted>,
        ttl: Duration,
    ) -> Self {
        Self {
            holds: holds(reports),
            uses: registers.log().to_vec(),
            reports: reports.to_vec(),
            faults,
            fenced: registers.fenced().map(|(lock, value)| (lock.to_owned(), value)).collect(),
            ttl,
        }
    }

    /// Judges it; `others` are violations that were found otherwise.
    pub(crate) fn judge(&self, demand: Demand, others: Vec<String>) -> Verdict {
        let figures = self.figures();
        let mut violations = others;
        violations.extend(named("exclusion", overlaps(&self.beliefs())));
        violations
            .extend(named("token order", token_order(&self.holds.iter().map(held).collect::<Vec<_>>())));
        violations.extend(named("queue order", queue_order(&self.quiet())));
        violations.extend(named("fencing", self.fencing()));
        violations.extend(named("hand-over", self.late_hand_overs().into_iter().collect()));
        let missing = figures.missing(demand);
        Verdict { figures, violations, missing }
    }

    /// The holds as their clients believed in them, as far as the store has promised not to end them.
    fn beliefs(&self) -> Vec<Held> {
        let believed = self.holds.iter().filter_map(|hold| {
            let ended = self.faults.iter().filter_map(|fault| fault.ended_holds.as_ref());
            let ended = ended.filter(|ended| self.may_end(ended, hold)).map(|ended| ended.at).min();
            let end = ended.into_iter().chain([hold.believed?]).min()?;
            // What the store had ended before the client had the answer counts for nothing.
            (end >= hold.granted).then(|| Held { ended: end, ..held(hold) })
        });
        believed.collect()
    }

    /// Whether the store may have had this hold when it ended all holds, or those of this lock.
    fn may_end(&self, ended: &EndedHolds, hold: &Hold) -> bool {
        match &ended.lock {
            Some(lock) => *lock == hold.lock && hold.granted < ended.at,
            // The answer of a server comes later, by a ttl at most.
            None => hold.asked < ended.at && hold.granted < ended.at + self.ttl,
        }
    }

    /// The holds, with places in the queue only where no fault can have cost one.
    fn quiet(&self) -> Vec<Held> {
        let after = self.ttl * AFTER_A_FAULT;
        let mut all: Vec<Held> = self.holds.iter().map(held).collect();
        for held in &mut all {
            let disturbed = self
                .faults
                .iter()
                .any(|fault| fault.from <= held.granted && held.asked <= fault.until + after);
            held.queued = held.queued.filter(|_| !disturbed);
        }
        all
    }

    fn fencing(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (lock, value) in &self.fenced {
            let uses: Vec<&Use> = self.uses.iter().filter(|one| one.lock == *lock).collect();
            // Reads too: they raise the highest token that the register has seen.
            let writes = uses.iter().map(|one| Write { token: one.token, applied: one.is_admitted });
            faults.extend(fenced_writes(&writes.collect::<Vec<_>>()));
            let applied = uses.iter().filter(|one| one.is_write && one.is_admitted).count() as u64;
            if *value != applied {
                faults.push(format!("the fenced register of {lock} has {value} of {applied} updates"));
            }
        }
        let lost = self.uses.iter().filter(|one| one.lost_fenced);
        faults.extend(lost.map(|one| format!("the fenced register has lost an update: {one:?}")));
        faults
    }

    fn figures(&self) -> Figures {
        let count =
            |is_so: &dyn Fn(&Said) -> bool| self.reports.iter().filter(|report| is_so(&report.said)).count();
        let uses = |is_so: &dyn Fn(&Use) -> bool| self.uses.iter().filter(|one| is_so(one)).count();
        Figures {
            grants: self.holds.len(),
            contended: self.contended(),
            busy: count(&|said| matches!(said, Said::Missed { error: None, .. })),
            errors: count(&|said| matches!(said, Said::Missed { error: Some(_), .. })),
            losses: self.holds.iter().filter(|hold| hold.is_lost).count(),
            overtaken: self.faults.iter().filter(|fault| fault.is_overtaken).count(),
            faults: self.faults.iter().filter(|fault| fault.failed.is_none()).count(),
            hits: self.faults.iter().filter(|fault| self.is_hit(fault)).count(),
            writes: uses(&|one| one.is_write),
            refused: uses(&|one| !one.is_admitted),
            lost_unfenced: uses(&|one| one.lost_unfenced),
            lost_fenced: uses(&|one| one.lost_fenced),
            in_order: self.quiet().iter().filter(|held| held.queued.is_some()).count(),
        }
    }

    /// Grants that were asked for while another client had the lock.
    fn contended(&self) -> usize {
        self.waited_for().count()
    }

    /// Each hold that was asked for while another client had the lock, behind that one's.
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

    /// Whether releases free nothing, so that others wait for the ttl. One grant may come late for a fault, and all come
    /// later on a busy machine: half of them tell.
    fn late_hand_overs(&self) -> Option<String> {
        let released = self.waited_for().filter(|(first, _)| first.is_released);
        let mut pauses: Vec<Duration> =
            released.filter_map(|(first, next)| Some(next.granted.saturating_sub(first.believed?))).collect();
        pauses.sort_unstable();
        let (count, median) = (pauses.len(), *pauses.get(pauses.len() / 2)?);
        (count >= HAND_OVERS_MIN && median > self.ttl / 2)
            .then(|| format!("half of {count} grants came more than {median:.1?} after the release"))
    }

    /// Whether any client has noticed a fault.
    fn is_hit(&self, fault: &Inflicted) -> bool {
        if fault.failed.is_some() {
            return false;
        }
        if fault.client.is_some() && !matches!(fault.fault, Fault::CutClient { .. }) {
            return !matches!(fault.fault, Fault::StopHolder { until: Until::Overtaken, .. })
                || fault.is_overtaken;
        }
        let span = fault.from..=fault.until + self.ttl;
        let noticed =
            self.reports.iter().filter(|report| span.contains(&report.at)).any(|report| match &report.said {
                Said::Trouble { .. } | Said::Missed { error: Some(_), .. } => true,
                Said::Ended { lost, released, .. } => *lost || released.is_some(),
                _ => false,
            });
        let lasted = fault.until.saturating_sub(fault.from);
        let no_grant = !self.holds.iter().any(|hold| (fault.from..fault.until).contains(&hold.granted));
        noticed || (lasted > NO_GRANT_MIN && no_grant)
    }
}

impl Figures {
    /// What there was too little of. A short run needs what its first two steps cause; a long one needs more of all.
    fn missing(&self, Demand { steps, has_queue }: Demand) -> Vec<String> {
        let rare = steps / STEPS_PER_RARITY;
        let in_order = if has_queue { rare } else { 0 };
        let wanted = [
            ("grants", self.grants, GRANTS_MIN.max(GRANTS_PER_STEP * steps)),
            ("grants that were waited for", self.contended, CONTENDED_MIN.max(CONTENDED_PER_STEP * steps)),
            ("holders that were overtaken", self.overtaken, 2 + rare),
            ("faults that anybody noticed", self.hits, 2.max(self.faults / 2)),
            ("reads and writes that the fenced register refused", self.refused, 1 + rare),
            ("updates that the unfenced register lost", self.lost_unfenced, 1 + rare),
            ("grants whose place in the queue was known", self.in_order, in_order),
        ];
        let short = wanted.into_iter().filter(|(_, count, least)| count < least);
        short.map(|(what, count, least)| format!("{count} {what}, {least} wanted")).collect()
    }
}

/// A hold for the checkers, as its client believed in it.
fn held(hold: &Hold) -> Held {
    Held {
        lock: hold.lock.clone(),
        client: hold.client.number(),
        token: hold.token,
        asked: hold.asked,
        queued: hold.queued,
        granted: hold.granted,
        ended: hold.believed.unwrap_or(hold.granted),
    }
}

fn named(property: &str, faults: Vec<String>) -> impl Iterator<Item = String> {
    faults.into_iter().map(move |fault| format!("{property}: {fault}"))
}

/// The holds that clients have reported.
fn holds(reports: &[Report]) -> Vec<Hold> {
    let mut holds: Vec<Hold> = Vec::new();
    let mut places = BTreeMap::new();
    for report in reports {
        let client = report.client;
        match &report.said {
            Said::Granted { lock, token, asked, queued, granted, is_held } => {
                places.insert((client, lock.clone(), *token), holds.len());
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
            Said::Believed { lock, token, at } => {
                if let Some(&place) = places.get(&(client, lock.clone(), *token)) {
                    holds[place].believed = Some(*at);
                }
            }
            Said::Ended { lock, token, believed, lost, released } => {
                if let Some(&place) = places.get(&(client, lock.clone(), *token)) {
                    let hold = &mut holds[place];
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
