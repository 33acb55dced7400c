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

/// Starts a variant of a Lua script, followed by the name of the mutation. A variant is a comment, because programs
/// that do not know the switch may also read the script.
pub const VARIANT: &str = "--[==[ mutation ";
/// Ends a variant.
pub const VARIANT_END: &str = "\n]==]\n";
/// Starts the original script, after the last variant.
pub const ORIGINAL: &str = "--[==[ original ]==]\n";
/// Ends the original script.
pub const ORIGINAL_END: &str = "\n--[==[ end ]==]\n";

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

/// Returns the original text, or the variant that is switched on.
pub fn text(text: &'static str) -> &'static str {
    choose(text, is).leak()
}

fn choose(text: &str, is_on: impl Fn(&str) -> bool) -> String {
    let (mut chosen, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(VARIANT) {
        let (block, behind) = after.split_once(ORIGINAL_END).unwrap_or((after, ""));
        let (variants, original) = block.split_once(ORIGINAL).unwrap_or(("", block));
        let mut variants = variants.split(VARIANT).filter_map(|variant| variant.split_once('\n'));
        let variant =
            variants.find(|(name, _)| is_on(name)).and_then(|(_, text)| text.strip_suffix(VARIANT_END));
        chosen.push_str(before);
        chosen.push_str(variant.unwrap_or(original));
        rest = behind;
    }
    chosen.push_str(rest);
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_variants_is_returned_as_it_is() {
        assert_eq!(choose("return 1\n", |_| true), "return 1\n");
    }

    #[test]
    fn switched_variant_replaces_the_original() {
        let block = |variants: &str, original: &str| format!("{variants}{ORIGINAL}{original}{ORIGINAL_END}");
        let variant = |name: &str, text: &str| format!("{VARIANT}{name}\n{text}{VARIANT_END}");
        let text = format!(
            "first\n{}middle\n{}last\n",
            block(&(variant("a", "A\nA") + &variant("b", "B")), "one\n"),
            block(&variant("b", "b"), "two")
        );
        assert_eq!(choose(&text, |_| false), "first\none\nmiddle\ntwolast\n");
        assert_eq!(choose(&text, |name| name == "a"), "first\nA\nAmiddle\ntwolast\n");
        assert_eq!(choose(&text, |name| name == "b"), "first\nBmiddle\nblast\n");
    }
}
