//! What the nodes have printed, and what must be true of it.

use std::{collections::BTreeMap, fmt, time::Duration};

use anyhow::{Context, Result, bail, ensure};

/// A process: the name of its node, and how many the node had before.
pub(crate) type Process = (&'static str, usize);

/// A line of the example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Lead(u64),
    Tick(u64),
    Lost(u64),
    /// A leader's token and value; `None`: nobody leads.
    Seen(Option<(u64, String)>),
}

/// A line, who printed it, and when by the clock of the machine.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) process: Process,
    pub(crate) line: Line,
    pub(crate) at: Duration,
}

impl Event {
    pub(crate) fn parse(process: Process, text: &str) -> Result<Self> {
        let parse = || {
            let (line, at) = text.rsplit_once(' ')?;
            let mut words = line.split(' ');
            let kind = words.next()?;
            let token = words.next().map(str::parse).transpose().ok()?;
            let line = match (kind, token, words.next()) {
                ("LEAD", Some(token), None) => Line::Lead(token),
                ("TICK", Some(token), None) => Line::Tick(token),
                ("LOST", Some(token), None) => Line::Lost(token),
                ("SEEN", Some(token), Some(value)) => Line::Seen(Some((token, value.to_owned()))),
                ("NOBODY", None, None) => Line::Seen(None),
                _ => return None,
            };
            Some(Self { process, line, at: Duration::from_micros(at.parse().ok()?) })
        };
        parse().with_context(|| format!("{process:?} printed {text:?}"))
    }

    fn led(&self) -> Option<u64> {
        match self.line {
            Line::Lead(token) => Some(token),
            _ => None,
        }
    }
}

/// One leadership.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    pub(crate) token: u64,
    pub(crate) process: Process,
    pub(crate) start: Duration,
    last_tick: Option<Duration>,
    is_lost: bool,
}

/// All events, in the order in which they were read: per process, the order in which they were printed.
#[derive(Default)]
pub(crate) struct History(Vec<Event>);

impl History {
    pub(crate) fn push(&mut self, event: Event) {
        self.0.push(event);
    }

    pub(crate) fn of(&self, process: Process) -> impl Iterator<Item = &Event> {
        self.0.iter().filter(move |event| event.process == process)
    }

    /// The leaderships in the order of their starts.
    pub(crate) fn terms(&self) -> Vec<Term> {
        let mut terms: BTreeMap<(Duration, u64), Term> = BTreeMap::new();
        let starts = self.0.iter().filter_map(|event| Some((event, event.led()?)));
        for (&Event { process, at: start, .. }, token) in starts {
            let ticks = self.of(process).filter(|event| event.line == Line::Tick(token));
            let last_tick = ticks.map(|event| event.at).max();
            let is_lost = self.of(process).any(|event| event.line == Line::Lost(token));
            terms.insert((start, token), Term { token, process, start, last_tick, is_lost });
        }
        terms.into_values().collect()
    }

    /// The leadership that began last, unless it is lost or has not worked yet.
    pub(crate) fn current(&self) -> Option<Term> {
        self.terms().pop().filter(|term| !term.is_lost && term.last_tick.is_some())
    }

    /// The first leadership after that of `token`.
    pub(crate) fn successor_of(&self, token: u64) -> Option<Term> {
        self.terms().into_iter().find(|term| term.token > token)
    }

    /// The leader that this process sees now.
    pub(crate) fn sees(&self, process: Process) -> Option<u64> {
        self.sights(process).last()?.0
    }

    /// When this process saw this leader or a later one for the first time.
    pub(crate) fn saw(&self, process: Process, token: u64) -> Option<Duration> {
        self.sights(process).find(|(leader, _)| *leader >= Some(token)).map(|(_, at)| at)
    }

    fn sights(&self, process: Process) -> impl Iterator<Item = (Option<u64>, Duration)> {
        self.of(process).filter_map(|event| match &event.line {
            Line::Seen(leader) => Some((leader.as_ref().map(|(token, _)| *token), event.at)),
            _ => None,
        })
    }

    /// Two leaders by the clock: the time from the start of a leadership to its last tick is its own. Two leaders by
    /// token: later ones have larger tokens.
    pub(crate) fn check_leaders(&self) -> Result<()> {
        let terms = self.terms();
        for pair in terms.windows(2) {
            ensure!(pair[0].token < pair[1].token, "tokens do not rise: {pair:?}");
        }
        for (number, later) in terms.iter().enumerate() {
            for earlier in &terms[..number] {
                let overlaps = earlier.last_tick.is_some_and(|last| last >= later.start);
                ensure!(!overlaps || later.last_tick.is_none(), "two lead at a time: {earlier:?}, {later:?}");
            }
        }
        Ok(())
    }

    /// No observer sees an older leader after a newer one, nor a value that is not that of its leader.
    pub(crate) fn check_observers(&self) -> Result<()> {
        let leaders: BTreeMap<u64, &str> =
            self.terms().into_iter().map(|term| (term.token, term.process.0)).collect();
        let mut newest: BTreeMap<Process, u64> = BTreeMap::new();
        for event in &self.0 {
            let Line::Seen(Some((token, value))) = &event.line else { continue };
            let newest = newest.entry(event.process).or_default();
            ensure!(*token >= *newest, "{:?} saw {token} after {newest}", event.process);
            *newest = *token;
            if let Some(leader) = leaders.get(token).filter(|leader| *leader != value) {
                bail!("{:?} saw {value} with {token}, the token of {leader}", event.process);
            }
        }
        Ok(())
    }
}

/// All events but the ticks.
impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut events: Vec<_> = self.0.iter().filter(|event| !matches!(event.line, Line::Tick(_))).collect();
        events.sort_by_key(|event| event.at);
        let start = events.first().map_or(Duration::ZERO, |event| event.at);
        for Event { process, line, at } in events {
            writeln!(f, "{:>8.3} s  {process:?} {line:?}", (*at - start).as_secs_f64())?;
        }
        Ok(())
    }
}

/// Each check finds what is wrong, in histories that differ in one line.
pub(crate) fn checks_find_what_is_wrong() -> Result<()> {
    const GOOD: [(&str, &str); 6] = [
        ("a", "LEAD 7 100"),
        ("a", "TICK 7 200"),
        ("b", "SEEN 7 a 210"),
        ("b", "LEAD 8 300"),
        ("b", "TICK 8 310"),
        ("b", "SEEN 8 b 320"),
    ];
    let history = |changed: usize, line: &'static str| -> Result<History> {
        let mut lines = GOOD;
        if let Some((_, changed)) = lines.get_mut(changed) {
            *changed = line;
        }
        let events = lines.map(|(name, line)| Event::parse((name, 0), line));
        Ok(History(events.into_iter().collect::<Result<_>>()?))
    };
    let good = history(GOOD.len(), "")?;
    good.check_leaders()?;
    good.check_observers()?;
    for (changed, line) in [(1, "TICK 7 305"), (0, "LEAD 9 100"), (0, "LEAD 8 100")] {
        ensure!(history(changed, line)?.check_leaders().is_err(), "not found: {line}");
    }
    for (changed, line) in [(5, "SEEN 6 a 320"), (2, "SEEN 9 a 210"), (2, "SEEN 7 b 210")] {
        ensure!(history(changed, line)?.check_observers().is_err(), "not found: {line}");
    }
    ensure!(Event::parse(("a", 0), "LEAD 7").is_err(), "half a line is none");
    Ok(())
}
