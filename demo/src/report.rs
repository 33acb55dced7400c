//! The report of a sale, and its checks.

use std::{collections::HashSet, time::Duration};

use anyhow::{Result, ensure};
use lockkit::FencingToken;

use crate::{BUYERS, ITEMS, sale::Outcome, stock::Books};

/// The numbers of a sale.
pub(crate) fn print(outcome: &Outcome) {
    let Outcome { books: Books { sales, stock, .. }, refused, time, .. } = outcome;
    println!("  sold            {} of {ITEMS}, {stock} left in the books", sales.len());
    println!("  orders          {}", orders(outcome).len());
    println!("  refused buyers  {refused}");
    match tokens(outcome)[..] {
        [first, .., last] => println!("  tokens          {first} to {last}"),
        _ => println!("  tokens          none"),
    }
    println!("  time            {:.1} s", time.as_secs_f64());
}

/// Prints the stale writes, or why there were none.
pub(crate) fn stale_writes(outcome: &Outcome, stopped_for: Option<Duration>, scheme: &str) {
    match stopped_for {
        Some(time) => println!(
            "  stale writes    {} refused; a service was stopped for {:.1} s between read and write",
            outcome.books.stale_writes,
            time.as_secs_f64()
        ),
        None => println!("  stale writes    none: with {scheme}: a stopped process keeps its lock"),
    }
}

/// Checks what must hold with a lock.
pub(crate) fn check(outcome: &Outcome, stopped: bool) -> Result<()> {
    let Outcome { books: Books { sales, stock, stale_writes }, bought, refused, .. } = outcome;
    ensure!(sales.len() == ITEMS as usize, "{} were sold, not {ITEMS}", sales.len());
    ensure!(*stock == 0, "{stock} are left in the books");
    let counted_down = sales.iter().map(|sale| sale.stock).eq((0..ITEMS).rev());
    ensure!(counted_down, "an item was sold twice");
    ensure!(orders(outcome).len() == sales.len(), "an order was served twice");
    ensure!(tokens(outcome).len() == sales.len(), "a sale without a token");
    let rising = tokens(outcome).is_sorted_by(|earlier, later| earlier < later);
    ensure!(rising, "the tokens do not rise strictly");
    ensure!(*bought == ITEMS && bought + refused == BUYERS, "{bought} bought, {refused} were refused");
    ensure!(
        !stopped || *stale_writes >= 1,
        "no stale write was refused, not even that of the stopped service"
    );
    println!("  ok: {ITEMS} sold, one order each, tokens strictly rising");
    Ok(())
}

fn orders(outcome: &Outcome) -> HashSet<u32> {
    outcome.books.sales.iter().map(|sale| sale.order).collect()
}

fn tokens(outcome: &Outcome) -> Vec<FencingToken> {
    outcome.books.sales.iter().filter_map(|sale| sale.token).collect()
}
