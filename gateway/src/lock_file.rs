//! The lock that keeps a second process from acting as this gateway, and proves a predecessor dead.
//!
//! A process holds `flock` on `<state_dir>/gateway-<id>.lock` as long as it lives; the kernel frees
//! it with the process, however that ends. The owner text of the lease is
//! `<hostname>/<boot id>/<device>:<inode>/<process>`: whoever holds the lock of that very file, on
//! that boot of that machine, knows that every other owner with the same beginning is dead.
//!
//! 1. The file is never removed: a second file of the same name would be a second lock.
//! 2. The prefix of dead owners ends with the slash before the process's own part.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use crate::error::GatewayError;

/// The lock, held until dropped.
#[derive(Debug)]
pub struct LockFile {
    _file: File,
    owner: String,
    dead_owner_prefix: String,
}

impl LockFile {
    /// Takes the lock of `gateway_id` in `state_dir`, without waiting.
    pub fn take(state_dir: &Path, gateway_id: &str) -> Result<Self, GatewayError> {
        let path = state_dir.join(format!("gateway-{gateway_id}.lock"));
        let machine = |doing: &str, error: &dyn std::fmt::Display| {
            GatewayError::Machine(format!(
                "{doing} {}: {error}; gateway.state_dir must be a folder on a local disk that the gateway's user may \
                 write to",
                path.display()
            ))
        };
        std::fs::create_dir_all(state_dir).map_err(|error| machine("can't make the folder of", &error))?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| machine("can't open", &error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => {
                return Err(GatewayError::AlreadyRunning(format!(
                    "another process already acts as gateway {gateway_id:?} (it holds {}); stop it first, or give \
                     this one its own gateway.id",
                    path.display()
                )));
            }
            Err(error) => return Err(machine("can't lock", &error)),
        }
        let metadata = file.metadata().map_err(|error| machine("can't look at", &error))?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(|error| {
            GatewayError::Machine(format!("the machine's boot id can't be read: {error}"))
        })?;
        let names = rustix::system::uname();
        let host = names.nodename().to_string_lossy();
        let dead_owner_prefix = format!("{host}/{}/{}:{}/", boot.trim(), metadata.dev(), metadata.ino());
        let owner = format!("{dead_owner_prefix}{}", Uuid::now_v7());
        Ok(Self { _file: file, owner, dead_owner_prefix })
    }

    /// This process instance, for the lease.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Owners that begin so are dead, but for this one.
    pub fn dead_owner_prefix(&self) -> &str {
        &self.dead_owner_prefix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_process_of_one_gateway_is_refused_until_the_first_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = LockFile::take(folder.path(), "g1").expect("nobody holds it");
        let error = LockFile::take(folder.path(), "g1").expect_err("it is held");
        assert!(error.to_string().contains("another process already acts as gateway \"g1\""), "{error}");
        assert_eq!(error.exit_code(), 1);
        LockFile::take(folder.path(), "g2").expect("another gateway has another lock");
        drop(first);
        LockFile::take(folder.path(), "g1").expect("it is free");
    }

    #[test]
    fn a_successor_on_this_boot_proves_its_predecessor_dead_and_only_that() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = LockFile::take(folder.path(), "g1").expect("free");
        let (owner, prefix) = (first.owner().to_owned(), first.dead_owner_prefix().to_owned());
        let other = LockFile::take(folder.path(), "g2").expect("free");
        drop(first);
        let second = LockFile::take(folder.path(), "g1").expect("free");
        assert_eq!(second.dead_owner_prefix(), prefix);
        assert!(owner.starts_with(second.dead_owner_prefix()));
        assert_ne!(second.owner(), owner);
        assert!(!other.owner().starts_with(second.dead_owner_prefix()));
        assert_eq!(owner.split('/').count(), 4);
    }

    #[test]
    fn a_folder_that_can_not_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let error = LockFile::take(&file.path().join("below"), "g1").expect_err("a file is no folder");
        assert!(error.to_string().contains("gateway.state_dir must be a folder"), "{error}");
    }
}
