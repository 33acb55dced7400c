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

/// What the shortest run is asked for.
const LEAST: Demand = Demand { steps: 2, has_queue: true };

fn violations(reports: &[[Report; 2]], faults: Vec<Inflicted>) -> Vec<String> {
    let history = History::new(&Registers::default(), &reports.concat(), faults, ms(1_000));
    history.judge(LEAST, Vec::new()).violations
}

fn clock_step(at: u64) -> Inflicted {
    let fault = Fault::StopClient { slot: 0 };
    Inflicted {
        fault,
        what: String::new(),
        client: None,
        cut: None,
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
fn a_grant_that_a_clock_step_has_ended_before_its_answer_came_excludes_nobody() {
    let mut late = reports(0, 1, 22, 30);
    if let Said::Granted { asked, .. } = &mut late[0].said {
        *asked = ms(12);
    }
    let both = [late, reports(1, 2, 20, 40)];
    assert_eq!(violations(&both, vec![clock_step(15)]), [""; 0]);
    assert_eq!(violations(&both, vec![clock_step(11)]).len(), 1);
}

#[test]
fn tokens_that_fall_are_a_violation() {
    let found = violations(&[reports(0, 5, 10, 20), reports(1, 4, 30, 40)], Vec::new());
    assert!(matches!(&*found, [one] if one.starts_with("token order")), "{found:?}");
}

#[test]
fn a_waiter_that_came_first_and_is_granted_last_is_a_violation_unless_a_fault_was_near() {
    let mut first = reports(0, 2, 30, 40);
    let second = reports(1, 1, 20, 25);
    if let Said::Granted { asked, queued, .. } = &mut first[0].said {
        (*asked, *queued) = (ms(5), Some(ms(10)));
    }
    let found = violations(&[first.clone(), second.clone()], Vec::new());
    assert!(matches!(&*found, [one] if one.starts_with("queue order")), "{found:?}");
    let near = Inflicted { ended_holds: None, ..clock_step(15) };
    assert_eq!(violations(&[first, second], vec![near]), [""; 0]);
}

#[test]
fn releases_that_free_nothing_are_a_violation() {
    let one_after_the_other = |pause: u64| {
        let every = 20 + pause;
        let hold = |number: u64| {
            let start = 1_000 + number * every;
            let mut reports = reports(number as usize % 2, number, start, start + 20);
            if let Said::Granted { asked, .. } = &mut reports[0].said {
                *asked = ms(start - every + 10);
            }
            reports
        };
        violations(&(1..20).map(hold).collect::<Vec<_>>(), Vec::new())
    };
    assert_eq!(one_after_the_other(400), [""; 0]);
    let found = one_after_the_other(950);
    assert!(matches!(&*found, [one] if one.starts_with("hand-over")), "{found:?}");
}

#[test]
fn a_stale_read_that_the_fenced_register_lets_in_is_a_violation() {
    let mut log = Registers::default();
    log.serve(ms(1), client(0), LOCK, 2, Ask::Read);
    log.serve(ms(2), client(1), LOCK, 1, Ask::Read);
    let mut history = History::new(&log, &[], Vec::new(), ms(1_000));
    assert!(history.judge(LEAST, Vec::new()).violations.is_empty());
    history.uses[1].is_admitted = true;
    let found = history.judge(LEAST, Vec::new()).violations;
    assert!(matches!(&*found, [one] if one.starts_with("fencing")), "{found:?}");
}

#[test]
fn a_fenced_register_that_loses_an_update_is_a_violation() {
    let mut registers = Registers::default();
    let mut ask = |slot, ask| registers.serve(ms(1), client(slot), LOCK, 1, ask);
    let [one, other]: [Reading; 2] = [ask(0, Ask::Read), ask(1, Ask::Read)];
    ask(0, Ask::Write { read: one });
    ask(1, Ask::Write { read: other });
    let verdict = History::new(&registers, &[], Vec::new(), ms(1_000)).judge(LEAST, Vec::new());
    assert!(verdict.violations.iter().all(|one| one.starts_with("fencing")), "{verdict:?}");
    assert_eq!(verdict.violations.len(), 2, "the update, and the sum: {verdict:?}");
}

#[test]
fn a_run_without_faults_has_not_enough_in_it() {
    let verdict = History::new(&Registers::default(), &[], Vec::new(), ms(1_000)).judge(LEAST, Vec::new());
    assert!(verdict.violations.is_empty() && verdict.missing.len() == 6, "{verdict:?}");
}

fn enough() -> Figures {
    Figures {
        grants: 20,
        contended: 10,
        overtaken: 2,
        faults: 2,
        hits: 2,
        refused: 1,
        lost_unfenced: 1,
        ..Figures::default()
    }
}

#[test]
fn a_run_that_cost_the_unfenced_register_nothing_has_not_enough_in_it() {
    assert_eq!(enough().missing(LEAST), [""; 0]);
    let missing = Figures { lost_unfenced: 0, ..enough() }.missing(LEAST);
    assert_eq!(missing, ["0 updates that the unfenced register lost, 1 wanted"]);
}

#[test]
fn what_is_enough_for_a_short_run_is_not_enough_for_a_long_one() {
    let long = Demand { steps: 200, has_queue: true };
    assert_eq!(Figures { faults: 300, ..enough() }.missing(long).len(), 7);
    // Without a queue nobody has a place in it.
    assert_eq!(Figures { faults: 300, ..enough() }.missing(Demand { has_queue: false, ..long }).len(), 6);
}

#[test]
fn a_killed_client_believed_as_long_as_it_said_so() {
    let [granted, _] = reports(0, 1, 10, 30);
    let said = Said::Believed { lock: LOCK.to_owned(), token: 1, at: ms(25) };
    let found = holds(&[granted, Report { at: ms(25), client: client(0), said }]);
    assert!(matches!(&*found, [hold] if hold.believed == Some(ms(25)) && !hold.is_ended));
}
