//! Certificates, as the model conformance tests make them up: what is recorded, revoked and cleared, and the looks
//! at that.
//!
//! A node has one certificate, which may be recorded for another, and which two machines may have. Small numbers name
//! all; `Pair` says what each means.

use gateway_core::store::{ChangeMark, RevocationLook};
use gateway_core::time::UnixMillis;
use gateway_sim::store::CertificateRow;
use proptest::prelude::*;

use super::operations::NODES;
use super::pair::Pair;

/// What happens to a node's certificate, or who looks.
#[derive(Debug, Clone)]
pub enum Certify {
    /// It is recorded, for this node, in this role, with the first so many of `COMMAND_KINDS`; 3: all. And whether the
    /// machine's tenant controls it.
    Record {
        node: u8,
        of: u8,
        role: u8,
        kinds: u8,
        tenant: bool,
    },
    Revoke {
        node: u8,
        reason: u8,
    },
    Clear {
        node: u8,
    },
    /// From so many milliseconds ago on.
    Changes {
        ago: u32,
        at_most: u8,
    },
    All {
        at_most: u8,
    },
}

/// The roles of certificates; the first is that of a Hello that names none.
pub const ROLES: [&str; 3] = ["", "node", "storage"];

/// Kinds of commands, of which the second is destructive.
pub const COMMAND_KINDS: [&str; 2] = ["work", "wipe"];

pub fn certify() -> impl Strategy<Value = Certify> {
    let of = prop_oneof![12 => Just(NODES), 1 => 0..NODES];
    let role = prop_oneof![6 => Just(1u8), 1 => Just(2u8)];
    let kinds = prop_oneof![10 => Just(3u8), 1 => 0..3u8];
    prop_oneof![
        3 => (0..NODES, of, role, kinds, prop::bool::weighted(0.3)).prop_map(|(node, of, role, kinds, tenant)| {
            Certify::Record { node, of, role, kinds, tenant }
        }),
        2 => (0..NODES, 0..2u8).prop_map(|(node, reason)| Certify::Revoke { node, reason }),
        3 => (0..NODES).prop_map(|node| Certify::Clear { node }),
        2 => (0..20_000u32, 1..4u8).prop_map(|(ago, at_most)| Certify::Changes { ago, at_most }),
        1 => (1..4u8).prop_map(|at_most| Certify::All { at_most }),
    ]
}

impl Pair<'_> {
    pub fn look_at_certificates(&self, certify: &Certify) -> Option<RevocationLook> {
        match certify {
            Certify::Changes { ago, at_most } => {
                let micros = (self.now().0 - i64::from(*ago)) * 1_000;
                let after = ChangeMark { micros, serial: String::new() };
                Some(RevocationLook::Changes { after, at_most: (*at_most).into() })
            }
            Certify::All { at_most } => {
                Some(RevocationLook::All { after: String::new(), at_most: (*at_most).into() })
            }
            Certify::Record { .. } | Certify::Revoke { .. } | Certify::Clear { .. } => None,
        }
    }

    /// A client's statement, and the same in the model.
    pub async fn certify(&mut self, certify: &Certify) {
        let now = self.now();
        match certify {
            Certify::Record { node, of, role, kinds, tenant } => {
                let of = if *of == NODES { *node } else { *of };
                let (serial, of) = (self.serial(*node), self.node(of));
                let kinds: Option<Vec<String>> = (*kinds < 3).then(|| {
                    COMMAND_KINDS[..usize::from(*kinds)].iter().map(|kind| (*kind).to_owned()).collect()
                });
                let role = ROLES[usize::from(*role)].to_owned();
                let list =
                    kinds.as_ref().map_or("NULL".to_owned(), |kinds| format!("'{{{}}}'", kinds.join(",")));
                let statement = format!(
                    "INSERT INTO node_certs AS k (serial, node_id, role, allowed_kinds, tenant_controlled) \
                     VALUES ('{serial}', '{of}', '{role}', {list}, {tenant}) ON CONFLICT (serial) DO UPDATE \
                     SET node_id = excluded.node_id, role = excluded.role, allowed_kinds = excluded.allowed_kinds, \
                     tenant_controlled = excluded.tenant_controlled"
                );
                self.run(&statement).await;
                let mut row = CertificateRow::of(&of);
                row.record.role = role;
                row.record.allowed_kinds = kinds;
                row.record.tenant_controlled = *tenant;
                self.model_mut().record_certificate(&serial, row);
            }
            Certify::Revoke { node, reason } => {
                let (serial, reason) = (self.serial(*node), format!("reason{reason}"));
                let statement = format!(
                    "UPDATE node_certs SET revoked_at = coalesce(revoked_at, compute_now()), \
                     revoked_reason = '{reason}' WHERE serial = '{serial}'"
                );
                self.run(&statement).await;
                self.model_mut().set_revoked(&serial, Some(&reason), now);
            }
            Certify::Clear { node } => {
                let serial = self.serial(*node);
                let statement = format!(
                    "UPDATE node_certs SET revoked_at = NULL, revoked_reason = NULL WHERE serial = '{serial}'"
                );
                self.run(&statement).await;
                self.model_mut().set_revoked(&serial, None, now);
            }
            Certify::Changes { .. } | Certify::All { .. } => {}
        }
    }
}

/// A row of `node_certs`, as a line.
pub fn certificate_line(row: &CertificateRow) -> String {
    let record = &row.record;
    let kinds = record.allowed_kinds.as_ref().map(|kinds| format!(" kinds {}", kinds.join(",")));
    let revoked = record.revoked.as_ref().map(|reason| format!(" revoked {reason}"));
    let changed = row.changed.map(|UnixMillis(at)| format!(" changed {at}"));
    let more: String = [kinds, revoked, changed].into_iter().flatten().collect();
    let tenant = if record.tenant_controlled { " tenant" } else { "" };
    format!("{} {}{tenant}{more}", record.node, record.role)
}
