//! Tables for the terminal and for Markdown.

use comfy_table::{CellAlignment, Table, TableStyle};

use super::{
    BackendReport, Kind, Report, Row,
    compare::{Spread, number},
};
use crate::{
    child::Problem,
    results::{Measured, PerPair, Percentiles},
    workload::{ComparedBy, Workload},
};

/// A workload on one backend: a line per row.
pub(super) fn workload(report: &BackendReport, workload: Workload, style: TableStyle) -> Option<Table> {
    let by = workload.compared_by();
    let is_contended = !matches!(workload, Workload::W1 | Workload::W2);
    let mut header = vec!["row", measure(by), "to raw", "to the best peer"];
    if by == ComparedBy::Handoff {
        header.push("pairs/s");
    }
    header.push("acquire + release p50 / p99 / max us");
    if is_contended {
        header.extend(["handoff p50 / p99 us", "to self", "shares"]);
    }
    header.extend(["CPU us client + server", "requests", "commands", "bytes in + out"]);
    let mut table = table(style, &header);
    for row in report.rows_of(workload) {
        table.add_row(match &row.problem {
            Some(Problem::Missing(reason)) => vec![row.name.clone(), format!("missing: {reason}")],
            Some(Problem::Failed(reason)) => vec![row.name.clone(), format!("failed: {reason:.100}")],
            None => line(report, row, by, is_contended),
        });
    }
    (!table.is_empty()).then_some(table)
}

fn measure(by: ComparedBy) -> &'static str {
    match by {
        ComparedBy::Rate => "pairs/s",
        ComparedBy::Handoff => "handoff p50 us",
        ComparedBy::Elapsed => "time ms",
    }
}

fn line(report: &BackendReport, row: &Row, by: ComparedBy, is_contended: bool) -> Vec<String> {
    let ratio = |reference: Option<&Row>| {
        let other = reference.filter(|reference| !std::ptr::eq(*reference, row));
        other.and_then(|reference| row.ratio(reference)).map_or_else(dash, |ratio| ratio.to_string())
    };
    let spread = |value: &dyn Fn(&Measured) -> Option<f64>| {
        Spread::of(row.measured().filter_map(value)).map_or_else(dash, |spread| spread.to_string())
    };
    let median = |value: &dyn Fn(&Measured) -> Option<f64>| row.median(value).map_or_else(dash, number);
    let server = |value: fn(PerPair) -> Option<f64>| median(&|run| run.server.and_then(value));
    let mut cells = vec![
        row.name.clone(),
        spread(&|run| run.compared(by)),
        ratio(report.raw_for(row)),
        if row.kind == Kind::Peer { dash() } else { ratio(report.best_peer_for(row)) },
    ];
    if by == ComparedBy::Handoff {
        cells.push(median(&|run| Some(run.per_second)));
    }
    let at = |of: fn(&Percentiles) -> u64| median(&move |run| Some(of(&run.pair) as f64));
    cells.push(format!("{} / {} / {}", at(|p| p.p50), at(|p| p.p99), at(|p| p.max)));
    if is_contended {
        let at = |of: fn(&Percentiles) -> u64| median(&move |run| Some(of(run.handoff.as_ref()?) as f64));
        cells.push(format!("{} / {}", at(|p| p.p50), at(|p| p.p99)));
        cells.push(median(&|run| Some(run.to_self)));
        let shares = [median(&|run| Some(run.shares.0)), median(&|run| Some(run.shares.1))];
        cells.push(shares.join("-"));
    }
    cells.extend([
        format!("{} + {}", median(&|run| Some(run.client_cpu)), server(|used| Some(used.cpu))),
        server(|used| used.requests),
        server(|used| used.commands),
        format!("{} + {}", server(|used| used.bytes_in), server(|used| used.bytes_out)),
    ]);
    cells
}

/// lockkit on all backends, with what it promises there.
pub(super) fn side_by_side(report: &Report, style: TableStyle) -> Table {
    let header = [
        "backend",
        "W1 pairs/s",
        "W2 pairs/s",
        "W3 pairs/s",
        "W3H handoff p50 / p99 us",
        "W4 ms",
        "W4L ms",
        "W5 ns",
        "W7 ms after expiry",
        "W8 s (bound)",
        "W9 buyers/s",
        "waiters",
        "tokens rise",
        "a lost server",
    ];
    let mut table = table(style, &header);
    for backend in &report.backends {
        table.add_row(side(backend));
    }
    table
}

