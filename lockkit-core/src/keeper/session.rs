//! Keeping one session open: beats, losses, deadlines, and a new session after a lost one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{Notify, SetOnce},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, debug_span, info, warn};

use super::{
    Keeper, caught,
    closing::{LastWord, close_once_open},
    deadline::deadline,
    panicked,
    releases::Releases,
};
use crate::{
    BootInstant, Error, ErrorKind, Result, Status,
    backend::{Beat, Lifetime, Loss, Renewal, Session, retry_pauses},
    limits::{CLOCK_LOOK_PAUSE_MAX, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN},
    sync::{Mutex, lock},
};

/// What the tasks of a client see of its session.
#[derive(Clone, Debug)]
pub(super) enum Current {
    Opening,
    Open(Arc<Live>),
    /// For good, with what `close` answers.
    Closed(Result<()>),
}

/// An open session.
#[derive(Debug)]
pub(super) struct Live {
    session: Arc<dyn Session>,
    ttl: Duration,
    /// Start of the lifetime that the last acknowledged beat proved.
    armed_at: Mutex<BootInstant>,
    /// A beat is wanted at once.
    hurry: Notify,
    /// The session is over, for this client at least.
    ended: CancellationToken,
    /// Why its own client wants it to end, where holds live and die with the session: a hold has passed its deadline, or
    /// an entry cannot be taken back.
    abandoned: SetOnce<&'static str>,
    /// The releases that the store has not confirmed.
    releases: Releases,
}

/// What the opening of a session comes to.
enum Opened {
    Session(Arc<Live>),
    /// The client closes; a session that was still being opened is closed by this task once it is open.
    Closing(Option<JoinHandle<bool>>),
}

