//! Text that no file may contain.

use super::{Finding, Rule};

/// Reminders, as whole words. Written in two halves, because this file must keep its own rule.
const NOTES: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Placeholders and debugging aids.
const MACROS: [&str; 3] = [concat!("to", "do!("), concat!("unimpl", "emented!("), concat!("db", "g!(")];

pub(super) fn leftovers(text: &str) -> Vec<Finding> {
    let in_line = |(number, line): (usize, &str)| {
        let notes = NOTES.iter().filter(|note| has_word(line, note));
        let macros = MACROS.iter().filter(|name| line.contains(**name));
        notes
            .chain(macros)
            .map(|leftover| Finding::new(Rule::NoLeftover, number + 1, format!("`{leftover}`")))
            .collect::<Vec<_>>()
    };
    text.lines().enumerate().flat_map(in_line).collect()
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|part| part == word)
}
