//! `cargo xtask conformance`: runs the suite on one backend after another.

use anyhow::{Result, bail};

use crate::{
    backends::{BACKENDS, Backend},
    project,
    project::Project,
    report::Report,
    setup,
};

/// Runs the suite on these backends, on all when none is named. Each prints one line per case and its closing line.
pub(crate) fn run(project: &Project, names: &[String]) -> Result<()> {
    let (mut report, selected) = (Report::default(), select(names)?);
    if selected.iter().any(|backend| !backend.servers.is_empty()) {
        setup::install_servers()?;
    }
    for Backend { name, package, suite, .. } in selected {
        let arguments = format!("test -p {package} --all-features --test {suite}");
        report.step(name, |tests| project::run_tests(&mut project.cargo(&arguments), tests));
    }
    report.close()
}

fn select(names: &[String]) -> Result<Vec<&'static Backend>> {
    if names.is_empty() {
        return Ok(BACKENDS.iter().collect());
    }
    let all = BACKENDS.iter().map(|backend| backend.name).collect::<Vec<_>>().join(", ");
    let find = |name: &String| match BACKENDS.iter().find(|backend| backend.name == name) {
        Some(found) => Ok(found),
        None => bail!("no backend {name:?}; there are {all}"),
    };
    names.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_backends_are_selected_when_none_is_named() {
        assert_eq!(select(&[]).unwrap().len(), BACKENDS.len());
    }

    #[test]
    fn backend_is_selected_by_its_name() {
        assert_eq!(select(&["file".to_owned()]).unwrap()[0].package, "lockkit-file");
        let error = select(&["fiel".to_owned()]).unwrap_err().to_string();
        let names = "memory, file, etcd, redis, redis-sentinel, redis-cluster, redlock, redlock-3, zk";
        assert!(error.contains(names), "{error}");
    }
}
