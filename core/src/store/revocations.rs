//! The looks at what is revoked, for the set that a gateway keeps of it.
//!
//! Owns the shapes of the questions and of the answers. When to look, and what follows, is the writer's to say.
//!
//! 1. A look changes nothing and waits for no row.
//! 2. `Changes` tells of certificates whose revocation was set or cleared, in order of (when, serial); `All` of
//!    those that are revoked and have not expired a day ago, in order of serial.
//! 3. Each look tells of at most so many as it is asked for; whether there may be more, it says.

use crate::revocation::Revocation;

/// A place among the changes: those behind it are later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeMark {
    /// By the database's clock, in microseconds since 1970: what happened at one instant may be much.
    pub micros: i64,
    pub serial: String,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RevocationLook {
    Changes {
        after: ChangeMark,
        at_most: u32,
    },
    /// From the serial after this one on; `""` stands before them all.
    All {
        after: String,
        at_most: u32,
    },
}

/// A certificate, and whether it is revoked now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateState {
    pub serial: String,
    /// Why it is, where it is.
    pub revoked: Option<String>,
}

impl CertificateState {
    /// The revocation, where it is revoked.
    pub fn revocation(self) -> Option<Revocation> {
        let Self { serial, revoked } = self;
        revoked.map(|reason| Revocation { serial, reason })
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevocationsFound {
    pub certificates: Vec<CertificateState>,
    /// Of `Changes`: where to go on, where there may be more.
    pub more_changes: Option<ChangeMark>,
    /// Of `All`: the serial to go on after, where there may be more.
    pub more_after: Option<String>,
    /// The database's clock at the look, in microseconds since 1970.
    pub now_micros: i64,
}
