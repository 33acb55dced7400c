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

/// The ranks that occur in a domain, a bit for each.
type Ranks = u64;

/// A value that contains ranks.
pub(crate) trait Ranked {
    /// Visits every rank with its domain, always in the same order.
    fn each_rank(&mut self, visit: &mut impl FnMut(Domain, &mut Rank));
}

/// Replaces all ranks by the smallest ones in the same order. Returns the highest rank of each domain.
pub(crate) fn compress(ranked: &mut impl Ranked) -> [Rank; DOMAINS_MAX] {
    let mut occurring: [Ranks; DOMAINS_MAX] = [0; DOMAINS_MAX];
    ranked.each_rank(&mut |domain, rank| {
        assert!(u32::from(*rank) < Ranks::BITS, "a rank has no bit");
        occurring[domain] |= 1 << *rank;
    });
    // A rank becomes the number of those that occur and are not above it; 0 does not count.
    let counted = occurring.map(|ranks| ranks & !1);
    ranked.each_rank(&mut |domain, rank| *rank = (counted[domain] << (63 - *rank)).count_ones() as Rank);
    counted.map(|ranks| ranks.count_ones() as Rank)
}
