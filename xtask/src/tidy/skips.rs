//! Tests that pass without testing.

use quote::ToTokens;
use syn::{
    Attribute, Meta,
    spanned::Spanned,
    visit::{self, Visit},
};

use super::{Finding, Rule};

/// Words of conditions that depend on the machine.
const ENVIRONMENT: [&str; 7] = ["env", "var_os", "which", "available", "installed", "exists", "skip"];

/// A finding for every `return` before the end of a test.
pub(super) fn early_returns(name: &syn::Ident, body: &syn::Block) -> Vec<Finding> {
    let mut returns = Returns::default();
    returns.visit_block(body);
    let finding = |line| Finding::new(Rule::NoSkip, line, format!("test `{name}` may return before its end"));
    returns.lines.into_iter().map(finding).collect()
}

/// A finding for a macro that prints that a test skips.
pub(super) fn skip_message(call: &syn::Macro) -> Option<Finding> {
    let name = call.path.segments.last()?.ident.to_string();
    let prints = matches!(name.as_str(), "print" | "println" | "eprint" | "eprintln");
    let skips = call.tokens.to_string().to_lowercase().contains("skip");
    (prints && skips).then(|| {
        let text = "test code prints that it skips: ignore the test with a reason, or let it fail";
        Finding::new(Rule::NoSkip, call.span().start().line, text)
    })
}

/// A finding for an ignored test without a reason.
pub(super) fn ignored_without_reason(attribute: &Attribute) -> Option<Finding> {
    let bare = match &attribute.meta {
        Meta::Path(path) => path.is_ident("ignore"),
        // `#[cfg_attr(condition, ignore)]`: the last word has no value.
        Meta::List(list) if list.path.is_ident("cfg_attr") => {
            let words: Vec<String> = list.tokens.clone().into_iter().map(|token| token.to_string()).collect();
            words
                .iter()
                .zip(words.iter().skip(1).map(Some).chain([None]))
                .any(|(word, next)| word == "ignore" && next.is_none_or(|next| next == ","))
        }
        _ => false,
    };
    let line = attribute.span().start().line;
    bare.then(|| Finding::new(Rule::IgnoreReason, line, "ignored without a reason"))
}

/// Whether an attribute makes a test: `#[test]`, `#[tokio::test(...)]`.
pub(super) fn is_test(attribute: &Attribute) -> bool {
    attribute.path().segments.last().is_some_and(|last| last.ident == "test")
}

/// Finds `return`: every one in the test's own body; in closures and async blocks, which return for themselves, those
/// that depend on the environment.
#[derive(Debug, Default)]
struct Returns {
    nested: usize,
    behind_environment: usize,
    lines: Vec<usize>,
}

impl Returns {
    fn nested(&mut self, visit: impl FnOnce(&mut Self)) {
        self.nested += 1;
        visit(self);
        self.nested -= 1;
    }

    fn behind(&mut self, condition: &impl ToTokens, visit: impl FnOnce(&mut Self)) {
        let environment = usize::from(depends_on_environment(condition.to_token_stream()));
        self.behind_environment += environment;
        visit(self);
        self.behind_environment -= environment;
    }
}

impl<'ast> Visit<'ast> for Returns {
    fn visit_expr_return(&mut self, node: &'ast syn::ExprReturn) {
        if self.nested == 0 || self.behind_environment > 0 {
            self.lines.push(node.span().start().line);
        }
        visit::visit_expr_return(self, node);
    }

    fn visit_expr_closure(&mut self, node: &'ast syn::ExprClosure) {
        self.nested(|this| visit::visit_expr_closure(this, node));
    }

    fn visit_expr_async(&mut self, node: &'ast syn::ExprAsync) {
        self.nested(|this| visit::visit_expr_async(this, node));
    }

    fn visit_expr_if(&mut self, node: &'ast syn::ExprIf) {
        self.behind(&node.cond, |this| visit::visit_expr_if(this, node));
    }

    fn visit_expr_match(&mut self, node: &'ast syn::ExprMatch) {
        self.behind(&node.expr, |this| visit::visit_expr_match(this, node));
    }

    fn visit_local(&mut self, node: &'ast syn::Local) {
        let value = node.init.as_ref().filter(|init| init.diverge.is_some()).map(|init| &init.expr);
        self.behind(&value, |this| visit::visit_local(this, node));
    }

    /// A function inside the test is not a test.
    fn visit_item(&mut self, _: &'ast syn::Item) {}
}

fn depends_on_environment(tokens: proc_macro2::TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        proc_macro2::TokenTree::Ident(word) => {
            let word = word.to_string();
            word.split('_').any(|part| ENVIRONMENT.contains(&part)) || ENVIRONMENT.contains(&word.as_str())
        }
        proc_macro2::TokenTree::Group(group) => depends_on_environment(group.stream()),
        _ => false,
    })
}
