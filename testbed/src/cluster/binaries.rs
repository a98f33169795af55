//! Where PostgreSQL's programs are on this machine, and what they are.
//!
//! Looked for in this order: the folder that `$PGBIN` names, the folders of `PATH`, then the
//! distribution's `/usr/lib/postgresql/<version>/bin`, newest version first.
//!
//! 1. A folder counts only if it has both `initdb` and `postgres`.
//! 2. `$PGBIN` is an order: where it is set and wrong, nothing else is tried.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ClusterError;

/// PostgreSQL's programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// The folder that they are in, links resolved.
    pub folder: PathBuf,
    /// The major version.
    pub major: u32,
}

/// Oldest major version that a gateway works with.
pub(super) const OLDEST_MAJOR: u32 = 14;

impl Binaries {
    /// Finds them by this process's environment.
    pub fn find() -> Result<Self, ClusterError> {
        Self::find_in(
            std::env::var_os("PGBIN"),
            std::env::var_os("PATH").unwrap_or_default(),
            Path::new("/usr/lib/postgresql"),
        )
    }

    fn find_in(pgbin: Option<OsString>, path: OsString, distribution: &Path) -> Result<Self, ClusterError> {
        if let Some(folder) = pgbin.map(PathBuf::from) {
            return match holds_programs(&folder) {
                Some(folder) => Self::with_version(folder),
                None => Err(ClusterError::BadPgbin { folder }),
            };
        }
        let on_path = std::env::split_paths(&path).find_map(|folder| holds_programs(&folder));
        match on_path.or_else(|| newest_of(distribution)) {
            Some(folder) => Self::with_version(folder),
            None => Err(ClusterError::NotInstalled),
        }
    }

    fn with_version(folder: PathBuf) -> Result<Self, ClusterError> {
        let program = folder.join("postgres");
        let output = Command::new(&program)
            .arg("--version")
            .output()
            .map_err(|error| ClusterError::io(format!("running {} --version", program.display()), error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let major = text
            .split_ascii_whitespace()
            .filter_map(|word| word.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok())
            .next();
        match major {
            Some(major) if major >= OLDEST_MAJOR => Ok(Self { folder, major }),
            _ => Err(ClusterError::TooOld { folder, version: text.trim().to_owned() }),
        }
    }

    /// The path of one of the programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Whether the server can load `library` (a name without its ending).
    pub fn has_library(&self, library: &str) -> bool {
        let file = format!("{library}.so");
        let asked = Command::new(self.program("pg_config")).arg("--pkglibdir").output().ok();
        let asked =
            asked.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim().to_owned()));
        let beside = self.folder.parent().map(|parent| parent.join("lib"));
        asked.into_iter().chain(beside).any(|folder| folder.join(&file).is_file())
    }
}

// A link such as /usr/local/bin/postgres is followed: its siblings are where it leads.
fn holds_programs(folder: &Path) -> Option<PathBuf> {
    let server = folder.join("postgres").canonicalize().ok()?;
    let folder = server.parent()?;
    (folder.join("initdb").is_file() && server.is_file()).then(|| folder.to_owned())
}

fn newest_of(distribution: &Path) -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir(distribution)
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, holds_programs(&entry.path().join("bin"))?))
        })
        .collect();
    versions.sort();
    versions.pop().map(|(_, folder)| folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn install(folder: &Path, version: &str) {
        std::fs::create_dir_all(folder).unwrap();
        for program in ["postgres", "initdb"] {
            let file = folder.join(program);
            std::fs::write(&file, format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn the_newest_version_of_the_distribution_is_taken() {
        let root = tempfile::tempdir().unwrap();
        for major in ["9", "14", "17"] {
            install(&root.path().join(major).join("bin"), &format!("{major}.2 (Debian {major}.2-1)"));
        }
        let found = Binaries::find_in(None, OsString::new(), root.path()).unwrap();
        assert_eq!((found.major, found.folder), (17, root.path().canonicalize().unwrap().join("17/bin")));
    }

    #[test]
    fn a_wrong_pgbin_is_not_passed_over() {
        let root = tempfile::tempdir().unwrap();
        install(&root.path().join("16/bin"), "16.1");
        let error = Binaries::find_in(Some("/nowhere".into()), OsString::new(), root.path()).unwrap_err();
        assert!(error.to_string().contains("PGBIN"), "{error}");
    }

    #[test]
    fn a_machine_without_postgresql_is_told_what_to_install() {
        let root = tempfile::tempdir().unwrap();
        let error = Binaries::find_in(None, OsString::new(), root.path()).unwrap_err();
        assert!(error.to_string().contains("apt-get install postgresql"), "{error}");
    }

    #[test]
    fn an_old_server_is_refused_by_its_version() {
        let root = tempfile::tempdir().unwrap();
        install(&root.path().join("bin"), "13.9");
        let path = root.path().join("bin").into_os_string();
        let error = Binaries::find_in(None, path, Path::new("/nowhere")).unwrap_err();
        assert!(error.to_string().contains("13.9"), "{error}");
    }
}
