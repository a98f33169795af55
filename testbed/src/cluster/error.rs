//! Why a private cluster does not start or stop, in sentences for the person who runs it.
//!
//! Each sentence names the folder, account or program it is about and, where there is one, the
//! remedy. What a server or a program said itself is quoted, never put in other words.

use std::io;
use std::path::PathBuf;

/// What went wrong with a private cluster, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(
        "PostgreSQL is not installed: no initdb and postgres in PATH or /usr/lib/postgresql/*/bin. \
         Install it (Debian, Ubuntu: apt-get install postgresql; Fedora: dnf install postgresql-server \
         postgresql-contrib), or set PGBIN to the folder that has them"
    )]
    NotInstalled,
    #[error("PGBIN is {folder:?}, which has no initdb and postgres; correct it or unset it")]
    BadPgbin { folder: PathBuf },
    #[error("{folder:?} has {version:?}; PostgreSQL 14 or newer is needed")]
    TooOld { folder: PathBuf, version: String },
    #[error("PostgreSQL refuses to run as root, and this machine has neither an account postgres nor nobody")]
    NoAccount,
    #[error(
        "the account {account}, which runs PostgreSQL, can't reach {folder:?}, because {above:?} is closed to it; \
         choose a folder elsewhere, such as under /var/tmp"
    )]
    Unreachable { folder: PathBuf, above: PathBuf, account: String },
    #[error("a server (process {pid}) already runs on {folder:?}; stop it first, or choose another folder")]
    AlreadyRunning { folder: PathBuf, pid: u32 },
    #[error(
        "{folder:?} was made by PostgreSQL {made_by}, but the server found is version {found}; \
         set PGBIN to a server of that version, or delete the folder"
    )]
    OtherVersion { folder: PathBuf, made_by: String, found: u32 },
    #[error("{program} failed ({status}):\n{output}")]
    Program { program: String, status: String, output: String },
    #[error("the server did not become ready ({why}); the end of its log {log:?}:\n{tail}")]
    NotReady { why: String, log: PathBuf, tail: String },
    #[error("the server did not stop within {seconds} s and was killed")]
    DidNotStop { seconds: u64 },
    #[error("{doing}: {error}")]
    Io { doing: String, error: io::Error },
    #[error("{doing}: {error}")]
    Sql { doing: String, error: sqlx::Error },
}

impl ClusterError {
    pub(super) fn io(doing: String, error: io::Error) -> Self {
        Self::Io { doing, error }
    }
}
