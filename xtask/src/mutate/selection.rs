//! Which mutations to try.

use std::{
    path::PathBuf,
    str::FromStr,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Error, Result, ensure};

use super::patch::Patch;

/// Which mutations to try; by default all.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    /// Their folder, below the root of the project.
    pub(crate) folder: PathBuf,
    /// Only these names; none: all.
    pub(crate) names: Vec<String>,
    /// Only this part of them.
    pub(crate) shard: Option<Shard>,
    /// At most this many of them, selected at random.
    pub(crate) sample: Option<usize>,
    /// The seed of the sample; `None`: the time of day.
    pub(crate) seed: Option<u64>,
}

/// One of several parts that together have every mutation once. Written `2/7`: the second of seven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// From 1 to `count`.
    number: usize,
    count: usize,
}

impl Shard {
    /// Keeps every `count`th item, so that neighbours, which often need the same tests, are spread over all parts.
    fn keep_part_of<T>(self, items: &mut Vec<T>) {
        let mut part = (1..=self.count).cycle();
        items.retain(|_| part.next() == Some(self.number));
    }
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (number, count) = text.split_once('/').context("not of the form `2/7`")?;
        let (number, count) = (number.parse()?, count.parse()?);
        ensure!((1..=count).contains(&number), "the parts are numbered from 1 to {count}");
        Ok(Self { number, count })
    }
}

impl Selection {
    /// Returns the selected mutations, sorted by name.
    pub(super) fn of<'a>(&self, all: &'a [Patch]) -> Result<Vec<&'a Patch>> {
        for wanted in &self.names {
            let names = || all.iter().map(|patch| patch.name.as_str()).collect::<Vec<_>>().join(", ");
            let is_known = all.iter().any(|patch| patch.name == *wanted);
            ensure!(is_known, "no mutation `{wanted}`; there are: {}", names());
        }
        let is_wanted = |patch: &&Patch| self.names.is_empty() || self.names.contains(&patch.name);
        let mut chosen: Vec<&Patch> = all.iter().filter(is_wanted).collect();
        if let Some(shard) = self.shard {
            shard.keep_part_of(&mut chosen);
        }
        if let Some(count) = self.sample {
            let seed = self.seed.unwrap_or_else(time_of_day);
            println!("sample of {count}, --seed {seed}");
            draw(&mut chosen, count, seed);
        }
        Ok(chosen)
    }
}

fn time_of_day() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Keeps `count` random items, in their order.
fn draw<T>(items: &mut Vec<T>, count: usize, mut seed: u64) {
    while items.len() > count {
        let left = u64::try_from(items.len()).unwrap_or(u64::MAX);
        let index = usize::try_from(split_mix(&mut seed) % left).unwrap_or(0);
        items.remove(index);
    }
}

/// SplitMix64: enough for a sample that can be repeated.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_draws_the_same_sample() {
        let drawn = |count, seed| {
            let mut items: Vec<u32> = (0..100).collect();
            draw(&mut items, count, seed);
            items
        };
        assert_eq!(drawn(20, 1), drawn(20, 1));
        assert_ne!(drawn(20, 1), drawn(20, 2));
        assert!(drawn(20, 3).is_sorted() && drawn(20, 3).len() == 20);
        assert_eq!(drawn(200, 3).len(), 100);
    }

    #[test]
    fn shards_together_have_every_item_once() {
        let mut all = Vec::new();
        for number in 1..=7 {
            let mut items: Vec<u32> = (0..100).collect();
            Shard { number, count: 7 }.keep_part_of(&mut items);
            assert!((14..=15).contains(&items.len()) && items.is_sorted(), "{items:?}");
            all.extend(items);
        }
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn shard_is_a_number_up_to_the_count() {
        assert_eq!("7/7".parse::<Shard>().unwrap(), Shard { number: 7, count: 7 });
        assert_eq!("1/1".parse::<Shard>().unwrap(), Shard { number: 1, count: 1 });
        for wrong in ["", "2", "0/7", "8/7", "1/0", "1/", "/7", "1/7/7", "a/7", "-1/7"] {
            wrong.parse::<Shard>().expect_err(wrong);
        }
    }
}
