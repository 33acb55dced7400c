//! The task that keeps a session open: opening, heartbeats, losses, deadlines, and a new session after a lost one.
//!
//! Failure cases:
//!
//! * A heartbeat is not answered, or not for every hold: the next one follows after a quarter of the interval, and the
//!   clock decides.
//! * The deadline passes, also while the machine is suspended or the task is not run: the session is given up, and an
//!   answer that comes later does not revive it. The clock is read after every event.
//! * The store reports the end of the session or of a hold: lost at once.
//! * Opening takes most of the ttl: the session is renewed before it is used, or discarded.
//! * The client closes while a session is being opened: a task closes it once it is open.
//! * The store ends every session at once: the pauses grow.
//! * A log subscriber or a metrics recorder panics at a report: the session is kept ([`caught`](mod@super::caught)).

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::task::JoinHandle;
use tracing::{Instrument, Span, debug, debug_span, info, warn};

use super::{
    ConnectPolicy, Keeper, active_session::ActiveSession, caught, caught::contained,
    closing::close_once_open, loss::LossReason, panicked,
};
use crate::{
    Error, ErrorKind, Result, Status,
    backend::{Lifetime, Loss, Renewal, Renewals, RetryPauses, retry_pauses},
    limits::{CLOCK_READ_PAUSE_MAX, RETRY_PAUSE_MIN},
    metrics::{self, Moment},
};

/// Keeps a session open for one client. Dropping it closes the client (see [`closing`](super::closing)).
pub(super) struct SessionTask {
    pub(super) keeper: Arc<Keeper>,
    /// For the first session.
    connect_policy: ConnectPolicy,
    /// Time limit for ending the sessions of a closing client; set when the task notices the close.
    pub(super) close_until: OnceLock<tokio::time::Instant>,
}

enum OpenOutcome {
    Opened(Arc<ActiveSession>),
    /// The client closes. If a session was being opened, a task closes it once it is open.
    Closing(Option<JoinHandle<bool>>),
}

/// Why a session is not kept any longer.
enum SessionEnd {
    Lost(LossReason),
    Closing,
}

enum Event {
    Lost(Loss),
    HeartbeatAnswered(Renewals),
    HeartbeatDue,
    HeartbeatRequested,
    ClockCheck,
}

impl SessionTask {
    pub(super) fn new(keeper: Arc<Keeper>, connect_policy: ConnectPolicy) -> Self {
        Self { keeper, connect_policy, close_until: OnceLock::new() }
    }

    /// Runs from the first session to the end of the client.
    pub(super) async fn run(self) {
        let keeper = &self.keeper;
        let mut first = true;
        let mut pauses = retry_pauses();
        // Sessions that are being closed: lost ones, and one that was still being opened when the client closed.
        let mut closing = Vec::new();
        let outcome = loop {
            let active = match self.open_session(first, &mut pauses).await {
                Ok(OpenOutcome::Opened(active)) => active,
                Ok(OpenOutcome::Closing(unopened)) => {
                    closing.extend(unopened);
                    break self.close_without_session(closing).await;
                }
                Err(error) => return self.refuse(error, closing).await,
            };
            if let Err(error) = self.renew_if_late(&active).await {
                let scheme = keeper.info.scheme;
                contained(|| warn!(scheme, error = format_args!("{error:#}"), "session opened too late"));
                self.add_closing(&mut closing, &active);
                if first && self.is_final(&error) {
                    return self.refuse(error, closing).await;
                }
                keeper.current.set_not_opened(error);
                self.pause(&mut pauses).await;
                continue;
            }
            first = false;
            let opened_at = active.armed_at();
            metrics::session_opened(keeper.info.scheme);
            keeper.current.set_open(&active);
            match self.keep_session(&active).await {
                SessionEnd::Closing => break self.close_session(&active, closing).await,
                SessionEnd::Lost(why) => {
                    let scheme = keeper.info.scheme;
                    contained(|| warn!(scheme, reason = why.label(), "session lost: {}", why.text()));
                    metrics::session_lost(scheme, why);
                    keeper.current.set_lost();
                    active.end(why);
                    keeper.holds.lose_all(why);
                    self.add_closing(&mut closing, &active);
                    if active.armed_at() > opened_at {
                        pauses = retry_pauses();
                    } else {
                        // Lost before its first heartbeat, which counts as a failed open: without a pause, a server
                        // that ends every session at once would get an endless series of requests.
                        self.pause(&mut pauses).await;
                    }
                }
            }
        };
        keeper.current.set_closed(outcome);
    }

