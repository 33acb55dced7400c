//! What a run has shown: violations, and whether there was enough in it to show any.

use std::{collections::BTreeMap, time::Duration};

use lockkit_conformance::history::{Held, Write, fenced_writes, overlaps, queue_order, token_order};
use serde::Serialize;

use crate::{
    fault::{Fault, Until},
    hub::Report,
    nemesis::Inflicted,
    register::{Registers, Use},
    wire::{ClientId, Said},
};

/// So much longer than a ttl may what a fault did to a place in a queue take to be seen.
const AFTER_A_FAULT: u32 = 2;

/// Grants that a run must have, and those that somebody had to wait for.
const GRANTS_MIN: usize = 20;
const CONTENDED_MIN: usize = 10;

/// A time without any grant that shows a fault.
const NO_GRANT_MIN: Duration = Duration::from_secs(1);

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
    pub(crate) fn judge(&self, others: Vec<String>) -> Verdict {
        let figures = self.figures();
        let mut violations = others;
        violations.extend(named("exclusion", overlaps(&self.beliefs())));
        violations
            .extend(named("token order", token_order(&self.holds.iter().map(held).collect::<Vec<_>>())));
        violations.extend(named("queue order", queue_order(&self.quiet())));
        violations.extend(named("fencing", self.fencing()));
        let missing = figures.missing();
        Verdict { figures, violations, missing }
    }

    /// The holds as their clients believed in them, as far as the store has promised not to end them.
    fn beliefs(&self) -> Vec<Held> {
        let believed = self.holds.iter().filter_map(|hold| {
            let ended = self.faults.iter().filter_map(|fault| fault.ended_holds.as_ref());
            let ended = ended.filter(|ended| {
                ended.at > hold.granted && ended.lock.as_ref().is_none_or(|lock| *lock == hold.lock)
            });
            let end = ended.map(|ended| ended.at).chain([hold.believed?]).min()?;
            Some(Held { ended: end, ..held(hold) })
        });
        believed.collect()
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
        let mut locks: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
        for hold in &self.holds {
            locks.entry(&hold.lock).or_default().push(hold);
        }
        let waited = |pair: &[&Hold]| {
            pair[0].client != pair[1].client && pair[0].believed.is_some_and(|end| end > pair[1].asked)
        };
        let mut count = 0;
        for holds in locks.values_mut() {
            holds.sort_by_key(|hold| hold.granted);
            count += holds.windows(2).filter(|pair| waited(pair)).count();
        }
        count
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
    fn missing(&self) -> Vec<String> {
        let wanted = [
            ("grants", self.grants, GRANTS_MIN),
            ("grants that were waited for", self.contended, CONTENDED_MIN),
            ("holders that were overtaken", self.overtaken, 2),
            ("faults that anybody noticed", self.hits, 2),
            ("reads and writes that the fenced register refused", self.refused, 1),
            ("updates that the unfenced register lost", self.lost_unfenced, 1),
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
                });
            }
            Said::Believed { lock, token, at } => {
                if let Some(&place) = places.get(&(client, lock.clone(), *token)) {
                    holds[place].believed = Some(*at);
                }
            }
            Said::Ended { lock, token, believed, lost, .. } => {
                if let Some(&place) = places.get(&(client, lock.clone(), *token)) {
                    let hold = &mut holds[place];
                    hold.believed = hold.believed.map(|_| *believed);
                    (hold.is_lost, hold.is_ended) = (*lost, true);
                }
            }
            _ => {}
        }
    }
    holds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        nemesis::EndedHolds,
        wire::{Ask, Reading},
    };

    const LOCK: &str = "a";

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn client(slot: usize) -> ClientId {
        ClientId { slot, generation: 0 }
    }

    /// A hold from one time to another, as its client reports it.
    fn reports(slot: usize, token: u64, granted: u64, ended: u64) -> [Report; 2] {
        let (client, lock) = (client(slot), LOCK.to_owned());
        let (asked, granted) = (ms(granted - 1), ms(granted));
        let said = Said::Granted { lock: lock.clone(), token, asked, queued: None, granted, is_held: true };
        let end = Said::Ended { lock, token, believed: ms(ended), lost: false, released: None };
        [(granted, said), (ms(ended), end)].map(|(at, said)| Report { at, client, said })
    }

    fn violations(reports: &[[Report; 2]], faults: Vec<Inflicted>) -> Vec<String> {
        let history = History::new(&Registers::default(), &reports.concat(), faults, ms(1_000));
        history.judge(Vec::new()).violations
    }

    fn clock_step(at: u64) -> Inflicted {
        let fault = Fault::StopClient { slot: 0 };
        Inflicted {
            fault,
            what: String::new(),
            client: None,
            from: ms(at),
            until: ms(at),
            failed: None,
            is_overtaken: false,
            ended_holds: Some(EndedHolds { at: ms(at), lock: None }),
        }
    }

    #[test]
    fn two_who_believe_at_the_same_time_are_a_violation() {
        let overlapping = [reports(0, 1, 10, 30), reports(1, 2, 20, 40)];
        let found = violations(&overlapping, Vec::new());
        assert!(matches!(&*found, [one] if one.starts_with("exclusion")), "{found:?}");
        assert_eq!(violations(&[reports(0, 1, 10, 20), reports(1, 2, 20, 40)], Vec::new()), [""; 0]);
    }

    #[test]
    fn what_a_clock_step_has_ended_excludes_nobody_but_what_came_after_it_does() {
        let before = [reports(0, 1, 10, 30), reports(1, 2, 20, 40)];
        assert_eq!(violations(&before, vec![clock_step(15)]), [""; 0]);
        assert_eq!(violations(&before, vec![clock_step(25)]).len(), 1);
        assert_eq!(violations(&before, vec![clock_step(5)]).len(), 1);
    }

    #[test]
    fn tokens_that_fall_are_a_violation() {
        let found = violations(&[reports(0, 5, 10, 20), reports(1, 4, 30, 40)], Vec::new());
        assert!(matches!(&*found, [one] if one.starts_with("token order")), "{found:?}");
    }

    #[test]
    fn a_fenced_register_that_loses_an_update_is_a_violation() {
        let mut registers = Registers::default();
        let mut ask = |slot, ask| registers.serve(ms(1), client(slot), LOCK, 1, ask);
        let [one, other]: [Reading; 2] = [ask(0, Ask::Read), ask(1, Ask::Read)];
        ask(0, Ask::Write { read: one });
        ask(1, Ask::Write { read: other });
        let verdict = History::new(&registers, &[], Vec::new(), ms(1_000)).judge(Vec::new());
        assert!(verdict.violations.iter().all(|one| one.starts_with("fencing")), "{verdict:?}");
        assert_eq!(verdict.violations.len(), 2, "the update, and the sum: {verdict:?}");
    }

    #[test]
    fn a_run_without_faults_has_not_enough_in_it() {
        let verdict = History::new(&Registers::default(), &[], Vec::new(), ms(1_000)).judge(Vec::new());
        assert!(verdict.violations.is_empty() && verdict.missing.len() == 6, "{verdict:?}");
    }

    #[test]
    fn a_killed_client_believed_as_long_as_it_said_so() {
        let [granted, _] = reports(0, 1, 10, 30);
        let said = Said::Believed { lock: LOCK.to_owned(), token: 1, at: ms(25) };
        let found = holds(&[granted, Report { at: ms(25), client: client(0), said }]);
        assert!(matches!(&*found, [hold] if hold.believed == Some(ms(25)) && !hold.is_ended));
    }
}
