//! Random histories of contending clients, judged by the checkers.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Result, ensure};
use lockkit_core::{Fence, LockClient, LockName};
use tokio::time::{Instant, sleep};

use crate::{
    Case,
    case::case,
    context::Cx,
    history::{Held, Write, fenced_writes, overlaps, token_order},
};

pub(super) const CASES: &[Case] =
    &[case!(random_histories_are_exclusive_ordered_and_fenced: X1, P1 P2 P3; bugs 24 58 59)];

#[derive(Default)]
struct Recorded {
    held: Vec<Held>,
    writes: Vec<Write>,
}

async fn random_histories_are_exclusive_ordered_and_fenced(cx: Cx) -> Result<()> {
    const LOCKS: usize = 3;
    let (clients, steps) = (cx.times(8, 6), cx.times(100, 15));
    let names: Vec<LockName> = (0..LOCKS).map(|_| cx.name()).collect();
    let recorded: Arc<Vec<(Mutex<Recorded>, Fence)>> =
        Arc::new((0..LOCKS).map(|_| Default::default()).collect());
    let start = Instant::now();
    let mut tasks = Vec::new();
    for number in 0..clients {
        let (client, cx, names) = (cx.client().await?, cx.clone(), names.clone());
        let recorded = Arc::clone(&recorded);
        tasks.push(tokio::spawn(async move {
            for _ in 0..steps {
                let lock = cx.random(LOCKS as u64) as usize;
                let patience = Duration::from_millis(cx.random(300));
                let held =
                    step(&client, &names[lock], patience, number as u64, start, &recorded[lock]).await?;
                recorded[lock].0.lock().unwrap_or_else(PoisonError::into_inner).held.extend(held);
                // Chance decides who comes next.
                sleep(cx.part_of(Duration::from_millis(5))).await;
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    for (recorded, _) in recorded.iter() {
        let recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(!recorded.held.is_empty(), "nobody was ever granted the lock");
        for faults in [overlaps(&recorded.held), token_order(&recorded.held), fenced_writes(&recorded.writes)]
        {
            ensure!(faults.is_empty(), "{} faults; the first: {}", faults.len(), faults[0]);
        }
    }
    Ok(())
}

/// Takes the lock, or leaves when it takes too long; writes under it.
async fn step(
    client: &LockClient,
    name: &LockName,
    patience: Duration,
    number: u64,
    start: Instant,
    (recorded, fence): &(Mutex<Recorded>, Fence),
) -> Result<Option<Held>> {
    let asked = start.elapsed();
    let guard = match client.lock(name.as_str())?.acquire_timeout(patience).await {
        Ok(Some(guard)) => guard,
        Ok(None) => return Ok(None),
        // In so short a time a loaded store may not have said a word.
        Err(error) if error.is_temporary() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let granted = start.elapsed();
    // The hold lasts: an overlap of two would be seen.
    sleep(Duration::from_millis(3)).await;
    {
        let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let applied = fence.admit(guard.token());
        recorded.writes.push(Write { token: guard.token().get(), applied });
        ensure!(applied, "the write of a holder was refused");
    }
    let (token, ended) = (guard.token().get(), start.elapsed());
    guard.release().await?;
    let lock = name.to_string();
    Ok(Some(Held { lock, client: number, token, asked, queued: None, granted, ended }))
}