    /// Ends the client, which never had a session. Its callers learn of it at once; the runtime ends after what is left.
    async fn refuse(&self, error: Error, closing: Vec<JoinHandle<bool>>) {
        self.keeper.current.set_refused(error);
        // Nobody waits for the result.
        let _ = self.close_without_session(closing).await;
    }

    /// Returns whether no further attempt follows this error of an attempt to open the first session. Only a silent
    /// store is waited for: a wrong address or password is reported to the person who has just typed it.
    fn is_final(&self, error: &Error) -> bool {
        self.connect_policy == ConnectPolicy::OneAttempt || !error.is_temporary()
    }

    /// Opens a session, with growing pauses between retries.
    async fn open_session(&self, first: bool, pauses: &mut RetryPauses) -> Result<OpenOutcome> {
        let keeper = &self.keeper;
        while !keeper.closing.is_cancelled() {
            let asked_at = keeper.clock.now();
            let (backend, ttl, clock) = (Arc::clone(&keeper.backend), keeper.ttl, keeper.clock.clone());
            // A separate task: if the client closes meanwhile, the session is closed once it is open.
            let mut opening = keeper.runtime.spawn(async move { backend.open_session(ttl, clock).await });
            let opened = tokio::select! {
                biased;
                opened = &mut opening => opened.unwrap_or_else(|_| Err(panicked("open session"))),
                () = keeper.closing.cancelled() => {
                    let closing = keeper.runtime.spawn(close_once_open(opening, keeper.clock.clone()));
                    return Ok(OpenOutcome::Closing(Some(closing)));
                }
            };
            let error = match opened {
                Ok(session) => {
                    let active = ActiveSession::new(session, asked_at);
                    contained(|| info!(scheme = keeper.info.scheme, ttl = ?active.ttl(), "session opened"));
                    return Ok(OpenOutcome::Opened(Arc::new(active)));
                }
                Err(error) => error,
            };
            if first && self.is_final(&error) {
                return Err(error);
            }
            let scheme = keeper.info.scheme;
            contained(|| warn!(scheme, error = format_args!("{error:#}"), "no new session yet"));
            keeper.current.set_not_opened(error);
            self.pause(pauses).await;
        }
        Ok(OpenOutcome::Closing(None))
    }

    /// Renews a session whose open took longer than a heartbeat interval.
    ///
    /// Much of its first lifetime has passed then. Without the renewal, the session could expire while its first caller
    /// relies on it.
    async fn renew_if_late(&self, active: &ActiveSession) -> Result<()> {
        let window = self.keeper.info.heartbeat.interval(active.ttl());
        let has_lifetime = self.keeper.info.lifetime != Lifetime::Process;
        if !has_lifetime || self.keeper.clock.now().since(active.armed_at()) <= window {
            return Ok(());
        }
        let mut heartbeat = Some(self.start_heartbeat(active));
        let renewals = tokio::select! {
            biased;
            renewals = renewals_of(&mut heartbeat) => renewals,
            () = tokio::time::sleep(window) => return Err(not_renewed("no answer in time")),
            // `keep_session` ends at once then.
            () = self.keeper.closing.cancelled() => return Ok(()),
        };
        match renewals.session {
            Renewal::Renewed { armed_at } => {
                active.renewed(armed_at);
                Ok(())
            }
            Renewal::Gone => Err(not_renewed("the server has ended it")),
            Renewal::Unknown(error) => Err(error),
        }
    }

