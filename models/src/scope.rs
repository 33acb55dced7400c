//! What a model is explored with. The name of a scene says it: "2 + 1, two lost, cancel".

use crate::{few::Few, frame::Faults};

/// A protocol with all of its safety steps or without one, with these claims and faults. Every model is one.
#[derive(Clone, Copy, Debug)]
pub struct Scope<S> {
    without: Option<S>,
    /// How many claims each client makes; in the keeper's model, how often each caller asks.
    pub(crate) claims: [u8; 2],
    pub(crate) faults: Faults,
    /// The words of its name that only this model knows.
    own: Few<&'static str, 2>,
}

impl<S: Copy + PartialEq> Scope<S> {
    /// Reads the name of a scene. `own` are the words that only this model knows.
    ///
    /// Panics on any other word: nothing may be in a table that was not explored.
    pub(crate) fn named(name: &'static str, own: &[&str], without: Option<S>) -> Self {
        let mut words = name.split(", ");
        let mut claims =
            words.next().unwrap_or_default().split([' ', 'x', '+']).filter_map(|n| n.parse().ok());
        let claims = [claims.next(), claims.next()].map(Option::unwrap_or_default);
        assert!(claims[0] > 0, "{name}: how many claims?");
        let mut scope = Self { without, claims, faults: Faults::default(), own: Few::default() };
        for word in words.filter(|word| !scope.faults.add(word)).collect::<Vec<_>>() {
            assert!(own.contains(&word), "{name}: \"{word}\" is not known");
            scope.own.push(word);
        }
        scope
    }

    /// Whether the protocol has this step.
    pub(crate) fn has(&self, step: S) -> bool {
        self.without != Some(step)
    }

    /// The same scope with all steps.
    pub(crate) fn full(&self) -> Self {
        Self { without: None, ..*self }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.without.is_none()
    }

    /// Whether the scene's name has this word of the model.
    pub(crate) fn is(&self, word: &str) -> bool {
        self.own.contains(&word)
    }

    /// How many claims there are.
    pub(crate) fn count(&self) -> usize {
        self.claims.into_iter().map(usize::from).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_says_claims_and_faults() {
        let scope = Scope::named("2 + 1, two lost, pushed, cancel", &["pushed"], Some(()));

        assert_eq!((scope.claims, scope.count()), ([2, 1], 3));
        assert_eq!(scope.faults, Faults { lost: 2, cancels: 1, ..Faults::default() });
        assert!(scope.is("pushed") && !scope.is("notified"));
        assert!(!scope.has(()) && scope.full().has(()));
    }

    #[test]
    #[should_panic = "\"pusht\" is not known"]
    fn misspelt_word_is_not_ignored() {
        Scope::named("2 x 2, pusht", &["pushed"], None::<()>);
    }
}
