use super::*;
use crate::{
    nemesis::EndedHolds,
    report::{RunResult, table},
    wire::{Reading, RegisterRequest},
};

const LOCK: &str = "a";

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn client(slot: usize) -> ClientId {
    ClientId { slot, generation: 0 }
}

/// The reports of a hold from `granted` to `ended`.
fn reports(slot: usize, token: u64, granted: u64, ended: u64) -> [Report; 2] {
    let (client, lock) = (client(slot), LOCK.to_owned());
    let (asked, granted) = (ms(granted - 1), ms(granted));
    let message =
        ClientMessage::Granted { lock: lock.clone(), token, asked, queued: None, granted, is_held: true };
    let end = ClientMessage::Ended { lock, token, believed: ms(ended), lost: false, released: None };
    [(granted, message), (ms(ended), end)].map(|(at, message)| Report { at, client, message })
}

/// The requirements of the shortest run.
const LEAST: Requirements = Requirements { steps: 2, has_queue: true };

fn violations(reports: &[[Report; 2]], faults: Vec<AppliedFault>) -> Vec<String> {
    let history = History::new(&Registers::default(), &reports.concat(), faults, ms(1_000));
    history.judge(LEAST, Vec::new()).violations
}

fn clock_step(at: u64) -> AppliedFault {
    let fault = Fault::StopClient { slot: 0 };
    AppliedFault {
        fault,
        what: String::new(),
        client: None,
        cut: None,
        from: ms(at),
        until: ms(at),
        settled: ms(at),
        failed: None,
        is_overtaken: false,
        ended_holds: Some(EndedHolds { at: ms(at), lock: None }),
    }
}

#[test]
fn two_holders_at_the_same_time_are_a_violation() {
    let overlapping = [reports(0, 1, 10, 30), reports(1, 2, 20, 40)];
    let found = violations(&overlapping, Vec::new());
    assert!(matches!(&*found, [one] if one.starts_with("exclusion")), "{found:?}");
    assert_eq!(violations(&[reports(0, 1, 10, 20), reports(1, 2, 20, 40)], Vec::new()), [""; 0]);
}

#[test]
fn hold_counts_until_a_clock_step_and_later_holds_count_fully() {
    let before = [reports(0, 1, 10, 30), reports(1, 2, 20, 40)];
    assert_eq!(violations(&before, vec![clock_step(15)]), [""; 0]);
    assert_eq!(violations(&before, vec![clock_step(25)]).len(), 1);
    assert_eq!(violations(&before, vec![clock_step(5)]).len(), 1);
}

#[test]
fn grant_ended_by_a_clock_step_before_its_answer_is_no_evidence() {
    let mut late = reports(0, 1, 22, 30);
    if let ClientMessage::Granted { asked, .. } = &mut late[0].message {
        *asked = ms(12);
    }
    let both = [late, reports(1, 2, 20, 40)];
    assert_eq!(violations(&both, vec![clock_step(15)]), [""; 0]);
    assert_eq!(violations(&both, vec![clock_step(11)]).len(), 1);
}

#[test]
fn falling_tokens_are_a_violation() {
    let found = violations(&[reports(0, 5, 10, 20), reports(1, 4, 30, 40)], Vec::new());
    assert!(matches!(&*found, [one] if one.starts_with("token order")), "{found:?}");
}

/// A claim of client 0 that was in the queue from 2 s on, and one of client 1 that was made at 3 s and granted at 4 s.
fn claims(first_granted: u64) -> [[Report; 2]; 2] {
    let queued_at = |mut reports: [Report; 2], at| {
        if let ClientMessage::Granted { asked, queued, .. } = &mut reports[0].message {
            (*asked, *queued) = (ms(at - 1), Some(ms(at)));
        }
        reports
    };
    let [first, second] = if first_granted < 4_000 { [1, 2] } else { [2, 1] };
    [
        queued_at(reports(0, first, first_granted, first_granted + 5), 2_000),
        queued_at(reports(1, second, 4_000, 4_005), 3_001),
    ]
}

#[test]
fn run_with_an_overtaken_waiter_is_refused() {
    let result = |first_granted| {
        let reports = claims(first_granted).concat();
        let history = History::new(&Registers::default(), &reports, Vec::new(), ms(1_000));
        RunResult::by_hand(history, LEAST)
    };
    let good = result(3_500);
    assert_eq!((good.verdict.violations.len(), good.verdict.figures.in_order), (0, 2));
    let wrong = result(4_500);
    assert!(!wrong.passed());
    let table = table(&[wrong]);
    assert!(table.contains("1 VIOLATIONS") && table.contains("VIOLATION: queue order: "), "{table}");
}

