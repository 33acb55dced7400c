//! `cargo xtask conformance`: the suite on one backend after another.

use anyhow::{Result, bail};

use crate::{project, project::Project, report::Report, setup};

/// The backends that need no server.
const SERVERLESS: [&str; 2] = ["memory", "file"];

/// A backend, and the package and test program that run the suite on it.
pub(crate) type Suite = (&'static str, &'static str, &'static str);

/// Every backend, a line each; the suite reads it too.
const LIST: &str = include_str!("../../conformance/backends.txt");

/// Every backend.
pub(crate) fn backends() -> Vec<Suite> {
    let suite = |line: &'static str| {
        let mut words = line.split(' ');
        Some((words.next()?, words.next()?, words.next()?))
    };
    LIST.lines().filter_map(suite).collect()
}

/// Runs the suite on these backends; on all when none is named. Each prints one line per case and its closing line.
pub(crate) fn run(project: &Project, wanted: &[String]) -> Result<()> {
    let (mut report, chosen) = (Report::default(), chosen(wanted)?);
    if chosen.iter().any(|(backend, ..)| !SERVERLESS.contains(backend)) {
        setup::servers()?;
    }
    for (backend, package, program) in chosen {
        let arguments = format!("test -p {package} --all-features --test {program}");
        report.step(backend, |tests| project::run_tests(&mut project.cargo(&arguments), tests));
    }
    report.close()
}

fn chosen(wanted: &[String]) -> Result<Vec<Suite>> {
    let all = backends();
    if wanted.is_empty() {
        return Ok(all);
    }
    let names = all.iter().map(|(backend, ..)| *backend).collect::<Vec<_>>().join(", ");
    let find = |name: &String| match all.iter().find(|(backend, ..)| backend == name) {
        Some(found) => Ok(*found),
        None => bail!("no backend {name:?}; there are {names}"),
    };
    wanted.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_backends_are_chosen_when_none_is_named() {
        assert_eq!(chosen(&[]).unwrap(), backends());
        assert_eq!(backends().len(), LIST.lines().count(), "a line that is not understood");
    }

    #[test]
    fn a_backend_is_chosen_by_its_name() {
        assert_eq!(chosen(&["file".to_owned()]).unwrap(), [("file", "lockkit-file", "conformance")]);
        let error = chosen(&["fiel".to_owned()]).unwrap_err().to_string();
        assert!(
            error
                .contains("memory, file, etcd, redis, redis-sentinel, redis-cluster, redlock, redlock-3, zk"),
            "{error}"
        );
    }

    #[test]
    fn every_backend_has_a_test_program() {
        let root = Project::here();
        for (backend, package, program) in backends() {
            let folder = if backend == "memory" { "conformance" } else { package };
            let tests = root.root().join(folder).join("tests");
            let programs =
                [format!("{program}.rs"), format!("{program}/main.rs")].map(|file| tests.join(file));
            assert!(programs.iter().any(|program| program.is_file()), "{package}");
        }
    }
}
