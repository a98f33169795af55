//! The rows of `node_certs`: what is recorded of certificates, and the looks at what of them is revoked.
//!
//! 1. A change of a revocation is stamped with when it was made, by the database's clock.
//! 2. A look tells of so many as it is asked for, in order, and where to go on.

use std::collections::BTreeMap;

use gateway_core::certificate::{CertificateRecord, UnknownSerial};
use gateway_core::duplicate::DUPLICATE_IDENTITY;
use gateway_core::ids::NodeId;
use gateway_core::store::{CertificateState, ChangeMark, RevocationLook, RevocationsFound};
use gateway_core::time::UnixMillis;

use super::Store;

/// A row of `node_certs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRow {
    pub record: CertificateRecord,
    /// When that was set or cleared last.
    pub changed: Option<UnixMillis>,
}

impl CertificateRow {
    /// A certificate of this node, as an issuer records it.
    pub fn of(node: &NodeId) -> Self {
        Self { record: CertificateRecord::of(node.as_str(), "node"), changed: None }
    }

    /// Whether it is revoked as a duplicate.
    pub fn is_quarantined(&self) -> bool {
        self.record.revoked.as_deref() == Some(DUPLICATE_IDENTITY)
    }
}

#[derive(Debug)]
pub(super) struct Certificates {
    rows: BTreeMap<String, CertificateRow>,
    pub(super) unknown: UnknownSerial,
    destructive: Vec<String>,
}

impl Default for Certificates {
    /// None is recorded, and those that are not are let in.
    fn default() -> Self {
        Self { rows: BTreeMap::new(), unknown: UnknownSerial::Accept, destructive: Vec::new() }
    }
}

impl Certificates {
    pub(super) fn rows(&self) -> &BTreeMap<String, CertificateRow> {
        &self.rows
    }

    /// What a Hello reads.
    pub(super) fn record(&self, serial: &str) -> Option<&CertificateRecord> {
        self.rows.get(serial).map(|row| &row.record)
    }

    /// Whether a command of this kind may be sent under a certificate.
    pub(super) fn permits(&self, serial: &str, kind: &str) -> bool {
        self.record(serial).is_none_or(|record| record.permits(&self.destructive, kind))
    }

    pub(super) fn revoke(&mut self, serial: &str, node: &NodeId, reason: &str, now: UnixMillis) {
        let row = self.rows.entry(serial.to_owned()).or_insert_with(|| CertificateRow::of(node));
        row.record.revoked = Some(reason.to_owned());
        row.changed = Some(now);
    }

    pub(super) fn look(&self, look: &RevocationLook, now: UnixMillis) -> RevocationsFound {
        let micros = |at: UnixMillis| at.0 * 1_000;
        let state = |serial: &String, row: &CertificateRow| CertificateState {
            serial: serial.clone(),
            revoked: row.record.revoked.clone(),
        };
        let (mut certificates, mut more_changes, mut more_after) = (Vec::new(), None, None);
        match look {
            RevocationLook::Changes { after, at_most } => {
                let changed = self.rows.iter().filter_map(|(serial, row)| {
                    Some((
                        ChangeMark { micros: micros(row.changed?), serial: serial.clone() },
                        state(serial, row),
                    ))
                });
                let mut changed: Vec<_> = changed.filter(|(mark, _)| mark > after).collect();
                changed.sort_by(|(a, _), (b, _)| a.cmp(b));
                changed.truncate(*at_most as usize);
                if changed.len() == *at_most as usize {
                    more_changes = changed.last().map(|(mark, _)| mark.clone());
                }
                certificates.extend(changed.into_iter().map(|(_, state)| state));
            }
            RevocationLook::All { after, at_most } => {
                let revoked =
                    self.rows.iter().filter(|(serial, row)| *serial > after && row.record.revoked.is_some());
                certificates.extend(revoked.take(*at_most as usize).map(|(serial, row)| state(serial, row)));
                if certificates.len() == *at_most as usize {
                    more_after = certificates.last().map(|state| state.serial.clone());
                }
            }
        }
        RevocationsFound { certificates, more_changes, more_after, now_micros: micros(now) }
    }
}

impl Store {
    /// The same database, which lets in no certificate that it does not know.
    #[must_use]
    pub fn knowing_certificates(mut self) -> Self {
        self.certificates.unknown = UnknownSerial::Refuse;
        self
    }

    /// The same database, where these kinds of commands go to no machine that its tenant controls.
    #[must_use]
    pub fn with_destructive_kinds(mut self, kinds: &[&str]) -> Self {
        self.certificates.destructive = kinds.iter().map(|kind| (*kind).to_owned()).collect();
        self
    }

    /// Records a certificate, or changes what is recorded of it but for its revocation.
    pub fn record_certificate(&mut self, serial: &str, row: CertificateRow) {
        let before = self.certificates.rows.get(serial);
        let (revoked, changed) = before.map_or((None, None), |row| (row.record.revoked.clone(), row.changed));
        let record = CertificateRecord { revoked, ..row.record };
        self.certificates.rows.insert(serial.to_owned(), CertificateRow { record, changed });
    }

    /// An operator revokes a certificate, or clears its revocation.
    pub fn set_revoked(&mut self, serial: &str, reason: Option<&str>, now: UnixMillis) {
        let Some(row) = self.certificates.rows.get_mut(serial) else { return };
        if row.record.revoked.as_deref() != reason {
            row.record.revoked = reason.map(str::to_owned);
            row.changed = Some(now);
        }
    }

    /// Whether the node has a certificate that is revoked as a duplicate.
    pub fn is_quarantined(&self, node: &NodeId) -> bool {
        self.certificates.rows.values().any(|row| row.record.node == node.as_str() && row.is_quarantined())
    }
}
