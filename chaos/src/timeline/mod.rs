//! Draws a run (SVG): holders of each lock over time, faults as bands, refused writes as marks.
//!
//! Time runs from left to right, in several strips. Each strip has one row per lock and client.

#[cfg(test)]
mod tests;

use std::{fmt::Write, time::Duration};

use crate::{fault::Fault, nemesis::AppliedFault, register::Access, report::RunResult, verdict::Hold};

/// Longest time in one strip.
const STRIP_MAX: Duration = Duration::from_secs(60);

/// Sizes in pixels.
const LEFT: f64 = 110.0;
const WIDTH: f64 = 1_600.0;
const ROW: f64 = 14.0;
const LANE: f64 = 13.0;
const GAP: f64 = 8.0;
const AXIS: f64 = 18.0;
const LETTER: f64 = 5.6;
const HEAD: f64 = 76.0;

/// A colour for each client slot.
const COLOURS: [&str; 8] =
    ["#4477aa", "#228833", "#ccbb44", "#aa3377", "#66ccee", "#7a5230", "#777777", "#ee8866"];

/// Draws the picture.
pub(crate) fn draw(result: &RunResult) -> String {
    let strips = strips(result);
    let height = HEAD + strips.iter().map(|strip| strip.height(result)).sum::<f64>();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"10\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        width = LEFT + WIDTH + 20.0,
    );
    heading(&mut svg, result);
    let mut top = HEAD;
    for strip in &strips {
        strip.draw(&mut svg, result, top);
        top += strip.height(result);
    }
    svg + "</svg>\n"
}

/// A part of the run.
#[derive(Debug)]
struct Strip<'a> {
    from: Duration,
    length: Duration,
    /// Faults that do not overlap share a lane.
    lanes: Vec<Vec<&'a AppliedFault>>,
}

fn strips(result: &RunResult) -> Vec<Strip<'_>> {
    let ends = result.history.holds.iter().map(|hold| hold.believed.unwrap_or(hold.granted));
    let end = ends.chain(result.history.faults.iter().map(|fault| fault.until)).max();
    let total = end.unwrap_or(result.start).saturating_sub(result.start) + Duration::from_millis(200);
    let count = (total.as_secs_f64() / STRIP_MAX.as_secs_f64()).ceil().max(1.0);
    let length = total.div_f64(count);
    let starts = std::iter::successors(Some(result.start), |from| Some(*from + length));
    let strip = |from| Strip { from, length, lanes: lanes(&result.history.faults, from, length) };
    starts.take(count as usize).map(strip).collect()
}

fn lanes(faults: &[AppliedFault], from: Duration, length: Duration) -> Vec<Vec<&AppliedFault>> {
    let per_pixel = length.as_secs_f64() / WIDTH;
    let text = |fault: &AppliedFault| {
        Duration::from_secs_f64((label(fault).chars().count() + 2) as f64 * LETTER * per_pixel)
    };
    // The label of a short band needs room too; at the right end it is placed before its band.
    let begin = |fault: &AppliedFault| fault.from.max(from).min((from + length).saturating_sub(text(fault)));
    let end = |fault: &AppliedFault| fault.until.max(begin(fault) + text(fault));
    let mut lanes: Vec<Vec<&AppliedFault>> = Vec::new();
    let mut here: Vec<_> =
        faults.iter().filter(|fault| fault.from < from + length && fault.until >= from).collect();
    here.sort_by_key(|fault| begin(fault));
    for fault in here {
        let free = |lane: &&mut Vec<&AppliedFault>| lane.last().is_none_or(|last| end(last) < begin(fault));
        match lanes.iter_mut().find(free) {
            Some(lane) => lane.push(fault),
            None => lanes.push(vec![fault]),
        }
    }
    lanes
}

fn label(fault: &AppliedFault) -> String {
    match (&fault.failed, fault.client) {
        (Some(why), _) => format!("{} (failed: {})", fault.what, why.chars().take(40).collect::<String>()),
        (None, Some(client)) if !fault.what.contains(&client.to_string()) => {
            format!("{} ({client})", fault.what)
        }
        _ => fault.what.clone(),
    }
}

