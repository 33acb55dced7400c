//! Which mutation is switched on. The instrumented copy contains this file as a crate, which its sources call.
#![allow(dead_code, unreachable_pub, reason = "`cargo xtask` itself needs the constants only")]

use std::{
    env,
    ffi::OsString,
    fs::File,
    sync::{LazyLock, Once},
};

/// The environment variable that names the mutation.
pub const SWITCH: &str = "MUTATION";

/// The environment variable with the path of a file that is created once code of the mutation runs.
pub const REACHED: &str = "MUTATION_REACHED";

static SWITCHED_ON: LazyLock<Option<String>> = LazyLock::new(|| env::var(SWITCH).ok());

/// Returns whether this mutation is switched on. If so, records that it was reached.
pub fn is(name: &str) -> bool {
    static NOTE: Once = Once::new();
    let is_on = SWITCHED_ON.as_deref() == Some(name);
    if is_on {
        NOTE.call_once(|| {
            // A process may not be allowed to write there. That changes no verdict if its test fails.
            let _ = env::var_os(REACHED).map(File::create);
        });
    }
    is_on
}

/// Returns the variables that a child process with an empty environment needs.
pub fn variables() -> impl Iterator<Item = (&'static str, OsString)> {
    [SWITCH, REACHED].into_iter().filter_map(|name| Some((name, env::var_os(name)?)))
}

/// Returns a text that contains scripts, with those that the mutation changes as they are then. `scripts` are all
/// mutations of scripts, each with the script before and after it.
pub fn text(text: &str, scripts: &[(&str, &str, &str)]) -> &'static str {
    choose(text, scripts, is).leak()
}

fn choose(text: &str, scripts: &[(&str, &str, &str)], is_on: impl Fn(&str) -> bool) -> String {
    let changed = scripts.iter().filter(|(name, before, _)| text.contains(before) && is_on(name));
    changed.fold(text.to_owned(), |text, (_, before, after)| text.replace(before, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_of_the_mutation_that_is_on_are_replaced() {
        let scripts = [("a", "one\n", "A\n"), ("b", "one\n", "B\n"), ("b", "two\n", "b\n")];
        let chosen = |on| choose("first\none\nmiddle\ntwo\nlast\n", &scripts, |name| name == on);
        assert_eq!(chosen("none"), "first\none\nmiddle\ntwo\nlast\n");
        assert_eq!(chosen("a"), "first\nA\nmiddle\ntwo\nlast\n");
        assert_eq!(chosen("b"), "first\nB\nmiddle\nb\nlast\n");
    }
}
