//! The account that the database server runs as: `initdb` and `postgres` refuse to run as root.
//!
//! 1. As an ordinary user, everything runs as that user.
//! 2. As root, it is `postgres` where that account exists, else `nobody`; the data belongs to it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::ClusterError;

/// Another account than ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) name: String,
    uid: u32,
    gid: u32,
}

impl Account {
    /// The account to change to; `None` where this process may run the server itself.
    pub(super) fn for_server() -> Result<Option<Self>, ClusterError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let accounts = std::fs::read_to_string("/etc/passwd")
            .map_err(|error| ClusterError::io("reading /etc/passwd".to_owned(), error))?;
        ["postgres", "nobody"]
            .into_iter()
            .find_map(|name| Self::parse(&accounts, name))
            .map(Some)
            .ok_or(ClusterError::NoAccount)
    }

    fn parse(accounts: &str, wanted: &str) -> Option<Self> {
        accounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, ..] = fields[..] else { return None };
            let (uid, gid): (u32, u32) = (uid.parse().ok()?, gid.parse().ok()?);
            (name == wanted && uid != 0).then(|| Self { name: name.to_owned(), uid, gid })
        })
    }

    #[cfg(test)]
    pub(super) fn for_tests(name: &str) -> Self {
        Self::parse(&std::fs::read_to_string("/etc/passwd").unwrap(), name).unwrap()
    }

    /// Makes `command` run as this account.
    pub(super) fn apply(&self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }

    /// Gives `path` to this account.
    pub(super) fn own(&self, path: &Path) -> Result<(), ClusterError> {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
            .map_err(|error| ClusterError::io(format!("giving {} to {}", path.display(), self.name), error))
    }

    /// Whether this account can reach `folder`: it needs the search right on each folder above it.
    pub(super) fn check_reach(&self, folder: &Path) -> Result<(), ClusterError> {
        for above in folder.ancestors().skip(1) {
            let Ok(metadata) = above.metadata() else { continue };
            let mode = metadata.permissions().mode();
            let needed = match metadata.uid() == self.uid {
                true => 0o100,
                false => 0o001,
            };
            if mode & needed == 0 {
                return Err(ClusterError::Unreachable {
                    folder: folder.to_owned(),
                    above: above.to_owned(),
                    account: self.name.clone(),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_whole_name_and_root_never() {
        let accounts =
            "root:x:0:0::/root:/bin/sh\npostgresql:x:5:5::/:/bin/sh\npostgres:x:103:109:x:/:/bin/sh\n";
        let found = Account::parse(accounts, "postgres").unwrap();
        assert_eq!((found.uid, found.gid), (103, 109));
        assert_eq!(Account::parse(accounts, "root"), None);
        assert_eq!(Account::parse(accounts, "nobody"), None);
    }

    #[test]
    fn a_folder_behind_a_closed_one_is_refused_by_name() {
        let root = tempfile::tempdir().unwrap();
        let closed = root.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
        let account = Account { name: "someone".into(), uid: 54_321, gid: 54_321 };
        let error = account.check_reach(&closed.join("data")).unwrap_err();
        assert!(error.to_string().contains("someone"), "{error}");
    }
}
