//! Puts many mutations into one copy of the sources. Where they differ, the copy's code asks which mutation is switched
//! on.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};

use super::{function_bodies::Source, scratch::FileChange};
use crate::project::{self, Project};

/// The crate that knows which mutation is switched on, and its folder in the copy.
const SWITCH_CRATE: &str = "mutation-switch";
const SWITCH_SOURCE: &str = include_str!("switch.rs");

/// In that crate: the mutations of scripts, each with the script before and after it.
const SCRIPTS: &str = "pub static SCRIPTS: &[(&str, &str, &str)]";

/// An instrumented copy, not yet written.
#[derive(Debug, Default)]
pub(super) struct Instrumented {
    /// The files that differ from the project's.
    pub(super) files: BTreeMap<PathBuf, String>,
    /// The mutations that are not in it, and why.
    pub(super) left_out: BTreeMap<String, String>,
    variant_points: Vec<VariantPoint>,
}

/// A function body of a Rust file that has several variants.
#[derive(Debug)]
struct VariantPoint {
    path: PathBuf,
    lines: Range<usize>,
    /// The lines of each mutation.
    variants: Vec<(String, Range<usize>)>,
}

/// The variants of a file's function bodies, by the index of the body: the mutation and its text.
type Variants<'a> = BTreeMap<usize, Vec<(&'a str, String)>>;

impl Instrumented {
    /// Makes the copy with all these mutations except those that are left out already.
    pub(super) fn of(
        project: &Project,
        mutations: &BTreeMap<String, Vec<FileChange>>,
        left_out: BTreeMap<String, String>,
    ) -> Result<Self> {
        let mut instrumented = Self { left_out, ..Self::default() };
        let mut sources: BTreeMap<&Path, (&str, Variants<'_>)> = BTreeMap::new();
        let mut scripts = Vec::new();
        let (mut packages, mut with_scripts) = (BTreeSet::new(), BTreeSet::new());
        for (name, changes) in mutations {
            if instrumented.left_out.contains_key(name) {
                continue;
            }
            let changed = match changes.iter().map(Changed::of).collect::<Result<Vec<_>, String>>() {
                Ok(changed) => changed,
                Err(reason) => {
                    instrumented.left_out.insert(name.clone(), reason);
                    continue;
                }
            };
            for Changed { path, before, after, bodies } in changed {
                let package = package_of(project, path)?;
                match bodies {
                    Some(bodies) => {
                        let (_, variants) = sources.entry(path).or_insert_with(|| (before, Variants::new()));
                        bodies
                            .into_iter()
                            .for_each(|(body, text)| variants.entry(body).or_default().push((name, text)));
                    }
                    None => {
                        scripts.push((name, before, after));
                        with_scripts.insert(package.clone());
                    }
                }
                packages.insert(package);
            }
        }
        for (path, (before, variants)) in sources {
            let (text, variant_points) = with_variants(path, before, variants)?;
            instrumented.variant_points.extend(variant_points);
            instrumented.files.insert(path.to_owned(), text);
        }
        // The debugging format of strings and lists is that of their literals.
        let scripts = format!("{SWITCH_SOURCE}\n{SCRIPTS} = &{scripts:?};\n");
        instrumented.files.insert(Path::new(SWITCH_CRATE).join("src/lib.rs"), scripts);
        instrumented.connect(project, &packages, &with_scripts)?;
        Ok(instrumented)
    }

    /// Returns the mutations whose code is at one of these lines.
    pub(super) fn at(&self, locations: &[(PathBuf, usize)]) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (path, line) in locations {
            let path = project::resolved(path);
            for point in self.variant_points.iter().filter(|at| at.path == path && at.lines.contains(line)) {
                let own = point.variants.iter().filter(|(_, lines)| lines.contains(line));
                let own: Vec<_> = own.map(|(name, _)| name.clone()).collect();
                // The variants do not compile together: any of them may be the cause.
                let all = || point.variants.iter().map(|(name, _)| name.clone());
                found.extend(if own.is_empty() { all().collect() } else { own });
            }
        }
        found
    }

    /// Makes the changed packages depend on the switch crate, and lets their scripts and child processes see the
    /// switch.
    fn connect(
        &mut self,
        project: &Project,
        packages: &BTreeSet<PathBuf>,
        with_scripts: &BTreeSet<PathBuf>,
    ) -> Result<()> {
        for package in packages {
            let manifest = package.join("Cargo.toml");
            let to_root = "../".repeat(package.components().count());
            let dependency = format!("\n[dependencies.{SWITCH_CRATE}]\npath = \"{to_root}{SWITCH_CRATE}\"\n");
            let text = self.text_of(project, &manifest)? + &dependency;
            self.files.insert(manifest, text);
        }
        for path in
            project.files()?.into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
        {
            let folders = |one: &PathBuf| ["src", "tests"].map(|folder| one.join(folder));
            let within =
                |all: &BTreeSet<PathBuf>| all.iter().flat_map(folders).any(|folder| path.starts_with(folder));
            if !within(packages) {
                continue;
            }
            let before = self.text_of(project, &path)?;
            let mut text =
                before.replace(".env_clear()", ".env_clear().envs(::mutation_switch::variables())");
            if within(with_scripts) && text.contains("include_str!") {
                text = with_chosen_includes(&text)?;
            }
            if text != before {
                self.files.insert(path, text);
            }
        }
        let manifest = format!("[package]\nname = \"{SWITCH_CRATE}\"\nedition = \"2024\"\n");
        self.files.insert(Path::new(SWITCH_CRATE).join("Cargo.toml"), manifest);
        Ok(())
    }