fn side(report: &BackendReport) -> Vec<String> {
    let rate = |workload| {
        let row = report.lockkit(workload);
        row.and_then(|row| row.median(|run| Some(run.per_second))).map_or_else(dash, number)
    };
    let time = |workload| {
        let row = report.lockkit(workload);
        row.and_then(|row| row.median(|run| run.compared(ComparedBy::Elapsed))).map_or_else(dash, number)
    };
    let handoff = |of: fn(&Percentiles) -> u64| {
        let row = report.lockkit(Workload::W3H);
        let median = row.and_then(|row| row.median(|run| Some(of(run.handoff.as_ref()?) as f64)));
        median.map_or_else(dash, number)
    };
    let promises = &report.promises;
    vec![
        report.backend.name().to_owned(),
        rate(Workload::W1),
        rate(Workload::W2),
        rate(Workload::W3),
        format!("{} / {}", handoff(|p| p.p50), handoff(|p| p.p99)),
        time(Workload::W4),
        time(Workload::W4L),
        spread(report.reentry.iter().map(|found| found.pair_ns)),
        spread(report.loss.iter().map(|loss| loss.late_ms)),
        takeover(report),
        spread(report.sale.iter().map(|sale| sale.buyers_per_second)),
        promises.waiters.to_owned(),
        promises.tokens.to_owned(),
        promises.server_loss.to_owned(),
    ]
}

/// lockkit divided by the bare requests, and by the best peer.
pub(super) fn ratios(report: &Report, style: TableStyle) -> Table {
    let workloads = Workload::OF_ROWS;
    let names = workloads.map(|workload| workload.to_string());
    let header: Vec<&str> = ["backend"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut table = table(style, &header);
    for backend in &report.backends {
        let cells = workloads.map(|workload| {
            let Some(ours) = backend.lockkit(workload) else { return dash() };
            let to = |reference: Option<&Row>| {
                reference.and_then(|row| ours.ratio(row)).map_or_else(dash, |ratio| number(ratio.median))
            };
            format!("{} / {}", to(backend.raw_for(ours)), to(backend.best_peer_for(ours)))
        });
        table.add_row([backend.backend.name().to_owned()].into_iter().chain(cells));
    }
    table
}

fn takeover(report: &BackendReport) -> String {
    let Some(first) = report.takeover.first() else { return dash() };
    let took = spread(report.takeover.iter().map(|found| found.took_ms / 1e3));
    format!("{took} ({})", number(first.bound_ms / 1e3))
}

/// What many holds of one client cost.
pub(super) fn holds(report: &Report, style: TableStyle) -> Option<Table> {
    let header = [
        "backend",
        "holds",
        "requests/s",
        "client, % of a core",
        "servers, % of a core",
        "client, bytes per hold",
        "servers, bytes per hold",
        "lost",
    ];
    let mut table = table(style, &header);
    for backend in &report.backends {
        for holds in &backend.holds {
            let some = |value: Option<f64>| value.map_or_else(dash, number);
            // The memory of a few holds is that of the allocator.
            let bytes = |value: Option<f64>| some(value.filter(|_| holds.count >= 1_000));
            table.add_row([
                backend.backend.name().to_owned(),
                holds.count.to_string(),
                some(holds.requests_per_second),
                number(holds.client_core * 100.0),
                some(holds.server_core.map(|core| core * 100.0)),
                bytes(Some(holds.client_bytes)),
                bytes(holds.server_bytes),
                holds.lost.to_string(),
            ]);
        }
    }
    (!table.is_empty()).then_some(table)
}

fn table(style: TableStyle, header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(style).set_header(header.iter().copied());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn spread(values: impl Iterator<Item = f64>) -> String {
    Spread::of(values).map_or_else(dash, |spread| spread.to_string())
}

fn dash() -> String {
    "-".to_owned()
}
