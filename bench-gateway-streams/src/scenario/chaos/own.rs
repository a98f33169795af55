//! Mounts and network of the run's own, so that a full disk and lost packets are nobody else's: as root
//! the program starts itself anew in namespaces that end with it.
//!
//! 1. Outside of the run nothing is mounted, no address and no rule is changed.
//! 2. Whoever is not root, or may make no namespaces, is told so; the other faults work all the same.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use tempfile::TempDir;

const MARK: &str = "GATEWAY_CHAOS_NAMESPACES";
const OWN: [&str; 4] = ["--mount", "--net", "--propagation", "private"];

/// What this process may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rights {
    /// It is root in namespaces of its own.
    Namespaces,
    NotRoot,
    NoNamespaces,
}

impl Rights {
    pub(super) fn of_this_process() -> Self {
        match (rustix::process::geteuid().is_root(), std::env::var_os(MARK).is_some()) {
            (true, true) => Self::Namespaces,
            (true, false) => Self::NoNamespaces,
            (false, _) => Self::NotRoot,
        }
    }

    pub(super) fn are_namespaces(self) -> bool {
        self == Self::Namespaces
    }

    /// Why a mount or an address of its own is out of reach.
    pub(super) const fn why_not(self) -> &'static str {
        match self {
            Self::Namespaces => "nothing is in its way",
            Self::NotRoot => "it needs root, for a mount and a network of the run's own",
            Self::NoNamespaces => "this machine lets root make no namespaces (unshare --mount --net)",
        }
    }
}

/// Starts the program anew in namespaces of its own, where it can have them. To be called before anything
/// else was started.
pub(crate) fn in_namespaces_of_its_own() -> anyhow::Result<()> {
    match Rights::of_this_process() {
        Rights::Namespaces => return run("ip", &["link", "set", "lo", "up"]),
        Rights::NotRoot => return Ok(()),
        Rights::NoNamespaces => {}
    }
    let mut probe = Command::new("unshare");
    probe.args(OWN).args(["ip", "link", "set", "lo", "up"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    let program = std::env::current_exe().context("looking for this program")?;
    let mut again = Command::new("unshare");
    again.args(OWN).arg("--").arg(program).args(std::env::args_os().skip(1)).env(MARK, "1");
    Err(again.exec()).context("starting anew in namespaces of its own")
}

/// Runs a program of the system to its end; its words are the error.
pub(super) fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("running {program}"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), told.trim());
    Ok(())
}

/// A small disk for the database's data. Unmounted when dropped, to be dropped after the server.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// In memory; of a file system in a file only root of the whole machine could make a device.
    pub(super) fn mount(mebibytes: u32) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("chaos-disk-").tempdir()?;
        let at = folder.path().display().to_string();
        run("mount", &["-t", "tmpfs", "-o", &format!("size={mebibytes}m,mode=0755"), "tmpfs", &at])?;
        Ok(Self { folder })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Takes all the room that is left, again where there is some again; gives the file that holds it.
    pub(super) fn fill(&self) -> anyhow::Result<PathBuf> {
        use std::io::Write;
        let path = self.folder.path().join("filler");
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        let mut file = file.context("making the filler")?;
        let block = vec![0u8; 64 << 10];
        loop {
            match file.write(&block) {
                Ok(0) => return Ok(path),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(path),
                Err(error) => return Err(error).context("filling the disk"),
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let at = self.folder.path().display().to_string();
        // What is left of it ends with the namespace.
        let _ = run("umount", &["--lazy", &at]);
    }
}
