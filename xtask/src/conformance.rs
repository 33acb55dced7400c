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
    for (program, names) in programs(&selected) {
        let names = names.join(",");
        let mut command = project.cargo(&program);
        command.env("LOCKKIT_BACKENDS", &names);
        report.step(&names, |tests| project::run_tests(&mut command, tests));
    }
    report.close()
}

/// Returns the arguments of each test program and the names of its backends: a program may have several.
fn programs(selected: &[&Backend]) -> Vec<(String, Vec<&'static str>)> {
    let mut programs: Vec<(String, Vec<&'static str>)> = Vec::new();
    for Backend { name, package, suite, .. } in selected {
        let program = format!("test -p {package} --all-features --test {suite}");
        match programs.iter_mut().find(|(known, _)| *known == program) {
            Some((_, names)) => names.push(name),
            None => programs.push((program, vec![name])),
        }
    }
    programs
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
        assert!(error.contains("memory, file, etcd, etcd-single, etcd-guard, etcd-rpc, redis, "), "{error}");
    }

    #[test]
    fn forms_of_a_backend_run_in_one_program() {
        let names = ["etcd", "file", "etcd-rpc"].map(str::to_owned);
        let programs = programs(&select(&names).unwrap());
        let names: Vec<_> = programs.iter().map(|(_, names)| names.join(",")).collect();
        assert_eq!(names, ["etcd,etcd-rpc", "file"]);
    }
}