    /// Waits for one pause between two retries, or until the client closes.
    async fn pause(&self, pauses: &mut RetryPauses) {
        tokio::select! {
            () = pauses.wait() => {}
            () = self.keeper.closing.cancelled() => {}
        }
    }

    /// Renews the session until it ends.
    async fn keep_session(&self, active: &Arc<ActiveSession>) -> SessionEnd {
        let interval = self.keeper.info.heartbeat.interval(active.ttl());
        // Counts, like the deadline, from the sending of the open: its answer may have taken most of the lifetime.
        let opening = self.keeper.clock.now().since(active.armed_at());
        let mut next_heartbeat = tokio::time::Instant::now() + interval.saturating_sub(opening);
        let mut heartbeat: Option<JoinHandle<Renewals>> = None;
        loop {
            let clock_check = tokio::time::sleep(self.next_clock_check(active));
            let event = tokio::select! {
                biased;
                () = self.keeper.closing.cancelled() => return SessionEnd::Closing,
                // A hold that passes its deadline is often only the first sign of a silent store.
                why = active.abandoned() => return self.check_deadline(active).unwrap_or(SessionEnd::Lost(why)),
                loss = caught("watch the session", active.session().lost()) => match loss {
                    Ok(loss) => Event::Lost(loss),
                    // The loss that it would have reported is unknown; the next session watches again.
                    Err(_) => return SessionEnd::Lost(LossReason::BackendPanicked),
                },
                renewals = renewals_of(&mut heartbeat), if heartbeat.is_some() => Event::HeartbeatAnswered(renewals),
                () = tokio::time::sleep_until(next_heartbeat), if heartbeat.is_none() => Event::HeartbeatDue,
                // A pending heartbeat does not include the new hold, so another one follows it.
                () = active.heartbeat_requested() => Event::HeartbeatRequested,
                () = clock_check => Event::ClockCheck,
            };
            match event {
                Event::Lost(Loss::Session) => return SessionEnd::Lost(LossReason::SessionEnded),
                Event::Lost(Loss::Grant(id)) => {
                    if let Some(hold) = self.keeper.holds.get(id) {
                        hold.lose(LossReason::EntryGone);
                    }
                }
                Event::HeartbeatDue => {
                    heartbeat = Some(self.start_heartbeat(active));
                    next_heartbeat += interval;
                }
                Event::HeartbeatAnswered(renewals) => {
                    heartbeat = None;
                    if let Some(end) = self.apply_renewals(active, &renewals) {
                        return end;
                    }
                    if self.is_in_doubt(&renewals) {
                        // The rest of the ttl suffices for more than two further heartbeats.
                        let soon = tokio::time::Instant::now() + (interval / 4).max(RETRY_PAUSE_MIN);
                        // Requested, or due because this heartbeat took so long: it is not postponed.
                        next_heartbeat = next_heartbeat.min(soon);
                    }
                    // After a pause of the process one heartbeat is sent at once, not all that were missed.
                    next_heartbeat = next_heartbeat.max(tokio::time::Instant::now());
                }
                Event::HeartbeatRequested => next_heartbeat = tokio::time::Instant::now(),
                Event::ClockCheck => {}
            }
            // Checked after every event: events that always come before the timer must not postpone the check.
            if let Some(end) = self.check_deadline(active) {
                return end;
            }
        }
    }

    /// Sends one heartbeat in a separate task, which is always driven to completion and cannot be starved by this one.
    fn start_heartbeat(&self, active: &ActiveSession) -> JoinHandle<Renewals> {
        let session = Arc::clone(active.session());
        let held = self.keeper.holds.to_renew();
        let (scheme, count) = (self.keeper.info.scheme, held.len());
        let span = contained(|| debug_span!("heartbeat", scheme, held = count));
        self.keeper.runtime.spawn(
            async move {
                let sent = Moment::now();
                let renewals = session.renew(&held).await;
                metrics::heartbeat(scheme, sent, &renewals.session);
                renewals
            }
            .instrument(span.unwrap_or_else(Span::none)),
        )
    }

