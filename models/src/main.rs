//! `cargo run -p lockkit-models [-- [--long] [MODEL [STEP]]]`: explores all models and prints what was found.
//!
//! With a model's name, or the beginning of it, only that one, and with the counterexamples step by step; with a step's
//! name only what goes wrong without that step. `--long` adds the scenes that take too long for the tests.

use lockkit_models::{
    etcd::Etcd,
    explore::{Protocol, explore, hunt},
    keeper::Keeper,
    redis::Redis,
    redlock::Redlock,
    zookeeper::ZooKeeper,
};

/// What was asked for on the command line.
#[derive(Debug, Default)]
struct Wanted {
    long: bool,
    model: Option<String>,
    step: Option<String>,
}

fn main() {
    let (options, names): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let mut names = names.into_iter();
    let long = options.iter().any(|option| option == "--long");
    let wanted = Wanted { long, model: names.next(), step: names.next() };
    show::<Etcd>(&wanted);
    show::<Keeper>(&wanted);
    show::<Redlock>(&wanted);
    show::<Redis>(&wanted);
    show::<ZooKeeper>(&wanted);
}

/// One line per scene of the full protocol and per step that was taken out.
fn show<M: Protocol>(wanted: &Wanted) {
    if wanted.model.as_ref().is_some_and(|model| !M::NAME.to_lowercase().starts_with(&model.to_lowercase())) {
        return;
    }
    println!("{}", M::NAME);
    if wanted.step.is_none() {
        show_scenes(M::scenes());
        show_scenes(if wanted.long { M::long_scenes() } else { Vec::new() });
    }
    for removal in M::removals() {
        let step = format!("{:?}", removal.step);
        if wanted.step.as_ref().is_some_and(|wanted| *wanted != step) {
            continue;
        }
        let found = match hunt(&removal.model, removal.breaks) {
            Some(violation) if wanted.model.is_some() => violation.to_string(),
            Some(violation) => {
                format!("not \"{}\" after {} steps", violation.property, violation.trace.len())
            }
            None => format!("still \"{}\"", removal.breaks),
        };
        println!("  without {step:28} {found}");
    }
}

fn show_scenes<M: Protocol>(scenes: Vec<(&'static str, M)>) {
    for (scene, model) in scenes {
        let explored = explore(&model);
        let (unique, generated, depth) = (explored.unique, explored.generated, explored.depth);
        let never: String = explored.never.iter().map(|name| format!(", never: {name}")).collect();
        let verdict =
            explored.violation.map_or("no counterexample".to_owned(), |violation| violation.to_string());
        let seconds = explored.time.as_secs_f64();
        println!(
            "  {scene:36} {unique:>9} states of {generated:>9}, depth {depth:>2}, {seconds:>5.1} s: {verdict}{never}"
        );
    }
}
