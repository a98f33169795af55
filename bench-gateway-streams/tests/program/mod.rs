//! The built program, run as a person would run it, with a folder of its own for temporary files.
//!
//! What is left in that folder when it has ended is what it did not clean up.

#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The harness, with its temporary files in `folder`.
pub fn harness(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench-gateway-streams"));
    command.env("TMPDIR", folder).stdin(Stdio::null());
    command
}

/// The gateway stands beside the harness; a run of this package's tests alone does not build it.
pub fn build_gateway() -> PathBuf {
    let gateway = Path::new(env!("CARGO_BIN_EXE_bench-gateway-streams")).with_file_name("gateway");
    if !gateway.is_file() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo).args(["build", "--package", "gateway", "--bin", "gateway"]).status();
        assert!(built.unwrap().success() && gateway.is_file(), "build it: cargo build --package gateway");
    }
    gateway
}

/// A folder that the database's account can reach too.
pub fn open_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::Builder::new().prefix("bench-test-").tempdir().unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

/// What the program said, on both of its outputs.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What is left in `folder`.
pub fn left_in(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Asserts that the program has cleaned up.
pub fn nothing_is_left_in(folder: &Path) {
    assert_eq!(left_in(folder), Vec::<PathBuf>::new());
}
