//! Which mutations to try.

use std::{path::PathBuf, str::FromStr};

use anyhow::{Context, Error, Result, ensure};

use super::patch::Patch;

/// Which mutations to try; by default all.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Selection {
    /// Names of patches, without `.patch`; default: all.
    pub(crate) names: Vec<String>,
    /// The folder of the mutations.
    #[arg(long, default_value = "xtask/mutations")]
    pub(crate) folder: PathBuf,
    /// Tries only a part of them, such as `2/7`: the second of seven parts.
    #[arg(long, value_name = "PART/PARTS")]
    pub(crate) shard: Option<Shard>,
    /// Tries at most this many, selected at random.
    #[arg(long, value_name = "COUNT")]
    pub(crate) sample: Option<usize>,
    /// The seed of the sample; default: a different one each time.
    #[arg(long, requires = "sample")]
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
            let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
            println!("sample of {count}, --seed {seed}");
            chosen = draw(&chosen, count, seed);
        }
        Ok(chosen)
    }
}

/// Returns `count` random items, in their order.
fn draw<T: Copy>(items: &[T], count: usize, seed: u64) -> Vec<T> {
    let mut drawn = fastrand::Rng::with_seed(seed).choose_multiple(items.iter().enumerate(), count);
    drawn.sort_unstable_by_key(|(place, _)| *place);
    drawn.into_iter().map(|(_, item)| *item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_draws_the_same_sample() {
        let items: Vec<u32> = (0..100).collect();
        let drawn = |count, seed| draw(&items, count, seed);
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
