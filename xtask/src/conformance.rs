//! `cargo xtask conformance`: the suite on one backend after another.

use anyhow::{Result, bail};

use crate::{project, project::Project, report::Report};

/// A backend, and the package and test program that run the suite on it.
pub(crate) type Suite = (&'static str, &'static str, &'static str);

/// Every backend.
pub(crate) const BACKENDS: [Suite; 9] = [
    ("memory", "lockkit-conformance", "conformance"),
    ("file", "lockkit-file", "conformance"),
    ("etcd", "lockkit-etcd", "conformance"),
    ("redis", "lockkit-redis", "conformance"),
    ("redis-sentinel", "lockkit-redis", "conformance_sentinel"),
    ("redis-cluster", "lockkit-redis", "conformance_cluster"),
    ("redlock", "lockkit-redis", "conformance_redlock"),
    ("redlock-3", "lockkit-redis", "conformance_redlock_3"),
    ("zk", "lockkit-zk", "conformance"),
];

/// Runs the suite on these backends; on all when none is named. Each prints one line per case and its closing line.
pub(crate) fn run(project: &Project, wanted: &[String]) -> Result<()> {
    let mut report = Report::default();
    for (backend, package, program) in chosen(wanted)? {
        let arguments = format!("test -p {package} --all-features --test {program}");
        report.step(backend, |tests| project::run_tests(&mut project.cargo(&arguments), tests));
    }
    report.close()
}

fn chosen(wanted: &[String]) -> Result<Vec<Suite>> {
    if wanted.is_empty() {
        return Ok(BACKENDS.to_vec());
    }
    let find = |name: &String| match BACKENDS.iter().find(|(backend, ..)| backend == name) {
        Some(found) => Ok(*found),
        None => bail!("no backend {name:?}; there are {}", BACKENDS.map(|(backend, ..)| backend).join(", ")),
    };
    wanted.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_backends_are_chosen_when_none_is_named() {
        assert_eq!(chosen(&[]).unwrap(), BACKENDS);
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
        for (backend, package, program) in BACKENDS {
            let folder = if backend == "memory" { "conformance" } else { package };
            let tests = root.root().join(folder).join("tests");
            let programs =
                [format!("{program}.rs"), format!("{program}/main.rs")].map(|file| tests.join(file));
            assert!(programs.iter().any(|program| program.is_file()), "{package}");
        }
    }
}
