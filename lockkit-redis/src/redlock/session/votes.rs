//! Counting the votes of the nodes. Pure.

use lockkit_core::FencingToken;

use crate::{
    error::RequestError,
    redlock::{
        nodes::{NodeFault, majority},
        wire::ClaimReply,
    },
};

/// One node's reply to a request.
pub(super) type Vote = Result<ClaimReply, RequestError>;

/// The votes on one request, by node.
#[derive(Debug)]
pub(super) struct Votes {
    votes: Vec<Option<Vote>>,
}

/// The outcome of an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskOutcome {
    /// Further votes may still decide.
    Undecided,
    /// A majority replied with the same value, which is the token.
    Agreed(FencingToken),
    /// A majority granted, with different counters. The token is above them all and must be written back.
    NeedsWriteBack(FencingToken),
    /// No majority can grant any more.
    NoMajority,
}

impl Votes {
    pub(super) fn new(nodes: usize) -> Self {
        Self { votes: vec![None; nodes] }
    }

    /// Returns the votes for a write-back. Nodes that did not grant keep their vote; those that have not replied count
    /// as silent.
    pub(super) fn for_write_back(asked: &Self) -> Self {
        let votes = asked.votes.iter().map(|vote| match vote {
            Some(Ok(ClaimReply::Mine(_))) => None,
            None => Some(Err(RequestError::no_reply())),
            other => other.clone(),
        });
        Self { votes: votes.collect() }
    }

    pub(super) fn record(&mut self, node: usize, vote: Vote) {
        if let Some(slot) = self.votes.get_mut(node) {
            *slot = Some(vote);
        }
    }

    fn majority(&self) -> usize {
        majority(self.votes.len())
    }

    fn missing(&self) -> usize {
        self.votes.iter().filter(|vote| vote.is_none()).count()
    }

    fn replies(&self) -> impl Iterator<Item = (usize, ClaimReply)> {
        let reply = |(node, vote): (usize, &Option<Vote>)| match vote {
            Some(Ok(reply)) => Some((node, *reply)),
            _ => None,
        };
        self.votes.iter().enumerate().filter_map(reply)
    }

    fn counters(&self) -> impl Iterator<Item = u64> {
        self.replies().filter_map(|(_, reply)| match reply {
            ClaimReply::Mine(counter) => Some(counter),
            _ => None,
        })
    }

    /// Returns the nodes where the claim has the lock.
    pub(super) fn owned_nodes(&self) -> Vec<usize> {
        self.replies()
            .filter(|(_, reply)| matches!(reply, ClaimReply::Mine(_)))
            .map(|(node, _)| node)
            .collect()
    }

    pub(super) fn is_owned_by_majority(&self) -> bool {
        self.counters().count() >= self.majority()
    }

    /// Returns whether no majority can grant any more.
    fn is_majority_impossible(&self) -> bool {
        self.counters().count() + self.missing() < self.majority()
    }

    /// Returns whether no majority can have the claim: too few nodes have it or did not reply.
    pub(super) fn is_lost(&self) -> bool {
        let unknown = self.votes.iter().filter(|vote| !matches!(vote, Some(Ok(_)))).count();
        self.counters().count() + unknown < self.majority()
    }

    /// Returns whether no further vote on a write-back matters.
    pub(super) fn is_write_back_decided(&self) -> bool {
        self.is_owned_by_majority() || (self.is_majority_impossible() && self.is_contention_decided())
    }

    /// Returns the outcome of an ask; `is_over`: no more votes will come.
    pub(super) fn ask_outcome(&self, is_over: bool) -> AskOutcome {
        let votes_for = |value: u64| self.counters().filter(|counter| *counter == value).count();
        let best = self.counters().map(|value| (votes_for(value), value)).max();
        let Some((count, value)) = best else {
            return if self.is_majority_impossible() || is_over {
                AskOutcome::NoMajority
            } else {
                AskOutcome::Undecided
            };
        };
        if count >= self.majority() {
            return AskOutcome::Agreed(FencingToken::new(value));
        }
        let may_agree = count + self.missing() >= self.majority();
        match self.counters().max() {
            Some(highest) if self.is_owned_by_majority() && (is_over || !may_agree) => {
                AskOutcome::NeedsWriteBack(FencingToken::new(highest + 1))
            }
            _ if self.is_majority_impossible() || is_over => AskOutcome::NoMajority,
            _ => AskOutcome::Undecided,
        }
    }

