//! What the answers of the nodes so far amount to. Pure counting.

use lockkit_core::FencingToken;

use super::calls::Word;
use crate::error::Fault;

/// More than half.
pub(super) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// What one node has answered.
pub(super) type Answer = Result<Word, Fault>;

/// The answers to one question.
#[derive(Debug)]
pub(super) struct Tally {
    answers: Vec<Option<Answer>>,
}

/// What the answers to `ask` amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Nothing yet.
    Open,
    /// A majority has answered one and the same value: it is the token.
    Alike(FencingToken),
    /// A majority is ours, with different counters: the token is above them all, and has to be written back.
    Owned(FencingToken),
    /// No majority can be ours any more.
    Failed,
}

impl Tally {
    pub(super) fn new(nodes: usize) -> Self {
        Self { answers: vec![None; nodes] }
    }

    /// What the nodes that are not ours have answered already; those that have said nothing will say nothing in time.
    pub(super) fn of_others(asked: &Self) -> Self {
        let answers = asked.answers.iter().map(|answer| match answer {
            Some(Ok(Word::Mine(_))) => None,
            None => Some(Err(Fault::no_reply())),
            other => other.clone(),
        });
        Self { answers: answers.collect() }
    }

    pub(super) fn note(&mut self, node: usize, answer: Answer) {
        if let Some(slot) = self.answers.get_mut(node) {
            *slot = Some(answer);
        }
    }

    fn majority(&self) -> usize {
        majority(self.answers.len())
    }

    fn open(&self) -> usize {
        self.answers.iter().filter(|answer| answer.is_none()).count()
    }

    fn words(&self) -> impl Iterator<Item = (usize, Word)> {
        let word = |(node, answer): (usize, &Option<Answer>)| match answer {
            Some(Ok(word)) => Some((node, *word)),
            _ => None,
        };
        self.answers.iter().enumerate().filter_map(word)
    }

    fn counters(&self) -> impl Iterator<Item = u64> {
        self.words().filter_map(|(_, word)| match word {
            Word::Mine(counter) => Some(counter),
            _ => None,
        })
    }

    /// The nodes where the claim has the lock.
    pub(super) fn owned(&self) -> Vec<usize> {
        self.words().filter(|(_, word)| matches!(word, Word::Mine(_))).map(|(node, _)| node).collect()
    }

    pub(super) fn is_owned_by_majority(&self) -> bool {
        self.counters().count() >= self.majority()
    }

    /// Whether a majority can still become ours.
    fn is_hopeless(&self) -> bool {
        self.counters().count() + self.open() < self.majority()
    }

    /// Whether no further answer to a write-back matters.
    pub(super) fn is_written(&self) -> bool {
        self.is_owned_by_majority() || (self.is_hopeless() && self.is_told())
    }

    /// What the answers to `ask` amount to; `is_over`: no more are waited for.
    pub(super) fn asked(&self, is_over: bool) -> Asked {
        let alike = |value: u64| self.counters().filter(|counter| *counter == value).count();
        let best = self.counters().map(|value| (alike(value), value)).max();
        let Some((votes, value)) = best else {
            return if self.is_hopeless() || is_over { Asked::Failed } else { Asked::Open };
        };
        if votes >= self.majority() {
            return Asked::Alike(FencingToken::new(value));
        }
        let may_become_alike = votes + self.open() >= self.majority();
        match self.counters().max() {
            Some(highest) if self.is_owned_by_majority() && (is_over || !may_become_alike) => {
                Asked::Owned(FencingToken::new(highest + 1))
            }
            _ if self.is_hopeless() || is_over => Asked::Failed,
            _ => Asked::Open,
        }
    }

    /// Whether somebody else was met: a majority has answered, and not with silence or emptiness alone.
    pub(super) fn is_contended(&self) -> bool {
        let counts = self.words().filter(|(_, word)| *word != Word::Empty).count();
        let met = self.words().any(|(_, word)| matches!(word, Word::Busy | Word::Refused(_)));
        met && counts >= self.majority()
    }

    /// Without a majority for us: whether no further answer can make it others that were met, and not silence.
    pub(super) fn is_told(&self) -> bool {
        let counts = self.words().filter(|(_, word)| *word != Word::Empty).count();
        self.is_contended() || counts + self.open() < self.majority()
    }

