//! What the database says of a node's certificate, and whether its Hello may be granted by that.
//!
//! A certificate proves by itself who the node is. What it may be used for stands in `node_certs`, which is read
//! in the Hello's transaction: the database is the truth, whatever a gateway has in memory. Owns the rule; the
//! stores read the row.
//!
//! 1. A certificate that is revoked, or recorded for another node, opens no session; nor does one that is not
//!    recorded, unless that is allowed.
//! 2. A Hello that names a role names that of the certificate. One that names none takes it.
//! 3. A kind of command that a certificate does not allow, or a destructive one where the node's tenant controls it,
//!    is never sent under it: the command ends as refused.
//! 4. No sentence repeats text of the node.

use crate::close::CloseReason;
use crate::duplicate;
use crate::frame::Hello;
use crate::seam::Identity;

/// What becomes of a certificate whose serial is not in `node_certs`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnknownSerial {
    #[default]
    Refuse,
    Accept,
}

/// A row of `node_certs`, as far as it counts for a Hello, or for a call that is passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRecord {
    pub node: String,
    pub role: String,
    /// Kinds of commands that may be sent under it; `None`: all.
    pub allowed_kinds: Option<Vec<String>>,
    /// Whether the tenant of the machine has its key, so that no destructive command of the platform may go there.
    pub tenant_controlled: bool,
    /// Why it is revoked, where it is.
    pub revoked: Option<String>,
}

/// The error of a command that ended since its kind may not be sent to its node.
pub const KIND_NOT_ALLOWED: &str = "the node's certificate allows no command of this kind: see allowed_kinds and \
                                    tenant_controlled of its row in node_certs, and identity.destructive_kinds";

impl CertificateRecord {
    /// A certificate that was issued to a node for a role, and of which nothing else is said.
    pub fn of(node: &str, role: &str) -> Self {
        Self {
            node: node.to_owned(),
            role: role.to_owned(),
            allowed_kinds: None,
            tenant_controlled: false,
            revoked: None,
        }
    }

    /// Whether a command of this kind may be sent under the certificate.
    pub fn permits(&self, destructive: &[String], kind: &str) -> bool {
        let is = |known: &String| known == kind;
        self.allowed_kinds.as_ref().is_none_or(|allowed| allowed.iter().any(is))
            && !(self.tenant_controlled && destructive.iter().any(is))
    }
}

/// Refuses a Hello that its certificate does not allow.
pub fn admit(
    unknown: UnknownSerial,
    identity: &Identity,
    hello: &Hello,
    record: Option<&CertificateRecord>,
) -> Result<(), CloseReason> {
    let (node, serial) = (&identity.node, &identity.certificate_serial);
    let Some(record) = record else {
        return match unknown {
            UnknownSerial::Accept => Ok(()),
            UnknownSerial::Refuse => Err(CloseReason::BadCertificate(format!(
                "certificate {serial} is not recorded; whoever issued it records it in the gateway's database with \
                 INSERT INTO node_certs (serial, node_id) VALUES ('{serial}', '{node}')"
            ))),
        };
    };
    if let Some(reason) = &record.revoked {
        return Err(duplicate::revoked(serial, reason));
    }
    if record.node != node.as_str() {
        let sentence = format!("certificate {serial} was issued to another node than {node}");
        return Err(CloseReason::BadCertificate(sentence));
    }
    if !hello.role.is_empty() && hello.role != record.role {
        return Err(CloseReason::NotPermitted(format!(
            "the Hello names another role than {}, which certificate {serial} is for; start the node in that role, or \
             give it a certificate for its own",
            record.role
        )));
    }
    if record.allowed_kinds.as_ref().is_some_and(Vec::is_empty) {
        return Err(CloseReason::NotPermitted(format!(
            "certificate {serial} allows no kind of command; set allowed_kinds of its row in node_certs, or give the \
             node another one"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::close::StatusCode;
    use crate::writer::testing::hello;

    fn record() -> CertificateRecord {
        CertificateRecord::of("n", "node")
    }

    fn refused(record: Option<&CertificateRecord>, role: &str) -> Option<(StatusCode, String)> {
        let mut request = hello("n", 1, &[]);
        request.hello.role = role.into();
        let admitted = admit(UnknownSerial::Refuse, &request.identity, &request.hello, record);
        admitted.err().map(|reason| (reason.status(), reason.to_string()))
    }

    #[test]
    fn a_certificate_opens_a_session_as_far_as_its_record_allows() {
        assert_eq!(refused(Some(&record()), "node"), None);
        assert_eq!(refused(Some(&record()), ""), None, "who names no role takes the certificate's");
        let wrong: [(CertificateRecord, StatusCode, &str); 5] = [
            (
                CertificateRecord { revoked: Some("stolen".into()), ..record() },
                StatusCode::Unauthenticated,
                "is revoked: stolen; reconnect with another one",
            ),
            (
                CertificateRecord { revoked: Some(duplicate::DUPLICATE_IDENTITY.into()), ..record() },
                StatusCode::PermissionDenied,
                "is quarantined",
            ),
            (
                CertificateRecord { node: "other".into(), ..record() },
                StatusCode::Unauthenticated,
                "was issued to another node",
            ),
            (
                CertificateRecord { role: "storage".into(), ..record() },
                StatusCode::PermissionDenied,
                "names another role than storage",
            ),
            (
                CertificateRecord { allowed_kinds: Some(Vec::new()), ..record() },
                StatusCode::PermissionDenied,
                "allows no kind of command",
            ),
        ];
        for (record, status, sentence) in wrong {
            let refused = refused(Some(&record), "node").expect("refused");
            assert!(refused.0 == status && refused.1.contains(sentence), "{record:?}: {refused:?}");
        }
    }

    #[test]
    fn kinds_are_allowed_by_the_certificate_and_by_who_controls_it() {
        let destructive = ["wipe".to_owned()];
        let permits =
            |record: &CertificateRecord| ["run", "wipe"].map(|kind| record.permits(&destructive, kind));
        assert_eq!(permits(&record()), [true, true]);
        assert_eq!(permits(&CertificateRecord { tenant_controlled: true, ..record() }), [true, false]);
        let allowed = Some(vec!["wipe".to_owned()]);
        let limited = CertificateRecord { allowed_kinds: allowed, ..record() };
        assert_eq!(permits(&limited), [false, true]);
        assert_eq!(permits(&CertificateRecord { tenant_controlled: true, ..limited }), [false, false]);
    }

    #[test]
    fn a_certificate_that_is_not_recorded_is_refused_unless_that_is_allowed() {
        let (status, sentence) = refused(None, "node").expect("refused");
        assert_eq!(status, StatusCode::Unauthenticated);
        assert!(
            sentence.contains("INSERT INTO node_certs (serial, node_id) VALUES ('0001', 'n')"),
            "{sentence}"
        );
        let request = hello("n", 1, &[]);
        assert_eq!(admit(UnknownSerial::Accept, &request.identity, &request.hello, None), Ok(()));
    }
}
