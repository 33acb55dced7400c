use super::*;
use crate::{
    fault::{ServerFault, Target},
    register::Registers,
    verdict::{History, Requirements},
    wire::{ClientId, RegisterRequest},
};

const LOCK: &str = "lock-0";

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn client(slot: usize) -> ClientId {
    ClientId { slot, generation: 0 }
}

fn hold(slot: usize, token: u64, from: u64, until: u64) -> Hold {
    Hold {
        client: client(slot),
        lock: LOCK.to_owned(),
        token,
        asked: ms(from),
        queued: None,
        granted: ms(from),
        believed: Some(ms(until)),
        is_lost: false,
        is_ended: true,
        is_released: true,
    }
}

/// Two holds one after the other. The first client writes late: that is refused by one register, and loses the update
/// of the second client at the other.
fn history() -> History {
    let mut registers = Registers::default();
    let mut ask = |at, slot, token, request| registers.serve(ms(at), client(slot), LOCK, token, request);
    let stale = ask(110, 0, 1, RegisterRequest::Read);
    let fresh = ask(310, 1, 2, RegisterRequest::Read);
    ask(390, 1, 2, RegisterRequest::Write { read: fresh });
    ask(500, 0, 1, RegisterRequest::Write { read: stale });
    let fault = Fault::Server { fault: ServerFault::Stop, target: Target::Number(0) };
    let fault = AppliedFault {
        fault,
        what: "stop server 0".to_owned(),
        client: None,
        cut: None,
        from: ms(100),
        until: ms(600),
        settled: ms(600),
        failed: None,
        is_overtaken: false,
        ended_holds: None,
    };
    let mut history = History::new(&registers, &[], vec![fault], ms(1_000));
    history.holds = vec![hold(0, 1, 100, 200), hold(1, 2, 300, 400)];
    history
}

#[test]
fn picture_shows_holders_faults_and_refused_and_lost_updates() {
    let required = Requirements { steps: 2, has_queue: true };
    let result = RunResult::by_hand(history(), required);
    let picture = draw(&result);
    // What follows the key of the colours and marks.
    let body = picture.split_once(">fault that failed<").unwrap().1;
    let body = body.split_once("/>").unwrap().1;
    let strip = &strips(&result)[0];
    let (rows, end) = (HEAD + strip.rows_top(), HEAD + strip.rows_top() + rows_height(&result));
    let lines = |what: &str| body.lines().filter(|line| line.contains(what)).collect::<Vec<_>>();
    let at = |slot: usize, at: u64| (strip.x(ms(at)), rows + slot as f64 * ROW);

    for (slot, from, until) in [(0, 100, 200), (1, 300, 400)] {
        let ((x, y), (until, _)) = (at(slot, from), at(slot, until));
        let bars = lines(&format!("<title>c{slot}.0 token {}</title>", slot + 1));
        let bar = format!(
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\">",
            y + 2.0,
            until - x,
            ROW - 4.0,
            COLOURS[slot],
        );
        assert!(matches!(*bars, [one] if one.starts_with(&bar)), "{bar}: {bars:?}");
    }
    let ((from, _), (until, _)) = (at(0, 100), at(0, 600));
    let band = |height: f64, opacity: f64| {
        format!(
            "<rect x=\"{from:.1}\" y=\"{HEAD:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"#dd7711\" \
             fill-opacity=\"{opacity}\"/>",
            until - from,
        )
    };
    assert_eq!(lines("fill-opacity"), [band(end - HEAD, 0.13), band(LANE - 2.0, 0.35)]);
    assert_eq!(lines(">stop server 0<").len(), 1);
    let (x, y) = at(0, 500);
    let y = y + ROW / 2.0;
    let (mut refused, mut lost) = (String::new(), String::new());
    cross(&mut refused, x, y, "#cc0000");
    ring(&mut lost, x, y, "#dd7711");
    assert_eq!(lines("<path"), [refused.trim_end()]);
    assert_eq!(lines("<circle"), [lost.trim_end()]);
}

#[test]
fn holds_that_were_lost_or_not_ended_have_an_edge() {
    let edges = |is_lost, is_ended| {
        let mut history = history();
        (history.holds[0].is_lost, history.holds[0].is_ended) = (is_lost, is_ended);
        let picture = draw(&RunResult::by_hand(history, Requirements { steps: 2, has_queue: true }));
        let bar = picture.lines().find(|line| line.contains("<title>c0.0 ")).unwrap();
        ["#cc0000", "black"].map(|colour| bar.contains(&format!("stroke=\"{colour}\"")))
    };
    assert_eq!(edges(false, true), [false, false]);
    assert_eq!(edges(true, true), [true, false]);
    assert_eq!(edges(false, false), [false, true]);
}

#[test]
fn text_is_escaped() {
    assert_eq!(escaped("<a> & \"b\""), "&lt;a&gt; &amp; &quot;b&quot;");
}