/// Why a session is kept no longer.
enum Over {
    Lost(&'static str),
    Closing,
}

impl Live {
    pub(super) fn session(&self) -> &Arc<dyn Session> {
        &self.session
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(super) fn releases(&self) -> &Releases {
        &self.releases
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    pub(super) fn abandon(&self, why: &'static str) {
        // The first reason is the one that is told.
        let _ = self.abandoned.set(why);
    }

    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    /// Asks for a beat at once: one hold may not live until the next.
    pub(super) fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// When the server has ended the session, had it heard nothing since the last acknowledged beat; a beat whose
    /// answer was lost may have prolonged it by up to one ttl.
    pub(super) fn expiry(&self) -> BootInstant {
        self.armed_at().after(self.ttl).after(self.ttl)
    }

    fn armed_at(&self) -> BootInstant {
        *lock(&self.armed_at)
    }

    fn renewed(&self, armed_at: BootInstant) {
        let mut latest = lock(&self.armed_at);
        *latest = latest.max(armed_at);
    }
}

/// The session task: from the first session to the end of the client. Takes its last word along, so that it is said
/// also when the task never runs.
pub(super) async fn keep_sessions(last_word: LastWord) {
    let keeper = &last_word.0;
    let mut first = true;
    let mut pauses = retry_pauses();
    // The sessions that are on their way out: the last one that was lost, and one whose opening was not awaited.
    let mut endings = Vec::new();
    let outcome = loop {
        let live = match keeper.open_session(first, &mut pauses).await {
            Ok(Opened::Session(live)) => live,
            Ok(Opened::Closing(unopened)) => {
                endings.extend(unopened);
                break keeper.end_of(endings).await;
            }
            Err(error) => break Err(error),
        };
        if let Err(error) = keeper.freshen(&live).await {
            warn!(error = format_args!("{error:#}"), "session opened too late");
            endings = vec![keeper.start_closing(&live)];
            if first {
                break Err(error);
            }
            keeper.pause(&mut pauses).await;
            continue;
        }
        first = false;
        let opened_at = live.armed_at();
        *lock(&keeper.granted_ttl) = live.ttl;
        // The status first: `build` returns as soon as the session is current, and it is connected by then.
        keeper.status.send_replace(Status::Connected);
        keeper.current.send_replace(Current::Open(Arc::clone(&live)));
        match keeper.keep(&live).await {
            Over::Closing => break keeper.end(&live).await,
            Over::Lost(why) => {
                warn!(why, "session lost");
                keeper.current.send_replace(Current::Opening);
                keeper.status.send_replace(Status::Lost);
                live.end();
                keeper.lose_all(why);
                endings = vec![keeper.start_closing(&live)];
                if live.armed_at() > opened_at {
                    pauses = retry_pauses();
                } else {
                    // Over before its first beat: one more failed try, or a server that ends every session at once
                    // would be asked for the next one without end.
                    keeper.pause(&mut pauses).await;
                }
            }
        }
    };
    keeper.current.send_replace(Current::Closed(outcome));
}

impl Keeper {
    /// Opens a session, again and again with growing pauses; the first one only once, so that a mistake in the
    /// configuration is told to the caller.
    async fn open_session(&self, first: bool, pauses: &mut impl Iterator<Item = Duration>) -> Result<Opened> {
        while !self.closing.is_cancelled() {
            let asked_at = self.clock.now();
            let (backend, ttl, clock) = (Arc::clone(&self.backend), self.ttl, self.clock.clone());
            // A task of its own: what it opens is not left behind when the client closes meanwhile.
            let mut opening = self.runtime.spawn(async move { backend.open_session(ttl, clock).await });
            let opened = tokio::select! {
                biased;
                opened = &mut opening => opened.unwrap_or_else(|_| Err(panicked("open session"))),
                () = self.closing.cancelled() => {
                    let closing = self.runtime.spawn(close_once_open(opening, self.clock.clone()));
                    return Ok(Opened::Closing(Some(closing)));
                }
            };
            let error = match opened {
                Ok(session) => {
                    let live = Live {
                        ttl: session.ttl(),
                        session,
                        armed_at: Mutex::new(asked_at),
                        hurry: Notify::new(),
                        ended: CancellationToken::new(),
                        abandoned: SetOnce::new(),
                        releases: Releases::default(),
                    };
                    info!(scheme = self.info.scheme, ttl = ?live.ttl, "session opened");
                    return Ok(Opened::Session(Arc::new(live)));
                }
                Err(error) => error,
            };
            if first {
                return Err(error);
            }
            warn!(error = format_args!("{error:#}"), "no new session yet");
            self.pause(pauses).await;
        }
        Ok(Opened::Closing(None))
    }

    /// An open that took so long that the first beat is overdue has used up much of the session's first lifetime: the
    /// session is renewed before anybody relies on it, or it would die in the hands of the first who does.
    async fn freshen(&self, live: &Live) -> Result<()> {
        let window = self.info.beat.interval(live.ttl);
        if self.clock.now().since(live.armed_at()) <= window {
            return Ok(());
        }
        let mut beat = Some(self.start_beat(live));
        let beat = tokio::select! {
            biased;
            beat = answer_of(&mut beat) => beat,
            () = tokio::time::sleep(window) => return Err(not_renewed("no answer in time")),
            // It ends at once.
            () = self.closing.cancelled() => return Ok(()),
        };
        match beat.session {
            Renewal::Renewed { armed_at } => {
                live.renewed(armed_at);
                Ok(())
            }
            Renewal::Gone => Err(not_renewed("the server has ended it")),
            Renewal::Unknown(error) => Err(error),
        }
    }

    /// One pause between two tries, cut short when the client closes.
    async fn pause(&self, pauses: &mut impl Iterator<Item = Duration>) {
        tokio::select! {
            () = tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)) => {}
            () = self.closing.cancelled() => {}
        }
    }

    /// Renews the session until it is over.
    async fn keep(&self, live: &Arc<Live>) -> Over {
        let interval = self.info.beat.interval(live.ttl);
        // From the sending of the open, as the deadline: its answer may have taken most of the first lifetime.
        let opening = self.clock.now().since(live.armed_at());
        let mut next_beat = tokio::time::Instant::now() + interval.saturating_sub(opening);
        let mut beat: Option<JoinHandle<Beat>> = None;
        loop {
            let alarm = tokio::time::sleep(self.next_alarm(live));
            let event = tokio::select! {
                biased;
                () = self.closing.cancelled() => return Over::Closing,
                why = live.abandoned.wait() => return Over::Lost(why),
                loss = caught("watch the session", live.session.lost()) => match loss {
                    Ok(loss) => Event::Told(loss),
                    // What it would have reported is unknown; the next session watches again.
                    Err(_) => return Over::Lost("the backend panicked"),
                },
                answer = answer_of(&mut beat), if beat.is_some() => Event::Answered(answer),
                () = tokio::time::sleep_until(next_beat), if beat.is_none() => Event::BeatDue,
                // A beat that is under way does not carry the hold that is meant: another one follows it.
                () = live.hurry.notified() => Event::Hurry,
                () = alarm => Event::Alarm,
            };
            match event {
                Event::Told(Loss::Session) => return Over::Lost("the server ended the session"),
                Event::Told(Loss::Grant(id)) => {
                    if let Some(hold) = self.hold(id) {
                        hold.lose("the server said that the entry is gone");
                    }
                }
                Event::BeatDue => {
                    beat = Some(self.start_beat(live));
                    next_beat += interval;
                }
                Event::Answered(answer) => {
                    beat = None;
                    if let Some(over) = self.apply(live, &answer) {
                        return over;
                    }
                    // By a hurry, or because this one took so long: not put off.
                    let is_overdue = next_beat <= tokio::time::Instant::now();
                    if matches!(answer.session, Renewal::Unknown(_)) && !is_overdue {
                        // The rest of the ttl is for more than two further tries.
                        next_beat = tokio::time::Instant::now() + (interval / 4).max(RETRY_PAUSE_MIN);
                    } else {
                        // After a pause of the process: one beat at once, not all that were missed.
                        next_beat = next_beat.max(tokio::time::Instant::now());
                    }
                }
                Event::Hurry => next_beat = tokio::time::Instant::now(),
                Event::Alarm => {}
            }
            // After every event: one that comes in the very moment of the alarm, again and again, would put it off.
            if let Some(over) = self.look_at_clock(live) {
                return over;
            }
        }
    }