impl Strip<'_> {
    fn height(&self, result: &RunResult) -> f64 {
        self.rows_top() + rows_height(result) + AXIS + GAP
    }

    fn rows_top(&self) -> f64 {
        self.lanes.len() as f64 * LANE + GAP
    }

    fn x(&self, at: Duration) -> f64 {
        let since = at.as_secs_f64() - self.from.as_secs_f64();
        LEFT + (since / self.length.as_secs_f64()).clamp(0.0, 1.0) * WIDTH
    }

    fn shows(&self, from: Duration, until: Duration) -> bool {
        from < self.from + self.length && until >= self.from
    }

    fn draw(&self, svg: &mut String, result: &RunResult, top: f64) {
        let rows_top = top + self.rows_top();
        let bottom = rows_top + rows_height(result);
        self.axis(svg, result, rows_top, bottom);
        for (number, lane) in self.lanes.iter().enumerate() {
            for fault in lane {
                self.band(svg, fault, top + number as f64 * LANE, bottom);
            }
        }
        for lock in 0..result.scale.locks {
            let y = rows_top + lock_top(result, lock);
            text(svg, 4.0, y + ROW, "font-weight=\"bold\"", &format!("lock-{lock}"));
            for slot in 0..result.scale.clients {
                let y = y + slot as f64 * ROW;
                text(svg, LEFT - 44.0, y + ROW - 3.0, "fill=\"#555\"", &format!("client {slot}"));
                line(svg, [LEFT, y + ROW / 2.0], [LEFT + WIDTH, y + ROW / 2.0], "#e4e4e4");
            }
            let name = format!("lock-{lock}");
            let holds = result.history.holds.iter().filter(|hold| hold.lock == name);
            holds.for_each(|hold| self.bar(svg, hold, y));
            let accesses = result.history.accesses.iter().filter(|one| one.lock == name);
            accesses.for_each(|one| self.mark(svg, one, y));
        }
    }

    /// Whole seconds since the start.
    fn axis(&self, svg: &mut String, result: &RunResult, top: f64, bottom: f64) {
        let first = self.from.saturating_sub(result.start).as_secs_f64();
        let every = if self.length.as_secs_f64() > 30.0 { 5.0 } else { 1.0 };
        let mut second = (first / every).ceil() * every;
        while second <= first + self.length.as_secs_f64() {
            let x = self.x(result.start + Duration::from_secs_f64(second));
            line(svg, [x, top], [x, bottom], "#d0d0d0");
            text(svg, x - 6.0, bottom + AXIS - 5.0, "fill=\"#555\"", &format!("{second:.0} s"));
            second += every;
        }
    }

    fn band(&self, svg: &mut String, fault: &AppliedFault, y: f64, bottom: f64) {
        let (from, until) = (self.x(fault.from), self.x(fault.until));
        let colour = match fault.fault {
            _ if fault.failed.is_some() => "#bbbbbb",
            Fault::Server { .. } => "#dd7711",
            _ => "#5566dd",
        };
        let width = (until - from).max(1.0);
        rect(svg, [from, y], [width, bottom - y], &format!("fill=\"{colour}\" fill-opacity=\"0.13\""));
        rect(svg, [from, y], [width, LANE - 2.0], &format!("fill=\"{colour}\" fill-opacity=\"0.35\""));
        let label = label(fault);
        // At the right end there is no room after the start of the band.
        let most = LEFT + WIDTH - label.chars().count() as f64 * LETTER;
        text(svg, (from + 3.0).min(most), y + LANE - 4.0, "", &label);
    }

    fn bar(&self, svg: &mut String, hold: &Hold, lock_top: f64) {
        let until = hold.believed.unwrap_or(hold.granted);
        if !self.shows(hold.granted, until) {
            return;
        }
        let (from, until) = (self.x(hold.granted), self.x(until));
        let y = lock_top + hold.client.slot as f64 * ROW + 2.0;
        let colour = COLOURS[hold.client.slot % COLOURS.len()];
        let edge = match (hold.is_lost, hold.is_ended) {
            (true, _) => " stroke=\"#cc0000\" stroke-width=\"1.2\"",
            (false, false) => " stroke=\"black\" stroke-width=\"1.2\"",
            _ => "",
        };
        let title = format!("{} token {}", hold.client, hold.token);
        let _ = writeln!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"{edge}>\
             <title>{}</title></rect>",
            (until - from).max(1.2),
            ROW - 4.0,
            escaped(&title),
        );
    }

    /// Marks an access that the fenced register refused, or an update that the unfenced one lost.
    fn mark(&self, svg: &mut String, one: &Access, lock_top: f64) {
        if (one.is_admitted && !one.lost_unfenced) || !self.shows(one.at, one.at) {
            return;
        }
        let (x, y) = (self.x(one.at), lock_top + one.client.slot as f64 * ROW + ROW / 2.0);
        if !one.is_admitted {
            cross(svg, x, y, "#cc0000");
        }
        if one.lost_unfenced {
            ring(svg, x, y, "#dd7711");
        }
        if one.lost_fenced {
            ring(svg, x, y, "black");
        }
    }
}

