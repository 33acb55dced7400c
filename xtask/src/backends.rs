//! The backends of this project: the one table that the other chores read.
//!
//! Tests compare it with three lists that cannot read it: that of the suite, that of `lockkit-chaos`, and the nightly
//! workflow's runs of chaos. No test compares the lists of crates and features in manifests, in `test.rs`, in
//! `tidy/scaffolding.rs`, in `package/new_project.rs` and in the benchmark; `docs/adding-a-backend.md` names them.

/// A backend, or one of its setups.
#[derive(Debug)]
pub(crate) struct Backend {
    /// On the command line, in reports and in tables.
    pub(crate) name: &'static str,
    /// The package and the test program that run the conformance suite on it.
    pub(crate) package: &'static str,
    pub(crate) suite: &'static str,
    /// The Debian packages of the servers that its tests start; see `setup.rs`.
    pub(crate) servers: &'static [&'static str],
    /// Whether the flash sale runs on it. Then its name is also a URL scheme; if it needs a server, also a feature of
    /// `lockkit-demo` and an argument of program `testbed`.
    pub(crate) has_sale: bool,
    /// Whether `lockkit-chaos` has it; only a test reads it.
    #[cfg_attr(not(test), expect(dead_code, reason = "chaos has a list of its own, which a test compares"))]
    has_chaos: bool,
}

const ETCD: &[&str] = &["etcd-server"];
const REDIS: &[&str] = &["redis-server"];
const SENTINEL: &[&str] = &["redis-server", "redis-sentinel"];
const ZOOKEEPER: &[&str] = &["default-jre-headless", "libzookeeper-java"];

/// Every backend, in the order of the tables.
pub(crate) static BACKENDS: [Backend; 12] = [
    backend("memory", "lockkit-conformance", "conformance", &[]),
    backend("file", "lockkit-file", "conformance", &[]).with_sale().with_chaos(),
    backend("etcd", "lockkit-etcd", "conformance", ETCD).with_sale().with_chaos(),
    backend("etcd-single", "lockkit-etcd", "conformance", ETCD),
    backend("etcd-guard", "lockkit-etcd", "conformance", ETCD),
    backend("etcd-rpc", "lockkit-etcd", "conformance", ETCD),
    backend("redis", "lockkit-redis", "conformance", REDIS).with_sale().with_chaos(),
    backend("redis-sentinel", "lockkit-redis", "conformance_sentinel", SENTINEL).with_chaos(),
    backend("redis-cluster", "lockkit-redis", "conformance_cluster", REDIS).with_chaos(),
    backend("redlock", "lockkit-redis", "conformance_redlock", REDIS).with_chaos(),
    backend("redlock-3", "lockkit-redis", "conformance_redlock_3", REDIS),
    backend("zk", "lockkit-zk", "conformance", ZOOKEEPER).with_sale().with_chaos(),
];

const fn backend(
    name: &'static str,
    package: &'static str,
    suite: &'static str,
    servers: &'static [&'static str],
) -> Backend {
    Backend { name, package, suite, servers, has_sale: false, has_chaos: false }
}

impl Backend {
    const fn with_sale(self) -> Self {
        Self { has_sale: true, ..self }
    }

    const fn with_chaos(self) -> Self {
        Self { has_chaos: true, ..self }
    }
}

/// The names of the backends on which the flash sale runs.
pub(crate) fn with_sale() -> impl Iterator<Item = &'static str> {
    BACKENDS.iter().filter(|backend| backend.has_sale).map(|backend| backend.name)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;
    use crate::project::Project;

    fn text(path: &str) -> String {
        fs::read_to_string(Project::here().root().join(path)).unwrap()
    }

    fn with_chaos() -> BTreeSet<&'static str> {
        BACKENDS.iter().filter(|backend| backend.has_chaos).map(|backend| backend.name).collect()
    }

    #[test]
    fn suite_lists_the_same_backends() {
        let lines =
            BACKENDS.iter().map(|Backend { name, package, suite, .. }| format!("{name} {package} {suite}"));
        let listed = text("conformance/backends.txt");
        assert_eq!(lines.collect::<Vec<_>>(), listed.lines().collect::<Vec<_>>());
    }

    #[test]
    fn every_backend_has_a_test_program() {
        for Backend { name, package, suite, .. } in &BACKENDS {
            let folder = if *name == "memory" { "conformance" } else { package };
            let tests = Project::here().root().join(folder).join("tests");
            let programs = [format!("{suite}.rs"), format!("{suite}/main.rs")].map(|file| tests.join(file));
            assert!(programs.iter().any(|program| program.is_file()), "{name}");
        }
    }

    #[test]
    fn chaos_has_the_same_backends() {
        let source = text("chaos/src/store/mod.rs");
        for Backend { name, has_chaos, .. } in &BACKENDS {
            assert_eq!(source.contains(&format!("{name:?}")), *has_chaos, "{name}");
        }
    }

    #[test]
    fn every_backend_of_chaos_runs_nightly() {
        let workflow = text(".github/workflows/nightly.yml");
        let (_, job) = workflow.split_once("\n  chaos:\n").unwrap();
        let list = job.split_once("backend: [").unwrap().1.split_once(']').unwrap().0;
        assert_eq!(list.split(", ").collect::<BTreeSet<_>>(), with_chaos());
    }

    #[test]
    fn backends_of_the_sale_are_schemes() {
        let source = text("lockkit/src/connect.rs");
        for name in with_sale() {
            assert!(source.contains(&format!("{name:?}")), "{name}");
        }
    }

    #[test]
    fn testbed_starts_every_server_of_the_sale() {
        let program = text("testbed/src/bin/testbed.rs");
        for Backend { name, .. } in BACKENDS.iter().filter(|one| one.has_sale && !one.servers.is_empty()) {
            assert!(program.contains(&format!("Some({name:?})")), "{name}");
        }
    }
}
