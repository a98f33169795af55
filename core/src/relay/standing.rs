//! Who may have a call passed on: what the row of its certificate says, held against its identity.
//!
//! The row is read for each call, since a relay may come without a session and the database is the truth. It
//! never guesses: a row that can't be read is for the caller of this to refuse as `Unavailable`.
//!
//! 1. A revoked certificate, and one that is known as another node's, has nothing passed on.
//! 2. Secrets are for certificates that are known and not tenant-controlled.
//! 3. A certificate that is not known may ask for a renewal: whoever renews knows what it has issued.

use super::{Refusal, RefusalCode, RelayKind};
use crate::certificate::CertificateRecord;
use crate::seam::Identity;

/// Who a call is from, as its service is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub identity: Identity,
    /// Of the certificate's row; empty where it has none.
    pub role: String,
    pub tenant_controlled: bool,
}

/// The caller, if a call of this kind may be passed on for it. `row` is that of the certificate's serial.
pub fn admit(kind: RelayKind, identity: Identity, row: Option<CertificateRecord>) -> Result<Caller, Refusal> {
    let refused = |code, sentence: &str| Err(Refusal::new(code, sentence));
    let Some(row) = row else {
        if kind == RelayKind::FetchSecret {
            return refused(
                RefusalCode::PermissionDenied,
                "the certificate is not known (node_certs), and secrets are for known ones; register its serial",
            );
        }
        return Ok(Caller { identity, role: String::new(), tenant_controlled: false });
    };
    if row.revoked.is_some() {
        return refused(RefusalCode::Unauthenticated, "the certificate is revoked; join again");
    }
    if row.node != identity.node.as_str() {
        return refused(RefusalCode::PermissionDenied, "the certificate's serial is known as another node's");
    }
    if row.tenant_controlled && kind == RelayKind::FetchSecret {
        return refused(
            RefusalCode::PermissionDenied,
            "the certificate is tenant-controlled; such nodes get no secrets",
        );
    }
    Ok(Caller { identity, role: row.role, tenant_controlled: row.tenant_controlled })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;

    fn identity() -> Identity {
        let node = NodeId::new("spiffe://a/site/s/node/n").expect("a node id");
        Identity { node, site: "s".to_owned(), certificate_serial: "0A".to_owned() }
    }

    fn row() -> CertificateRecord {
        CertificateRecord::of("spiffe://a/site/s/node/n", "node")
    }

    fn code(kind: RelayKind, row: Option<CertificateRecord>) -> Option<RefusalCode> {
        admit(kind, identity(), row).err().map(|refusal| refusal.code)
    }

    #[test]
    fn a_known_live_certificate_is_passed_on_with_its_role() {
        for kind in [RelayKind::Renew, RelayKind::FetchSecret] {
            let caller = admit(kind, identity(), Some(row())).expect("may");
            assert_eq!((caller.role.as_str(), caller.tenant_controlled), ("node", false));
        }
    }

    #[test]
    fn a_revoked_one_and_one_of_another_node_has_nothing_passed_on() {
        for kind in [RelayKind::Renew, RelayKind::FetchSecret] {
            let revoked = CertificateRecord { revoked: Some("stolen".to_owned()), ..row() };
            assert_eq!(code(kind, Some(revoked)), Some(RefusalCode::Unauthenticated));
            let other = CertificateRecord { node: "spiffe://a/site/s/node/x".to_owned(), ..row() };
            assert_eq!(code(kind, Some(other)), Some(RefusalCode::PermissionDenied));
        }
    }

    #[test]
    fn secrets_are_for_known_certificates_that_no_tenant_controls() {
        let tenant = CertificateRecord { tenant_controlled: true, ..row() };
        assert_eq!(code(RelayKind::FetchSecret, Some(tenant.clone())), Some(RefusalCode::PermissionDenied));
        assert_eq!(code(RelayKind::FetchSecret, None), Some(RefusalCode::PermissionDenied));
        let caller = admit(RelayKind::Renew, identity(), Some(tenant)).expect("may renew");
        assert!(caller.tenant_controlled, "and its service is told");
        assert_eq!(code(RelayKind::Renew, None), None);
    }
}