fn heading(svg: &mut String, result: &RunResult) {
    let verdict = &result.verdict;
    let judged = match (verdict.violations.len(), verdict.missing.len()) {
        (0, 0) => "no violation".to_owned(),
        (0, _) => "no violation, but inconclusive".to_owned(),
        (count, _) => format!("{count} violations"),
    };
    let title = format!("{}, seed {}: {judged}", result.backend, result.seed);
    text(svg, 4.0, 20.0, "font-size=\"16\" font-weight=\"bold\"", &title);
    let figures = &verdict.figures;
    let figures = format!(
        "{} grants, {} of them waited for; {} faults, {} of them noticed; {} holds lost; {} refused by the fenced register; \
         updates lost: {} unfenced, {} fenced",
        figures.grants,
        figures.contended,
        figures.faults,
        figures.noticed,
        figures.losses,
        figures.refused,
        figures.lost_unfenced,
        figures.lost_fenced,
    );
    text(svg, 4.0, 38.0, "font-size=\"11\"", &figures);
    let mut x = 4.0;
    let mut key = |svg: &mut String, what: &str| {
        text(svg, x + 16.0, 58.0, "", what);
        let here = x;
        x += 40.0 + what.len() as f64 * LETTER;
        here
    };
    let at = key(svg, "held");
    rect(svg, [at, 49.0], [12.0, ROW - 4.0], "fill=\"#4477aa\"");
    let at = key(svg, "held, then lost");
    rect(svg, [at, 49.0], [12.0, ROW - 4.0], "fill=\"#4477aa\" stroke=\"#cc0000\" stroke-width=\"1.2\"");
    let at = key(svg, "held by a client that was killed");
    rect(svg, [at, 49.0], [12.0, ROW - 4.0], "fill=\"#4477aa\" stroke=\"black\" stroke-width=\"1.2\"");
    let at = key(svg, "refused by the fenced register");
    cross(svg, at + 6.0, 54.0, "#cc0000");
    let at = key(svg, "update lost by the unfenced register");
    ring(svg, at + 6.0, 54.0, "#dd7711");
    let at = key(svg, "fault of a server");
    rect(svg, [at, 49.0], [12.0, ROW - 4.0], "fill=\"#dd7711\" fill-opacity=\"0.35\"");
    let at = key(svg, "fault of a client");
    rect(svg, [at, 49.0], [12.0, ROW - 4.0], "fill=\"#5566dd\" fill-opacity=\"0.35\"");
    let at = key(svg, "fault that failed");
    rect(svg, [at, 49.0], [12.0, ROW - 4.0], "fill=\"#bbbbbb\"");
}

fn lock_top(result: &RunResult, lock: usize) -> f64 {
    lock as f64 * (result.scale.clients as f64 * ROW + GAP)
}

fn rows_height(result: &RunResult) -> f64 {
    lock_top(result, result.scale.locks)
}

fn rect(svg: &mut String, [x, y]: [f64; 2], [width, height]: [f64; 2], style: &str) {
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {style}/>"
    );
}

fn line(svg: &mut String, [x, y]: [f64; 2], [to_x, to_y]: [f64; 2], colour: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{to_x:.1}\" y2=\"{to_y:.1}\" stroke=\"{colour}\"/>"
    );
}

fn cross(svg: &mut String, x: f64, y: f64, colour: &str) {
    let _ = writeln!(
        svg,
        "<path d=\"M{:.1} {:.1}l8 8m0 -8l-8 8\" stroke=\"{colour}\" stroke-width=\"1.8\" fill=\"none\"/>",
        x - 4.0,
        y - 4.0
    );
}

fn ring(svg: &mut String, x: f64, y: f64, colour: &str) {
    let _ = writeln!(
        svg,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\" stroke=\"{colour}\" stroke-width=\"1.8\" fill=\"none\"/>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, style: &str, what: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{}</text>", escaped(what));
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
