//! `cargo xtask conformance`: the suite on one backend after another.

use anyhow::{Result, bail};

use crate::{project, project::Project, report::Report};

/// Every backend, and the package whose test program runs the suite on it.
const BACKENDS: [(&str, &str); 4] = [
    ("memory", "lockkit-conformance"),
    ("file", "lockkit-file"),
    ("etcd", "lockkit-etcd"),
    ("redis", "lockkit-redis"),
];

/// Runs the suite on these backends; on all when none is named. Each prints one line per case and its closing line.
pub(crate) fn run(project: &Project, wanted: &[String]) -> Result<()> {
    let mut report = Report::default();
    for (backend, package) in chosen(wanted)? {
        let arguments = format!("test -p {package} --test conformance");
        report.step(backend, |counts| project::run_tests(&mut project.cargo(&arguments), counts));
    }
    report.close()
}

fn chosen(wanted: &[String]) -> Result<Vec<(&'static str, &'static str)>> {
    if wanted.is_empty() {
        return Ok(BACKENDS.to_vec());
    }
    let find = |name: &String| match BACKENDS.iter().find(|(backend, _)| backend == name) {
        Some(found) => Ok(*found),
        None => bail!("no backend {name:?}; there are {}", BACKENDS.map(|(backend, _)| backend).join(", ")),
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
        assert_eq!(chosen(&["file".to_owned()]).unwrap(), [("file", "lockkit-file")]);
        let error = chosen(&["fiel".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("memory, file, etcd"), "{error}");
    }

    #[test]
    fn every_backend_has_a_test_program() {
        let root = Project::here();
        for (backend, package) in BACKENDS {
            let folder = if backend == "memory" { "conformance" } else { package };
            assert!(root.root().join(folder).join("tests/conformance.rs").is_file(), "{package}");
        }
    }
}
