//! `cargo run -p lockkit-models`: explores all models and prints what was found.
//!
//! With a model's name, or the beginning of it, only that one, with the counterexamples step by step.

use lockkit_models::{
    etcd::Etcd,
    explore::{Protocol, explore, hunt},
};

fn main() {
    let wanted = std::env::args().nth(1);
    show::<Etcd>(wanted.as_deref());
}

/// One line per scene of the full protocol and per step that was taken out.
fn show<M: Protocol>(wanted: Option<&str>) {
    if wanted.is_some_and(|wanted| !M::NAME.to_lowercase().starts_with(&wanted.to_lowercase())) {
        return;
    }
    println!("{}", M::NAME);
    for (scene, model) in M::scenes() {
        let explored = explore(&model);
        let verdict =
            explored.violation.map_or("no counterexample".to_owned(), |violation| violation.to_string());
        println!(
            "  {scene:28} {:>9} states, {:>10} generated, depth {:>3}, {:>6.2} s: {verdict}{}",
            explored.unique,
            explored.generated,
            explored.depth,
            explored.time.as_secs_f64(),
            explored.never.iter().map(|name| format!(", never: {name}")).collect::<String>(),
        );
    }
    for removal in M::removals() {
        let found = match hunt(&removal.model, removal.breaks) {
            Some(violation) if wanted.is_some() => violation.to_string(),
            Some(violation) => {
                format!("not \"{}\" after {} steps", violation.property, violation.trace.len())
            }
            None => format!("still \"{}\"", removal.breaks),
        };
        println!("  without {:28} {found}", format!("{:?}", removal.step));
    }
}