    fn apply_renewals(&self, active: &ActiveSession, renewals: &Renewals) -> Option<SessionEnd> {
        for (id, renewal) in &renewals.holds {
            let Some(hold) = self.keeper.holds.get(*id) else { continue };
            match renewal {
                Renewal::Renewed { armed_at } => {
                    if self.keeper.info.lifetime != Lifetime::Process {
                        metrics::margin(
                            self.keeper.info.scheme,
                            hold.deadline().since(self.keeper.clock.now()),
                        );
                    }
                    hold.renewed(*armed_at);
                }
                Renewal::Gone => hold.lose(LossReason::EntryGone),
                Renewal::Unknown(error) => {
                    let lock = hold.grant().name().as_ref();
                    contained(|| debug!(lock, error = format_args!("{error:#}"), "hold not renewed"));
                }
            }
        }
        match &renewals.session {
            Renewal::Gone => Some(SessionEnd::Lost(LossReason::SessionEnded)),
            Renewal::Renewed { armed_at } => {
                // A session whose deadline has passed is not revived, like a hold.
                if let Some(end) = self.check_deadline(active) {
                    return Some(end);
                }
                active.renewed(*armed_at);
                self.keeper.current.set_status(Status::Connected);
                None
            }
            Renewal::Unknown(error) => {
                let scheme = self.keeper.info.scheme;
                contained(|| warn!(scheme, error = format_args!("{error:#}"), "session not renewed"));
                None
            }
        }
    }

    /// Returns whether the answer leaves open if the session or a hold was renewed. The holds that were renewed do not
    /// help the others, whose deadlines may come before the next regular heartbeat can be answered.
    fn is_in_doubt(&self, renewals: &Renewals) -> bool {
        let is_unknown = |renewal: &Renewal| matches!(renewal, Renewal::Unknown(_));
        let is_held = |id| self.keeper.holds.get(id).is_some_and(|hold| hold.wants_renewal());
        let has_lifetime = self.keeper.info.lifetime != Lifetime::Process;
        is_unknown(&renewals.session)
            || has_lifetime && renewals.holds.iter().any(|(id, renewal)| is_unknown(renewal) && is_held(*id))
    }

    /// Returns the time until `check_deadline` can have a new result.
    fn next_clock_check(&self, active: &ActiveSession) -> Duration {
        let now = self.keeper.clock.now();
        let moments = [active.armed_at().after(active.ttl() / 2), active.deadline()];
        let next = moments.into_iter().map(|moment| moment.since(now)).find(|left| !left.is_zero());
        // Timers stop while the machine is suspended, the clock does not.
        next.map_or(CLOCK_READ_PAUSE_MAX, |left| left.min(CLOCK_READ_PAUSE_MAX))
    }

    /// Ends a session whose deadline has passed, and reports a silent store as `Suspect`.
    fn check_deadline(&self, active: &ActiveSession) -> Option<SessionEnd> {
        let now = self.keeper.clock.now();
        let until = active.deadline();
        if now >= until && self.keeper.info.lifetime == Lifetime::Session {
            return Some(SessionEnd::Lost(LossReason::Deadline));
        }
        if now >= active.armed_at().after(active.ttl() / 2) {
            self.keeper.current.set_status(Status::Suspect { until });
        }
        None
    }
}

fn not_renewed(why: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, "open session")
        .with_message(format!("opening it took most of the ttl, and it was not renewed: {why}"))
}

/// Waits for the results of a pending heartbeat.
async fn renewals_of(heartbeat: &mut Option<JoinHandle<Renewals>>) -> Renewals {
    let unknown = || Renewals { session: Renewal::Unknown(panicked("renew")), holds: Vec::new() };
    match heartbeat {
        Some(task) => task.await.unwrap_or_else(|_| unknown()),
        None => std::future::pending().await,
    }
}
