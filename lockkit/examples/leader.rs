//! Nodes of a service of which one leads: each campaigns, works while it leads, and shows who leads.
//!
//! Start it in three terminals, each with a name of its own:
//!
//! ```text
//! cargo run -p lockkit --features redis --example leader -- 'redis://127.0.0.1:6379?ttl=3s' node-1
//! ```
//!
//! Then end the leader. After Ctrl-C or `kill -9` the next one leads after about a ttl, after `kill` (SIGTERM) at once.
//! Stop it with Ctrl-Z for longer than the ttl, and continue it with `fg`: the first thing it does is to notice its loss.
//!
//! | line | this node |
//! |---|---|
//! | `LEAD token time` | leads now |
//! | `TICK token time` | does a piece of the leader's work |
//! | `LOST token time` | leads no longer, and campaigns again |
//! | `SEEN token value time` | sees this leader |
//! | `NOBODY time` | sees that nobody leads |
//!
//! Times are microseconds of the boot clock, which all processes of a machine share.

use std::{env, time::Duration};

use anyhow::{Result, bail};
use lockkit::{BootInstant, Clock, Election, Leadership, Observer};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

/// The pause between two pieces of work.
const TICK: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [url, name] = &arguments[..] else { bail!("usage: leader URL NAME") };
    run(url, name).await
}

/// Takes part in the election until SIGTERM.
pub(crate) async fn run(url: &str, name: &str) -> Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    let client = lockkit::connect(url).await?;
    let election = client.election("scheduler")?;
    let ended = tokio::select! {
        // In this order: after a pause, a node notices its own loss before it sees the next leader.
        biased;
        ended = campaign(&election, name) => ended,
        ended = observe(election.observe()) => ended,
        _ = terminated.recv() => Ok(()),
    };
    // `select!` has dropped the work and then the leadership. Without this line, the next node would wait for the ttl.
    client.close().await?;
    ended
}

/// Leads whenever this node is elected. Others see `name`; a service would put its address here.
async fn campaign(election: &Election, name: &str) -> Result<()> {
    loop {
        let leadership = election.campaign(name).await?;
        println!("LEAD {} {}", leadership.token(), now());
        // Drops the work at its await when the leadership is lost.
        if let Err(lost) = leadership.run(work(&leadership)).await {
            println!("LOST {} {}", leadership.token(), now());
            eprintln!("{name}: {:#}", lost.into_error());
        }
    }
}

/// What only the leader may do.
async fn work(leadership: &Leadership) {
    let mut ticks = interval(TICK);
    // After a pause, one tick, not all that were missed.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // The clock first: this node led at that time, even if the process is stopped right after the check.
        let time = now();
        if !leadership.is_leader() {
            return;
        }
        // No check helps against a stop right here. So send the token with each write, and let the store refuse those
        // with a token lower than the highest it has seen: see `lockkit::Fence`.
        println!("TICK {} {time}", leadership.token());
    }
}

/// Shows who leads.
async fn observe(mut leaders: Observer) -> Result<()> {
    // An error is the last item. Outages of the store are not errors: the observation continues after them.
    while let Some(leader) = leaders.next().await {
        match leader? {
            Some(leader) => println!("SEEN {} {} {}", leader.token, leader.value, now()),
            None => println!("NOBODY {}", now()),
        }
    }
    Ok(())
}

/// Returns the time since the machine was started, in microseconds.
fn now() -> u128 {
    Clock::boot().now().since(BootInstant::from_start(Duration::ZERO)).as_micros()
}
