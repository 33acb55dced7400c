//! Writes `lockkit-etcd/src/client/pb` from the files in `lockkit-etcd/proto`. The result is checked in, so that
//! building lockkit-etcd needs no `protoc`. The test fails when it is older than the `.proto` files or the generator.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use tonic_prost_build::Config;

/// The `.proto` files; each imports only those before it.
const SOURCES: [&str; 3] = ["kv.proto", "rpc.proto", "v3lock.proto"];

/// The generated files: one per package.
const PACKAGES: [&str; 3] = ["etcdserverpb.rs", "mvccpb.rs", "v3lockpb.rs"];

fn main() -> Result<()> {
    let generated = generate()?;
    for (name, code) in PACKAGES.iter().zip(generated) {
        let path = folder("../src/client/pb").join(name);
        fs::write(&path, code).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Returns the code of each package.
fn generate() -> Result<Vec<String>> {
    let (sources, result) = (folder("../proto"), tempfile::tempdir()?);
    let mut config = Config::new();
    config.protoc_executable(protoc_bin_vendored::protoc_bin_path()?);
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .emit_rerun_if_changed(false)
        // They contain a password and a token.
        .skip_debug(["etcdserverpb.AuthenticateRequest", "etcdserverpb.AuthenticateResponse"])
        .out_dir(result.path())
        .compile_with_config(config, &SOURCES.map(|name| sources.join(name)), &[sources])?;
    let read = |name| fs::read_to_string(result.path().join(name)).with_context(|| format!("no {name}"));
    PACKAGES.iter().map(read).collect()
}

fn folder(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_in_code_is_what_the_generator_writes() {
        for (name, code) in PACKAGES.iter().zip(generate().unwrap()) {
            let checked_in = fs::read_to_string(folder("../src/client/pb").join(name)).unwrap();
            assert!(checked_in == code, "{name} is old: run `cargo run -p lockkit-etcd-codegen`");
        }
    }
}
