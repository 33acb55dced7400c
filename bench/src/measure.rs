//! Runs the steps of a backend on servers of its own.

use std::{ffi::OsString, time::Duration};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    backend::{Backend, Server},
    child::{Child, Problem},
    job::{Job, RowResult},
    probe::{ConnectArguments, holds, loss, reentry, sale, takeover},
    report::{BackendReport, PromiseTexts, Row},
    results::Measured,
    steps::{Plan, RowSpec, Step, Task},
    workload::Workload,
};

/// Longest time to connect all clients and, where they queue, to queue.
const READY_MAX: Duration = Duration::from_secs(90);

/// Longest time from the end of a run, or the start of one in which each acquires once, to its result.
const RESULT_MAX: Duration = Duration::from_secs(75);

/// The ttl where an expiry is waited for.
const SHORT_TTL: Duration = Duration::from_secs(3);

/// The ttl where none is.
const LONG_TTL: Duration = Duration::from_secs(10);

/// The longest run of W5: it has no noise of a store.
const REENTRY_MILLIS_MAX: u64 = 500;

/// The steps of one backend.
pub(crate) struct BackendRun<'a> {
    pub(crate) backend: Backend,
    pub(crate) plan: &'a Plan,
    pub(crate) steps: Vec<Step>,
    /// How long a timed run lasts.
    pub(crate) millis: u64,
}

/// Shows what runs, and how much time is left.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new(total: Duration) -> Result<Self> {
        let bar = ProgressBar::new(total.as_millis() as u64);
        bar.set_style(ProgressStyle::with_template(
            "{bar:30} {percent:>3} %  {elapsed} gone, about {eta} left  {msg}",
        )?);
        bar.enable_steady_tick(Duration::from_secs(1));
        Ok(Self(bar))
    }

    fn begin(&self, backend: Backend, step: &Step) {
        self.0.set_message(format!("{} {step}", backend.name()));
    }

    fn end(&self, cost: Duration) {
        self.0.inc(cost.as_millis() as u64);
    }

    pub(crate) fn close(&self) {
        self.0.finish_and_clear();
    }
}

impl BackendRun<'_> {
    pub(crate) async fn run(&self, progress: &Progress) -> Result<BackendReport> {
        let server = Server::start(self.backend).with_context(|| format!("start {}", self.backend.name()))?;
        let connection = self.connection(&server, SHORT_TTL);
        connection.set_up(self.backend).await.context("set the servers up")?;
        let client = connection.open().await.context("connect lockkit")?;
        let promises = PromiseTexts::of(&client.promises());
        client.close().await?;
        let mut report = BackendReport::new(self.backend, server.conditions(), promises);
        for step in &self.steps {
            progress.begin(self.backend, step);
            match &step.task {
                Task::Row(spec, size) => self.row(&server, &mut report, step, spec, *size).await,
                _ => {
                    if let Err(problem) = self.lockkit_alone(&server, &mut report, step).await {
                        report.problems.push((step.workload, problem));
                    }
                }
            }
            progress.end(self.plan.cost(step, self.millis));
        }
        Ok(report)
    }

    fn connection(&self, server: &Server, ttl: Duration) -> ConnectArguments {
        ConnectArguments::new(self.backend, &server.addresses(), ttl)
    }

    /// Runs a row once, and notes its result. A row that had a problem in this workload does not run again.
    async fn row(
        &self,
        server: &Server,
        report: &mut BackendReport,
        step: &Step,
        spec: &RowSpec,
        size: usize,
    ) {
        let rows = &mut report.rows;
        let is_same = |row: &Row| row.workload == step.workload && row.size == size && row.name == spec.name;
        let place = rows.iter().position(is_same).unwrap_or_else(|| {
            let (name, kind) = (spec.name.clone(), spec.kind);
            rows.push(Row { workload: step.workload, size, name, kind, runs: Vec::new(), problem: None });
            rows.len() - 1
        });
        if rows[place].problem.is_some() {
            return;
        }
        let settle = self.plan.settle(size).as_millis() as u64;
        let job = step.workload.job(&spec.job, server.addresses(), size, self.millis, settle);
        let run = match run_row(server, spec, &job).await {
            Ok(measured) => Some(measured),
            Err(problem) => {
                rows[place].problem = Some(problem);
                None
            }
        };
        rows[place].runs.push(run);
    }

    async fn lockkit_alone(
        &self,
        server: &Server,
        report: &mut BackendReport,
        step: &Step,
    ) -> Result<(), Problem> {
        let connection = self.connection(server, SHORT_TTL);
        match (&step.task, step.workload) {
            (Task::Holds(count), _) => {
                let ttl = self.plan.holds_ttl();
                let connection = self.connection(server, ttl);
                let millis = ttl.as_millis() as u64;
                report.holds.push(holds::measure(server, connection, *count, millis).await?);
            }
            (_, Workload::W5) => {
                let millis = self.millis.min(REENTRY_MILLIS_MAX);
                report.reentry.push(reentry::measure(connection, millis).await?);
            }
            (_, Workload::W7) => report.loss.push(loss::measure(self.backend, SHORT_TTL).await?),
            (_, Workload::W8) => {
                let found = takeover::measure(self.backend, connection, SHORT_TTL).await?;
                report.takeover.push(found);
            }
            _ => {
                // Nothing is meant to expire.
                let connection = self.connection(server, LONG_TTL);
                report.sale.push(sale::measure(connection).await?);
            }
        }
        Ok(())
    }
}

async fn run_row(server: &Server, spec: &RowSpec, job: &Job) -> Result<Measured, Problem> {
    let mut child = match &spec.peer {
        None => Child::own("row", job)?,
        Some(peer) => {
            let mut command: Vec<OsString> = peer.command().map_err(Problem::Missing)?;
            command.push(serde_json::to_string(job).context("the job")?.into());
            Child::start(&command)?
        }
    };
    child.ready(READY_MAX).await?;
    let before = server.usage()?;
    child.go().await?;
    let result: RowResult =
        child.result(RESULT_MAX + Duration::from_millis(job.millis.unwrap_or_default())).await?;
    let used = server.usage()?.zip(before).map(|(after, before)| after - before);
    child.end().await?;
    Ok(Measured::new(result, used)?)
}