    /// The nodes that did not take part, and why.
    pub(super) fn faults(&self) -> impl Iterator<Item = (usize, Option<&Fault>)> {
        self.answers.iter().enumerate().filter_map(|(node, answer)| match answer {
            Some(Err(fault)) => Some((node, Some(fault))),
            Some(Ok(Word::Empty)) => Some((node, None)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn silence() -> Answer {
        Err(Fault::no_reply())
    }

    fn tally(nodes: usize, answers: &[Answer]) -> Tally {
        let mut tally = Tally::new(nodes);
        for (node, answer) in answers.iter().enumerate() {
            tally.note(node, answer.clone());
        }
        tally
    }

    fn mine(counters: &[u64]) -> Vec<Answer> {
        counters.iter().map(|counter| Ok(Word::Mine(*counter))).collect()
    }

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number)
    }

    #[test]
    fn one_value_of_a_majority_is_the_token() {
        assert_eq!(tally(3, &mine(&[7, 7])).asked(false), Asked::Alike(token(7)));
        assert_eq!(tally(5, &mine(&[9, 7, 8, 7, 7])).asked(false), Asked::Alike(token(7)));
        assert_eq!(tally(5, &mine(&[7, 7])).asked(false), Asked::Open, "two of five");
    }

    #[test]
    fn different_values_of_a_majority_make_a_token_above_all() {
        assert_eq!(tally(3, &mine(&[7, 8])).asked(false), Asked::Open, "the third may say 7 or 8");
        assert_eq!(tally(3, &mine(&[7, 8])).asked(true), Asked::Owned(token(9)), "it says nothing");
        assert_eq!(tally(3, &mine(&[7, 9, 8])).asked(false), Asked::Owned(token(10)));
        assert_eq!(tally(5, &mine(&[1, 2, 3])).asked(false), Asked::Open);
        assert_eq!(tally(5, &mine(&[1, 2, 3, 4])).asked(false), Asked::Owned(token(5)));
    }

    #[test]
    fn without_a_majority_nothing_is_owned() {
        let busy = || Ok(Word::Busy);
        assert_eq!(tally(3, &[busy()]).asked(false), Asked::Open);
        assert_eq!(tally(3, &[busy(), busy()]).asked(false), Asked::Failed);
        assert_eq!(tally(3, &[silence(), Ok(Word::Empty)]).asked(false), Asked::Failed);
        let half = [Ok(Word::Mine(1)), busy(), busy()];
        assert_eq!(tally(5, &half).asked(false), Asked::Open);
        assert_eq!(tally(5, &half).asked(true), Asked::Failed);
    }

    #[test]
    fn silence_is_not_contention() {
        let busy = || Ok(Word::Busy);
        assert!(tally(3, &[busy(), Ok(Word::Mine(1)), silence()]).is_contended());
        assert!(!tally(3, &[busy(), silence(), silence()]).is_contended());
        assert!(!tally(3, &[busy(), Ok(Word::Empty), silence()]).is_contended());
        assert!(!tally(3, &[Ok(Word::Mine(1)), Ok(Word::Mine(1)), silence()]).is_contended());
        assert_eq!(tally(3, &[busy(), Ok(Word::Empty), silence()]).faults().count(), 2);
    }

    #[test]
    fn whether_others_were_met_is_told_by_a_majority_or_not_at_all() {
        let busy = || Ok(Word::Busy);
        assert!(!tally(3, &[silence(), busy()]).is_told(), "the third decides");
        assert!(tally(3, &[silence(), busy(), busy()]).is_told());
        assert!(tally(3, &[silence(), silence()]).is_told(), "nothing can be known any more");
        assert!(!tally(5, &[silence(), silence(), busy(), busy()]).is_told());
        assert!(tally(5, &[busy(), busy(), busy()]).is_told());
    }

    #[test]
    fn nodes_that_were_silent_or_empty_are_no_others_when_a_token_is_written_back() {
        let busy = || Ok(Word::Busy);
        let ours = || [Ok(Word::Mine(1)), Ok(Word::Mine(2)), Ok(Word::Mine(2))];
        for (rest, is_contended, faults) in [
            (vec![busy(), busy()], true, 1),
            (vec![silence(), Ok(Word::Empty)], false, 3),
            (vec![silence()], false, 3),
            (vec![busy(), silence()], true, 2),
        ] {
            let asked = tally(5, &[ours().into(), rest.clone()].concat());
            let mut written = Tally::of_others(&asked);
            assert_eq!(asked.owned(), [0, 1, 2]);
            [Ok(Word::Mine(3)), Ok(Word::Mine(3)), silence()]
                .into_iter()
                .enumerate()
                .for_each(|(node, answer)| written.note(node, answer));
            assert_eq!(
                (written.is_contended(), written.faults().count()),
                (is_contended, faults),
                "{rest:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_token_is_never_below_a_counter_that_a_majority_was_asked_for(
            counters in proptest::collection::vec(0_u64..4, 0..=5),
            is_over in any::<bool>(),
        ) {
            let tally = tally(5, &mine(&counters));
            match tally.asked(is_over) {
                Asked::Alike(found) => {
                    let votes = counters.iter().filter(|counter| **counter == found.get()).count();
                    prop_assert!(votes >= 3);
                }
                Asked::Owned(found) => {
                    prop_assert!(counters.len() >= 3);
                    prop_assert!(counters.iter().all(|counter| *counter < found.get()));
                }
                Asked::Failed => prop_assert!(counters.len() < 3 && is_over),
                Asked::Open => prop_assert!(!is_over && counters.len() < 5),
            }
        }
    }
}
