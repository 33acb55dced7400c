//! Whether functions that wait document what dropping their future does.

use syn::{Attribute, Expr, GenericArgument, Lit, Meta, PathArguments, ReturnType, Type, TypeParamBound};

use super::{Finding, Rule};

/// The section's heading.
const HEADING: &str = "# Cancel safety";

/// A finding for a public function that waits and lacks the section.
pub(super) fn of_function(signature: &syn::Signature, attributes: &[Attribute]) -> Option<Finding> {
    let missing = waits(signature) && !has_section(attributes);
    let text = || format!("`{}` waits and has no section `{HEADING}`", signature.ident);
    missing.then(|| Finding::new(Rule::CancelSafety, signature.ident.span().start().line, text()))
}

/// Whether the documentation has the section.
pub(super) fn has_section(attributes: &[Attribute]) -> bool {
    let text = |attribute: &Attribute| {
        let Meta::NameValue(meta) = &attribute.meta else { return None };
        let Expr::Lit(value) = &meta.value else { return None };
        let Lit::Str(text) = &value.lit else { return None };
        meta.path.is_ident("doc").then(|| text.value())
    };
    attributes.iter().filter_map(text).any(|doc| doc.lines().any(|line| line.trim() == HEADING))
}

fn waits(signature: &syn::Signature) -> bool {
    signature.asyncness.is_some()
        || matches!(&signature.output, ReturnType::Type(_, returned) if is_future(returned))
}

/// Whether a type is a future, judged by its name: `impl Future`, `SomeFuture<'_>`, `Pin<Box<dyn Future>>`.
fn is_future(returned: &Type) -> bool {
    match returned {
        Type::ImplTrait(returned) => returned.bounds.iter().any(is_future_trait),
        Type::TraitObject(returned) => returned.bounds.iter().any(is_future_trait),
        Type::Path(returned) => returned.path.segments.last().is_some_and(|last| {
            last.ident.to_string().ends_with("Future")
                || matches!(last.ident.to_string().as_str(), "Pin" | "Box") && arguments(last).any(is_future)
        }),
        _ => false,
    }
}

fn is_future_trait(bound: &TypeParamBound) -> bool {
    let TypeParamBound::Trait(bound) = bound else { return false };
    bound.path.segments.last().is_some_and(|last| last.ident == "Future" || last.ident == "IntoFuture")
}

fn arguments(segment: &syn::PathSegment) -> impl Iterator<Item = &Type> {
    let arguments = match &segment.arguments {
        PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
        _ => None,
    };
    arguments.into_iter().flatten().filter_map(|argument| match argument {
        GenericArgument::Type(argument) => Some(argument),
        _ => None,
    })
}
