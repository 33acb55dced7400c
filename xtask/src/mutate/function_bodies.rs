//! The function bodies of a Rust file: there a mutation can be switched on at run time.

use std::{collections::BTreeMap, ops::Range};

use anyhow::{Context, Result};
use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::{
    Block, ExprAsync, ExprClosure, ImplItemFn, ItemFn, ItemImpl, ItemMod, ItemTrait, ReturnType, Signature,
    TraitItemFn, TypeImplTrait,
    spanned::Spanned,
    visit::{self, Visit},
};

/// A Rust file and its function bodies.
pub(super) struct Source<'a> {
    text: &'a str,
    pub(super) bodies: Vec<FunctionBody>,
}

/// A block or expression that may be replaced by a switch between several variants of the same type.
#[derive(Debug)]
pub(super) struct FunctionBody {
    /// Unique in the file, and the same before and after a mutation.
    pub(super) name: String,
    /// Bytes.
    pub(super) range: Range<usize>,
    tokens: String,
}

impl<'a> Source<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self> {
        let file = syn::parse_file(text)?;
        let mut finder = Finder::default();
        finder.visit_file(&file);
        Ok(Self { text, bodies: finder.bodies })
    }

    /// Returns the indices of the bodies in which a mutated file differs; `None` if it differs elsewhere, too.
    pub(super) fn differing(&self, mutated: &Source<'_>) -> Result<Option<Vec<usize>>> {
        if self.bodies.len() != mutated.bodies.len() || self.frame()? != mutated.frame()? {
            return Ok(None);
        }
        let pairs = self.bodies.iter().zip(&mutated.bodies);
        if pairs.clone().any(|(own, other)| own.name != other.name) {
            return Ok(None);
        }
        let differing = pairs.enumerate().filter(|(_, (own, other))| own.tokens != other.tokens);
        Ok(Some(differing.map(|(index, _)| index).collect()))
    }

    pub(super) fn text_of(&self, index: usize) -> &'a str {
        self.text.get(self.bodies[index].range.clone()).unwrap_or_default()
    }

    /// All tokens outside of the bodies.
    fn frame(&self) -> Result<String> {
        let (mut text, mut end) = (String::new(), 0);
        for body in &self.bodies {
            text.push_str(self.text.get(end..body.range.start).context("function bodies overlap")?);
            text.push_str("{}");
            end = body.range.end;
        }
        text.push_str(self.text.get(end..).context("a function body is outside the file")?);
        let tokens: TokenStream = text.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(tokens.to_string())
    }
}

/// Collects function bodies that are not inside another.
#[derive(Default)]
struct Finder {
    path: Vec<String>,
    /// How many bodies each path has so far. A path has several for platform variants and for closures of one function.
    seen: BTreeMap<String, usize>,
    bodies: Vec<FunctionBody>,
}

impl Finder {
    fn within(&mut self, name: String, walk: impl FnOnce(&mut Self)) {
        self.path.push(name);
        walk(self);
        self.path.pop();
    }

    fn add(&mut self, node: &(impl ToTokens + Spanned)) {
        let path = self.path.join("::");
        let number = self.seen.entry(path.clone()).and_modify(|count| *count += 1).or_insert(1);
        self.bodies.push(FunctionBody {
            name: format!("{path}#{number}"),
            range: node.span().byte_range(),
            tokens: node.to_token_stream().to_string(),
        });
    }

    fn function(&mut self, signature: &Signature, body: &Block) {
        // A `const fn` may run while compiling, where nothing can be switched.
        if signature.constness.is_some() {
            return;
        }
        self.within(signature.ident.to_string(), |finder| {
            if returns_opaque_type(signature) {
                // Two bodies would have two types. Only the async blocks and closures inside can have variants.
                finder.visit_block(body);
            } else {
                finder.add(body);
            }
        });
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.within(item.ident.to_string(), |finder| visit::visit_item_mod(finder, item));
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let own = item.self_ty.to_token_stream();
        let name = match &item.trait_ {
            Some((of_trait, _)) => format!("{} for {own}", of_trait.to_token_stream()),
            None => own.to_string(),
        };
        self.within(name, |finder| visit::visit_item_impl(finder, item));
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.within(item.ident.to_string(), |finder| visit::visit_item_trait(finder, item));
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body);
        }
    }

    fn visit_expr_async(&mut self, expression: &'ast ExprAsync) {
        self.add(&expression.block);
    }

    fn visit_expr_closure(&mut self, expression: &'ast ExprClosure) {
        self.add(&expression.body);
    }
}

fn returns_opaque_type(signature: &Signature) -> bool {
    struct Found(bool);
    impl Visit<'_> for Found {
        fn visit_type_impl_trait(&mut self, _: &TypeImplTrait) {
            self.0 = true;
        }
    }
    let ReturnType::Type(_, returned) = &signature.output else { return false };
    let mut found = Found(false);
    found.visit_type(returned);
    found.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
const LIMIT: u32 = 3;
/// Doc.
fn plain(a: u32) -> u32 { if a > LIMIT { return 0 } a }
const fn fixed() -> u32 { 4 }
struct S;
impl S {
    async fn wait(&self) { self.go().await }
    fn later(&self) -> impl Future<Output = u32> { let a = 1; async move { a + 1 } }
}
impl Iterator for S {
    type Item = u32;
    fn next(&mut self) -> Option<u32> { None }
}
static LAZY: LazyLock<u32> = LazyLock::new(|| 5);
mod inner { fn plain() {} }
";

    fn differing(from: &str, to: &str) -> Option<Vec<String>> {
        assert!(FILE.contains(from), "{from}");
        let (mutated, original) = (FILE.replacen(from, to, 1), Source::parse(FILE).unwrap());
        let differing = original.differing(&Source::parse(&mutated).unwrap()).unwrap()?;
        Some(differing.into_iter().map(|index| original.bodies[index].name.clone()).collect())
    }

    #[test]
    fn differing_bodies_are_found() {
        for (from, to, body) in [
            ("return 0", "return 1", "plain#1"),
            ("self.go().await", "", "S::wait#1"),
            ("a + 1", "a + 2", "S::later#1"),
            ("None", "Some(1)", "Iterator for S::next#1"),
            ("|| 5", "|| 6", "#1"),
            ("fn plain() {}", "fn plain() { go() }", "inner::plain#1"),
        ] {
            assert_eq!(differing(from, to), Some(vec![body.to_owned()]), "{from}");
        }
    }

    #[test]
    fn comments_and_blanks_do_not_differ() {
        assert_eq!(differing("/// Doc.", "/// Doc.\n// More."), Some(Vec::new()));
        assert_eq!(differing("{ None }", "{\n    None // Never.\n}"), Some(Vec::new()));
    }

    #[test]
    fn difference_outside_of_bodies_cannot_be_switched() {
        for (from, to) in [
            ("= 3", "= 4"),
            ("{ 4 }", "{ 5 }"),
            ("let a = 1", "let a = 2"),
            ("a: u32", "a: u64"),
            ("mod inner", "mod other"),
            ("fn plain() {}", "fn plain() {} fn more() {}"),
        ] {
            assert_eq!(differing(from, to), None, "{from}");
        }
    }
}