    fn text_of(&self, project: &Project, path: &Path) -> Result<String> {
        match self.files.get(path) {
            Some(text) => Ok(text.clone()),
            None => fs::read_to_string(project.root().join(path))
                .with_context(|| format!("cannot read {}", path.display())),
        }
    }
}

/// A file that a mutation changes.
struct Changed<'a> {
    path: &'a Path,
    before: &'a str,
    after: &'a str,
    /// The function bodies that differ; `None` in a script, which is switched as a whole.
    bodies: Option<Vec<(usize, String)>>,
}

impl<'a> Changed<'a> {
    /// An error says why the change cannot be switched.
    fn of(change: &'a FileChange) -> Result<Self, String> {
        let path = change.path.as_path();
        let (Some(before), Some(after)) = (&change.before, &change.after) else {
            return Err(format!("{} is created or deleted", path.display()));
        };
        let bodies = match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => {
                let bodies =
                    bodies(before, after).map_err(|error| format!("{}: {error:#}", path.display()))?;
                Some(bodies.ok_or_else(|| format!("{} differs outside of function bodies", path.display()))?)
            }
            Some("lua") => None,
            _ => return Err(format!("{} is read while compiling", path.display())),
        };
        Ok(Self { path, before, after, bodies })
    }
}

/// Returns the function bodies that differ; `None` if other code differs, too.
fn bodies(before: &str, after: &str) -> Result<Option<Vec<(usize, String)>>> {
    let (before, after) = (Source::parse(before)?, Source::parse(after)?);
    let differing = before.differing(&after)?;
    Ok(differing.map(|all| all.into_iter().map(|index| (index, after.text_of(index).to_owned())).collect()))
}

/// Returns the source with all variants of its function bodies.
fn with_variants(path: &Path, before: &str, variants: Variants<'_>) -> Result<(String, Vec<VariantPoint>)> {
    let source = Source::parse(before)?;
    let (mut text, mut end, mut variant_points) = (String::new(), 0, Vec::new());
    let line = |text: &str| text.matches('\n').count() + 1;
    for (index, variants) in variants {
        let range = source.bodies[index].range.clone();
        text.push_str(&before[end..range.start]);
        end = range.end;
        let (first_line, mut lines) = (line(&text), Vec::new());
        text.push_str("{ ");
        for (name, body) in variants {
            text.push_str(&format!("if ::mutation_switch::is({name:?}) {{\n"));
            let start = line(&text);
            text.push_str(&body);
            lines.push((name.to_owned(), start..line(&text) + 1));
            text.push_str("\n} else ");
        }
        text.push_str(&format!("{{\n{}\n}} }}", source.text_of(index)));
        variant_points.push(VariantPoint {
            path: path.to_owned(),
            lines: first_line..line(&text) + 1,
            variants: lines,
        });
    }
    text.push_str(&before[end..]);
    Ok((text, variant_points))
}

/// Returns the source with a switch around each text that it includes, except in constants: their values are known
/// before a mutation is switched on.
fn with_chosen_includes(text: &str) -> Result<String> {
    fn find(tokens: TokenStream, found: &mut Vec<Range<usize>>) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut in_constant = false;
        for (index, token) in tokens.iter().enumerate() {
            match &tokens[index..] {
                [TokenTree::Ident(word), TokenTree::Ident(_), TokenTree::Punct(mark), ..]
                    if word == "const" && mark.as_char() == ':' =>
                {
                    in_constant = true;
                }
                [TokenTree::Punct(mark), ..] if mark.as_char() == ';' => in_constant = false,
                _ => {}
            }
            let TokenTree::Group(group) = token else { continue };
            if in_constant {
                continue;
            }
            let called = match &tokens[index.saturating_sub(2)..index] {
                [TokenTree::Ident(name), TokenTree::Punct(mark)] if mark.as_char() == '!' => Some(name),
                _ => None,
            };
            match called {
                Some(name) if name == "include_str" || name == "concat" && includes(group.stream()) => {
                    found.push(name.span().byte_range().start..group.span().byte_range().end);
                }
                _ => find(group.stream(), found),
            }
        }
    }
    fn includes(tokens: TokenStream) -> bool {
        tokens.to_string().contains("include_str")
    }
    let mut found = Vec::new();
    find(text.parse().map_err(|error| anyhow::anyhow!("{error}"))?, &mut found);
    let mut text = text.to_owned();
    for range in found.into_iter().rev() {
        let chosen = format!("::mutation_switch::text({}, ::mutation_switch::SCRIPTS)", &text[range.clone()]);
        text.replace_range(range, &chosen);
    }
    Ok(text)
}

/// Returns the folder of the package that a file belongs to.
fn package_of(project: &Project, file: &Path) -> Result<PathBuf> {
    let mut folders = file.ancestors().skip(1);
    let found = folders.find(|folder| project.root().join(folder).join("Cargo.toml").is_file());
    found.map(Path::to_owned).with_context(|| format!("{} is in no package", file.display()))
}
