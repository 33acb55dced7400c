//! Numbers of which only the order matters.
//!
//! Revisions and tokens grow without end, but the protocols only compare them. So each state is stored with ranks in
//! their place: states that differ only by the size of these numbers are one state.

/// A number of which only the order matters. 0 means none and stays 0.
pub(crate) type Rank = u8;

/// A set of numbers that are compared with each other.
pub(crate) type Domain = usize;

/// Maximum number of domains in a state.
const DOMAINS_MAX: usize = 8;

/// Maximum number of ranks in a domain.
const RANKS_MAX: usize = 64;

/// A value that contains ranks.
pub(crate) trait Ranked {
    /// Visits every rank with its domain, always in the same order.
    fn each_rank(&mut self, visit: &mut dyn FnMut(Domain, &mut Rank));
}

/// Replaces all ranks by the smallest ones in the same order. Returns the highest rank of each domain.
pub(crate) fn compress(ranked: &mut impl Ranked) -> [Rank; DOMAINS_MAX] {
    let mut ranks = [[0; RANKS_MAX]; DOMAINS_MAX];
    ranked.each_rank(&mut |domain, rank| ranks[domain][usize::from(*rank)] = 1);
    let mut highest = [0; DOMAINS_MAX];
    for (ranks, highest) in ranks.iter_mut().zip(&mut highest) {
        ranks[0] = 0;
        for rank in ranks.iter_mut().filter(|rank| **rank > 0) {
            *highest += 1;
            *rank = *highest;
        }
    }
    ranked.each_rank(&mut |domain, rank| *rank = ranks[domain][usize::from(*rank)]);
    highest
}