#[test]
fn overtaken_waiter_is_no_violation_if_a_fault_may_have_removed_its_entry() {
    let found = |from: u64, settled: u64, client| {
        let fault = AppliedFault { settled: ms(settled), client, ended_holds: None, ..clock_step(from) };
        violations(&claims(4_500), vec![fault]).len()
    };
    // The entry was seen at 2 s; the claim was granted at 4.5 s.
    for (from, settled, expected) in
        [(4_500, 4_600, 0), (4_501, 4_600, 1), (10, 1_000, 0), (10, 999, 1), (1_500, 1_600, 0)]
    {
        assert_eq!(found(from, settled, None), expected, "a server: {from} to {settled}");
        assert_eq!(found(from, settled, Some(client(0))), expected, "the waiter: {from} to {settled}");
        assert_eq!(found(from, settled, Some(client(1))), 1, "another client: {from} to {settled}");
    }
}

#[test]
fn guard_that_was_lost_when_it_was_returned_does_not_count_as_overtaken() {
    let mut late = claims(4_500);
    if let ClientMessage::Granted { is_held, .. } = &mut late[0][0].message {
        *is_held = false;
    }
    assert_eq!(violations(&late, Vec::new()), [""; 0]);
}

#[test]
fn releases_without_effect_are_a_violation() {
    let one_after_the_other = |pause: u64| {
        let every = 20 + pause;
        let hold = |number: u64| {
            let start = 1_000 + number * every;
            let mut reports = reports(number as usize % 2, number, start, start + 20);
            if let ClientMessage::Granted { asked, .. } = &mut reports[0].message {
                *asked = ms(start - every + 10);
            }
            reports
        };
        violations(&(1..20).map(hold).collect::<Vec<_>>(), Vec::new())
    };
    assert_eq!(one_after_the_other(400), [""; 0]);
    let found = one_after_the_other(950);
    assert!(matches!(&*found, [one] if one.starts_with("handoff")), "{found:?}");
}

#[test]
fn admitted_stale_read_is_a_violation() {
    let mut log = Registers::default();
    log.serve(ms(1), client(0), LOCK, 2, RegisterRequest::Read);
    log.serve(ms(2), client(1), LOCK, 1, RegisterRequest::Read);
    let mut history = History::new(&log, &[], Vec::new(), ms(1_000));
    assert!(history.judge(LEAST, Vec::new()).violations.is_empty());
    history.accesses[1].is_admitted = true;
    let found = history.judge(LEAST, Vec::new()).violations;
    assert!(matches!(&*found, [one] if one.starts_with("fencing")), "{found:?}");
}

#[test]
fn lost_update_of_the_fenced_register_is_a_violation() {
    let mut registers = Registers::default();
    let mut ask = |slot, ask| registers.serve(ms(1), client(slot), LOCK, 1, ask);
    let [one, other]: [Reading; 2] = [ask(0, RegisterRequest::Read), ask(1, RegisterRequest::Read)];
    ask(0, RegisterRequest::Write { read: one });
    ask(1, RegisterRequest::Write { read: other });
    let verdict = History::new(&registers, &[], Vec::new(), ms(1_000)).judge(LEAST, Vec::new());
    assert!(verdict.violations.iter().all(|one| one.starts_with("fencing")), "{verdict:?}");
    assert_eq!(verdict.violations.len(), 2, "the update and the sum: {verdict:?}");
}

#[test]
fn run_without_faults_is_inconclusive() {
    let verdict = History::new(&Registers::default(), &[], Vec::new(), ms(1_000)).judge(LEAST, Vec::new());
    assert!(verdict.violations.is_empty() && verdict.missing.len() == 7, "{verdict:?}");
}

fn enough() -> Figures {
    Figures {
        grants: 20,
        contended: 10,
        overtaken: 2,
        faults: 2,
        noticed: 2,
        refused: 1,
        lost_unfenced: 1,
        in_order: 1,
        ..Figures::default()
    }
}

#[test]
fn run_without_a_lost_unfenced_update_is_inconclusive() {
    assert_eq!(enough().missing(LEAST), [""; 0]);
    let missing = Figures { lost_unfenced: 0, ..enough() }.missing(LEAST);
    assert_eq!(missing, ["0 updates that the unfenced register lost, 1 required"]);
}

#[test]
fn long_run_requires_more_than_a_short_one() {
    let long = Requirements { steps: 200, has_queue: true };
    assert_eq!(Figures { faults: 300, ..enough() }.missing(long).len(), 6);
}

#[test]
fn run_without_enough_places_in_the_queue_is_inconclusive() {
    for (contended, in_order, is_enough) in [(10, 0, false), (10, 1, true), (400, 19, false), (400, 20, true)]
    {
        let figures = Figures { contended, in_order, ..enough() };
        let expected = if is_enough { 0 } else { 1 };
        assert_eq!(figures.missing(LEAST).len(), expected, "{in_order} of {contended}");
        // Without a queue there are no places to see.
        assert_eq!(figures.missing(Requirements { has_queue: false, ..LEAST }), [""; 0]);
    }
}

#[test]
fn belief_of_a_killed_client_ends_with_its_last_report() {
    let [granted, _] = reports(0, 1, 10, 30);
    let message = ClientMessage::Believed { lock: LOCK.to_owned(), token: 1, at: ms(25) };
    let found = holds(&[granted, Report { at: ms(25), client: client(0), message }]);
    assert!(matches!(&*found, [hold] if hold.believed == Some(ms(25)) && !hold.is_ended));
}
