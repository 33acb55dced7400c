//! One walk over a Rust file that applies the rules.

use syn::{
    Attribute, Visibility,
    visit::{self, Visit},
};

use super::{Finding, cancel_safety, size, skips};

/// The kind of a file, which decides on its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Code that users call.
    PublishedLibrary,
    /// Only tests.
    Test,
    /// Programs, examples, chores.
    Other,
}

pub(super) fn check(file: &syn::File, kind: Kind) -> Vec<Finding> {
    let mut walk = Walk {
        public: kind == Kind::PublishedLibrary,
        in_tests: kind == Kind::Test,
        methods_are_own: true,
        findings: Vec::new(),
    };
    walk.visit_file(file);
    walk.findings
}

#[derive(Debug)]
struct Walk {
    /// Whether users call what is `pub` here.
    public: bool,
    in_tests: bool,
    /// Whether the current methods belong to no trait. (Methods of traits are documented at the trait.)
    methods_are_own: bool,
    findings: Vec<Finding>,
}

impl Walk {
    /// The rules for any function with a body.
    fn function(
        &mut self,
        attributes: &[Attribute],
        visibility: &Visibility,
        signature: &syn::Signature,
        body: &syn::Block,
    ) {
        if self.public
            && !self.in_tests
            && self.methods_are_own
            && matches!(visibility, Visibility::Public(_))
        {
            self.findings.extend(cancel_safety::of_function(signature, attributes));
        }
        self.findings.extend(size::of_function(signature, body));
        if attributes.iter().any(skips::is_test) {
            self.findings.extend(skips::early_returns(&signature.ident, body));
        }
    }

    /// Continues the walk, as test code if the attributes say so.
    fn within(&mut self, attributes: &[Attribute], walk_on: impl FnOnce(&mut Self)) {
        let before = self.in_tests;
        self.in_tests |=
            attributes.iter().any(|attribute| skips::is_test(attribute) || is_test_only(attribute));
        walk_on(self);
        self.in_tests = before;
    }
}

/// Whether it is `#[cfg(test)]`, also among other conditions.
fn is_test_only(attribute: &Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let words = list.tokens.to_string();
    list.path.is_ident("cfg")
        && words.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == "test")
}

impl<'ast> Visit<'ast> for Walk {
    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        self.within(&node.attrs, |this| visit::visit_item_mod(this, node));
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.function(&node.attrs, &node.vis, &node.sig, &node.block);
        self.within(&node.attrs, |this| visit::visit_item_fn(this, node));
    }

    fn visit_item_impl(&mut self, node: &'ast syn::ItemImpl) {
        let before = std::mem::replace(&mut self.methods_are_own, node.trait_.is_none());
        self.within(&node.attrs, |this| visit::visit_item_impl(this, node));
        self.methods_are_own = before;
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.function(&node.attrs, &node.vis, &node.sig, &node.block);
        self.within(&node.attrs, |this| visit::visit_impl_item_fn(this, node));
    }

    fn visit_item_trait(&mut self, node: &'ast syn::ItemTrait) {
        let speaks_for_itself =
            !matches!(node.vis, Visibility::Public(_)) || cancel_safety::has_section(&node.attrs);
        if self.public && !self.in_tests && !speaks_for_itself {
            let methods = node.items.iter().filter_map(|item| match item {
                syn::TraitItem::Fn(method) => cancel_safety::of_function(&method.sig, &method.attrs),
                _ => None,
            });
            self.findings.extend(methods);
        }
        self.within(&node.attrs, |this| visit::visit_item_trait(this, node));
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        self.findings.extend(node.default.as_ref().and_then(|body| size::of_function(&node.sig, body)));
        visit::visit_trait_item_fn(self, node);
    }

    fn visit_attribute(&mut self, node: &'ast Attribute) {
        self.findings.extend(skips::ignored_without_reason(node));
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        if self.in_tests {
            self.findings.extend(skips::skip_message(node));
        }
    }
}
