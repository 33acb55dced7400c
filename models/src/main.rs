//! `cargo run -p lockkit-models [-- [--long] [MODEL [STEP]]]`: explores all models and prints what it finds.
//!
//! A model's name, or the beginning of it, selects that model and prints the counterexamples action by action. A step's
//! name selects the protocol without that step. `--long` adds the scenes that take too long for the tests.

use lockkit_models::{
    etcd::Etcd,
    etcd_modes::EtcdModes,
    explore::{Protocol, SafetyStep as _, explore, hunt},
    keeper::Keeper,
    redis::Redis,
    redis_modes::RedisModes,
    redlock::Redlock,
    zookeeper::ZooKeeper,
};

/// The arguments of the command line.
#[derive(Debug, Default)]
struct Arguments {
    long: bool,
    model: Option<String>,
    step: Option<String>,
}

fn main() {
    let (options, names): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let mut names = names.into_iter();
    let long = options.iter().any(|option| option == "--long");
    let arguments = Arguments { long, model: names.next(), step: names.next() };
    show::<Etcd>(&arguments);
    show::<EtcdModes>(&arguments);
    show::<Keeper>(&arguments);
    show::<Redlock>(&arguments);
    show::<Redis>(&arguments);
    show::<RedisModes>(&arguments);
    show::<ZooKeeper>(&arguments);
}

/// Prints one line per scene of the full protocol and per removed step.
fn show<M: Protocol>(arguments: &Arguments) {
    if arguments
        .model
        .as_ref()
        .is_some_and(|model| !M::NAME.to_lowercase().starts_with(&model.to_lowercase()))
    {
        return;
    }
    println!("{}", M::NAME);
    if arguments.step.is_none() {
        show_scenes::<M>(M::SCENES);
        show_scenes::<M>(if arguments.long { M::LONG_SCENES } else { &[] });
    }
    for (step, property, scene) in M::Step::REMOVALS {
        let model = M::scene(scene, Some(*step));
        let step = format!("{step:?}");
        if arguments.step.as_ref().is_some_and(|selected| *selected != step) {
            continue;
        }
        let found = match hunt(&model, property) {
            Some(violation) if arguments.model.is_some() => violation.to_string(),
            Some(violation) => {
                format!("\"{}\" is broken after {} steps", violation.property, violation.trace.len())
            }
            None => format!("still holds: \"{property}\""),
        };
        println!("  without {step:28} {found}");
    }
}

fn show_scenes<M: Protocol>(scenes: &[&'static str]) {
    for scene in scenes {
        let explored = explore(&M::scene(scene, None));
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