    /// One beat, as a task of its own: it is never dropped half-way, and cannot be starved by this loop.
    fn start_beat(&self, live: &Live) -> JoinHandle<Beat> {
        let session = Arc::clone(&live.session);
        let held = self.held();
        let (scheme, count) = (self.info.scheme, held.len());
        self.runtime.spawn(
            async move {
                let sent = Instant::now();
                let beat = session.renew(&held).await;
                crate::metrics::beat(scheme, sent.elapsed(), count);
                beat
            }
            .instrument(debug_span!("renew", held = count)),
        )
    }

    fn apply(&self, live: &Live, beat: &Beat) -> Option<Over> {
        for (id, renewal) in &beat.holds {
            let Some(hold) = self.hold(*id) else { continue };
            match renewal {
                Renewal::Renewed { armed_at } => {
                    if self.info.lifetime != Lifetime::Process {
                        crate::metrics::margin(self.info.scheme, hold.remaining());
                    }
                    hold.renewed(*armed_at);
                }
                Renewal::Gone => hold.lose("the server said that the entry is gone"),
                Renewal::Unknown(error) => {
                    debug!(lock = ?hold.grant().name(), error = format_args!("{error:#}"), "hold not renewed")
                }
            }
        }
        match &beat.session {
            Renewal::Gone => Some(Over::Lost("the server ended the session")),
            Renewal::Renewed { armed_at } => {
                // A session whose deadline has passed is not revived, just as a hold is not.
                if let Some(over) = self.look_at_clock(live) {
                    return Some(over);
                }
                live.renewed(*armed_at);
                self.set_status(Status::Connected);
                None
            }
            Renewal::Unknown(error) => {
                warn!(error = format_args!("{error:#}"), "session not renewed");
                None
            }
        }
    }

    /// Time to the next moment at which the clock alone changes something.
    fn next_alarm(&self, live: &Live) -> Duration {
        let now = self.clock.now();
        let moments = [live.armed_at().after(live.ttl / 2), deadline(live.armed_at(), live.ttl)];
        let next = moments.into_iter().map(|moment| moment.since(now)).find(|left| !left.is_zero());
        // Timers stop while the machine is suspended, the clock does not.
        next.map_or(CLOCK_LOOK_PAUSE_MAX, |left| left.min(CLOCK_LOOK_PAUSE_MAX))
    }

    fn look_at_clock(&self, live: &Live) -> Option<Over> {
        let now = self.clock.now();
        let until = deadline(live.armed_at(), live.ttl);
        if now >= until && self.info.lifetime == Lifetime::Session {
            return Some(Over::Lost("no renewal was acknowledged before the deadline"));
        }
        if now >= live.armed_at().after(live.ttl / 2) {
            self.set_status(Status::Suspect { until });
        }
        None
    }

    fn set_status(&self, status: Status) {
        self.status.send_if_modified(|current| std::mem::replace(current, status) != status);
    }
}

fn not_renewed(why: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, "open session")
        .with_message(format!("it took most of the ttl, and the session was not renewed: {why}"))
}

enum Event {
    Told(Loss),
    Answered(Beat),
    BeatDue,
    Hurry,
    Alarm,
}

async fn answer_of(beat: &mut Option<JoinHandle<Beat>>) -> Beat {
    let unknown = || Beat { session: Renewal::Unknown(panicked("renew")), holds: Vec::new() };
    match beat {
        Some(task) => task.await.unwrap_or_else(|_| unknown()),
        None => std::future::pending().await,
    }
}