    /// Returns whether the lock is busy: a majority replied, not counting empty nodes, and at least one of them refused.
    pub(super) fn is_contended(&self) -> bool {
        let replied = self.replies().filter(|(_, reply)| *reply != ClaimReply::Empty).count();
        let is_refused = self.replies().any(|(_, reply)| reply == ClaimReply::Refused);
        is_refused && replied >= self.majority()
    }

    /// If no majority grants: whether further votes cannot change [`is_contended`](Self::is_contended).
    pub(super) fn is_contention_decided(&self) -> bool {
        let replied = self.replies().filter(|(_, reply)| *reply != ClaimReply::Empty).count();
        self.is_contended() || replied + self.missing() < self.majority()
    }

    /// Returns the nodes that did not take part, and why; `None` for a node that has lost its data.
    pub(super) fn faults(&self) -> Vec<NodeFault> {
        let faults = self.votes.iter().enumerate().filter_map(|(node, vote)| match vote {
            Some(Err(fault)) => Some((node, Some(fault.clone()))),
            Some(Ok(ClaimReply::Empty)) => Some((node, None)),
            _ => None,
        });
        faults.collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn silence() -> Vote {
        Err(RequestError::no_reply())
    }

    fn votes(nodes: usize, cast: &[Vote]) -> Votes {
        let mut votes = Votes::new(nodes);
        for (node, vote) in cast.iter().enumerate() {
            votes.record(node, vote.clone());
        }
        votes
    }

    fn mine(counters: &[u64]) -> Vec<Vote> {
        counters.iter().map(|counter| Ok(ClaimReply::Mine(*counter))).collect()
    }

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number)
    }

    #[test]
    fn one_value_of_a_majority_is_the_token() {
        assert_eq!(votes(3, &mine(&[7, 7])).ask_outcome(false), AskOutcome::Agreed(token(7)));
        assert_eq!(votes(5, &mine(&[9, 7, 8, 7, 7])).ask_outcome(false), AskOutcome::Agreed(token(7)));
        assert_eq!(votes(5, &mine(&[7, 7])).ask_outcome(false), AskOutcome::Undecided, "two of five");
    }

    #[test]
    fn differing_values_of_a_majority_need_a_higher_token() {
        assert_eq!(
            votes(3, &mine(&[7, 8])).ask_outcome(false),
            AskOutcome::Undecided,
            "the third may reply 7 or 8"
        );
        assert_eq!(
            votes(3, &mine(&[7, 8])).ask_outcome(true),
            AskOutcome::NeedsWriteBack(token(9)),
            "it does not reply"
        );
        assert_eq!(votes(3, &mine(&[7, 9, 8])).ask_outcome(false), AskOutcome::NeedsWriteBack(token(10)));
        assert_eq!(votes(5, &mine(&[1, 2, 3])).ask_outcome(false), AskOutcome::Undecided);
        assert_eq!(votes(5, &mine(&[1, 2, 3, 4])).ask_outcome(false), AskOutcome::NeedsWriteBack(token(5)));
    }

    #[test]
    fn no_token_without_a_majority() {
        let busy = || Ok(ClaimReply::Refused);
        assert_eq!(votes(3, &[busy()]).ask_outcome(false), AskOutcome::Undecided);
        assert_eq!(votes(3, &[busy(), busy()]).ask_outcome(false), AskOutcome::NoMajority);
        assert_eq!(votes(3, &[silence(), Ok(ClaimReply::Empty)]).ask_outcome(false), AskOutcome::NoMajority);
        let half = [Ok(ClaimReply::Mine(1)), busy(), busy()];
        assert_eq!(votes(5, &half).ask_outcome(false), AskOutcome::Undecided);
        assert_eq!(votes(5, &half).ask_outcome(true), AskOutcome::NoMajority);
    }

    #[test]
    fn silence_is_not_contention() {
        let busy = || Ok(ClaimReply::Refused);
        assert!(votes(3, &[busy(), Ok(ClaimReply::Mine(1)), silence()]).is_contended());
        assert!(!votes(3, &[busy(), silence(), silence()]).is_contended());
        assert!(!votes(3, &[busy(), Ok(ClaimReply::Empty), silence()]).is_contended());
        assert!(!votes(3, &[Ok(ClaimReply::Mine(1)), Ok(ClaimReply::Mine(1)), silence()]).is_contended());
        assert_eq!(votes(3, &[busy(), Ok(ClaimReply::Empty), silence()]).faults().len(), 2);
    }

    #[test]
    fn write_of_a_holder_is_refused_only_if_no_majority_can_have_its_lock() {
        let refused = || Ok(ClaimReply::Refused);
        let mine = || Ok(ClaimReply::Mine(0));
        assert!(votes(3, &[refused(), refused()]).is_lost());
        assert!(votes(3, &[refused(), Ok(ClaimReply::Empty), mine()]).is_lost(), "as in a heartbeat");
        for open in
            [vec![refused()], vec![refused(), silence(), mine()], vec![silence(), refused(), silence()]]
        {
            assert!(!votes(3, &open).is_lost(), "{open:?}");
        }
    }

    #[test]
    fn contention_needs_replies_of_a_majority() {
        let busy = || Ok(ClaimReply::Refused);
        assert!(!votes(3, &[silence(), busy()]).is_contention_decided(), "the third decides");
        assert!(votes(3, &[silence(), busy(), busy()]).is_contention_decided());
        assert!(votes(3, &[silence(), silence()]).is_contention_decided(), "nothing more can be known");
        assert!(!votes(5, &[silence(), silence(), busy(), busy()]).is_contention_decided());
        assert!(votes(5, &[busy(), busy(), busy()]).is_contention_decided());
    }

    /// Else a busy lock would be reported as one without a majority.
    #[test]
    fn failed_write_back_goes_on_until_it_is_known_why() {
        let busy = || Ok(ClaimReply::Refused);
        let ours = || Ok(ClaimReply::Mine(1));
        let mut written = Votes::for_write_back(&votes(5, &[ours(), ours(), ours(), busy(), silence()]));
        written.record(0, busy());
        assert!(!written.is_write_back_decided() && !written.is_contended(), "no majority has replied");
        written.record(1, ours());
        assert!(written.is_write_back_decided() && written.is_contended());
    }

    #[test]
    fn silent_and_empty_nodes_are_not_contention_in_a_write_back() {
        let busy = || Ok(ClaimReply::Refused);
        let ours = || [Ok(ClaimReply::Mine(1)), Ok(ClaimReply::Mine(2)), Ok(ClaimReply::Mine(2))];
        for (rest, is_contended, faults) in [
            (vec![busy(), busy()], true, 1),
            (vec![silence(), Ok(ClaimReply::Empty)], false, 3),
            (vec![silence()], false, 3),
            (vec![busy(), silence()], true, 2),
        ] {
            let asked = votes(5, &[ours().into(), rest.clone()].concat());
            let mut written = Votes::for_write_back(&asked);
            assert_eq!(asked.owned_nodes(), [0, 1, 2]);
            [Ok(ClaimReply::Mine(3)), Ok(ClaimReply::Mine(3)), silence()]
                .into_iter()
                .enumerate()
                .for_each(|(node, vote)| written.record(node, vote));
            assert_eq!((written.is_contended(), written.faults().len()), (is_contended, faults), "{rest:?}");
        }
    }

    proptest! {
        #[test]
        fn token_is_never_below_a_counter_of_a_majority(
            counters in proptest::collection::vec(0_u64..4, 0..=5),
            is_over in any::<bool>(),
        ) {
            let votes = votes(5, &mine(&counters));
            match votes.ask_outcome(is_over) {
                AskOutcome::Agreed(found) => {
                    let count = counters.iter().filter(|counter| **counter == found.get()).count();
                    prop_assert!(count >= 3);
                }
                AskOutcome::NeedsWriteBack(found) => {
                    prop_assert!(counters.len() >= 3);
                    prop_assert!(counters.iter().all(|counter| *counter < found.get()));
                }
                AskOutcome::NoMajority => prop_assert!(counters.len() < 3 && is_over),
                AskOutcome::Undecided => prop_assert!(!is_over && counters.len() < 5),
            }
        }
    }
}
