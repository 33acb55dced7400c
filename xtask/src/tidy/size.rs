//! Files and functions that may have more than one subject.

use syn::spanned::Spanned;

use super::{Finding, Rule};

/// Lines of a file with one subject.
const FILE_LINES_MAX: usize = 400;

/// Lines of a function that fits on a screen.
const FUNCTION_LINES_MAX: usize = 60;

pub(super) fn of_file(text: &str) -> Option<Finding> {
    let lines = text.lines().count();
    (lines > FILE_LINES_MAX).then(|| Finding::new(Rule::Size, 1, format!("{lines} lines in the file")))
}

pub(super) fn of_function(signature: &syn::Signature, body: &syn::Block) -> Option<Finding> {
    let start = signature.span().start().line;
    let lines = body.span().end().line + 1 - start;
    let text = || format!("{lines} lines in `{}`", signature.ident);
    (lines > FUNCTION_LINES_MAX).then(|| Finding::new(Rule::Size, start, text()))
}
