//! The first step of a batch of Hellos: the lease is proved, the sessions are locked, and it is found out who
//! may have one.
//!
//! What a certificate allows is `gateway_core::certificate`'s to say, what a Hello from another place means
//! `gateway_core::duplicate`'s; here it is read and written.
//!
//! 1. What is recorded of the certificate is read under the session's lock, so a revocation that committed before
//!    the Hello's commit, and a Hello that committed before it, never miss each other: the feed ends the session.
//! 2. What is remembered of a node's moves is read and written only where it moved.

use gateway_core::certificate::{self, CertificateRecord};
use gateway_core::close::CloseReason;
use gateway_core::duplicate::{self, DUPLICATE_IDENTITY, Judgement, Moves, Place};
use gateway_core::revocation;
use gateway_core::seam::HelloRequest;
use gateway_core::store::LeaseProof;
use gateway_core::time::UnixMillis;

use super::hello::array_literal;
use super::stored::{bigint, corrupt};
use super::{HelloRules, JobError};
use crate::connection::Link;

/// What the first step found out about a Hello.
#[derive(Debug)]
pub(super) enum Look {
    /// With what is to be remembered of the node's moves, where it moved.
    Granted {
        moves: Option<Moves>,
        record: Option<CertificateRecord>,
    },
    Refused(CloseReason),
    /// Two machines use its certificate.
    Duplicate,
}

impl Look {
    /// Of one that is granted, what `node_certs` has of its certificate.
    pub(super) fn granted(&self) -> Option<Option<&CertificateRecord>> {
        match self {
            Self::Granted { record, .. } => Some(record.as_ref()),
            Self::Refused(_) | Self::Duplicate => None,
        }
    }
}

/// Locks the sessions; `None` where the lease is lost.
pub(super) async fn lock_sessions(
    link: &mut Link,
    proof: &LeaseProof,
    entries: &[HelloRequest],
    rules: &HelloRules,
) -> Result<Option<Vec<Look>>, JobError> {
    let text = |of: fn(&HelloRequest) -> &str| -> Vec<&str> { entries.iter().map(of).collect() };
    let rows = sqlx::query_file!(
        "queries/hello_sessions.sql",
        proof.gateway.as_str(),
        proof.owner,
        bigint(proof.epoch.0),
        &text(|entry| entry.identity.node.as_str()) as &[&str],
        &text(|entry| &entry.identity.certificate_serial) as &[&str],
        &text(|entry| &entry.hello.machine) as &[&str],
        &text(|entry| &entry.hello.boot_id) as &[&str]
    )
    .fetch_all(link.within())
    .await?;
    if rows.first().is_some_and(|row| !row.held) {
        return Ok(None);
    }
    if rows.len() != entries.len() {
        return Err(corrupt("a Hello without an answer"));
    }
    let rows = rows.into_iter().map(|row| {
        let moves = moves_of(row.machines, row.boots, row.left_at, row.returned_at);
        let before =
            row.moved.then(|| Place::of(&row.machine.unwrap_or_default(), &row.boot_id.unwrap_or_default()));
        Row {
            known: row.known,
            record: row.cert_node.map(|node| CertificateRecord {
                node,
                role: row.cert_role.unwrap_or_default(),
                allowed_kinds: row.cert_allowed_kinds,
                tenant_controlled: row.cert_tenant_controlled,
                revoked: revocation::why(row.cert_revoked, row.cert_revoked_reason),
            }),
            before,
            moves,
            now: UnixMillis(row.now),
        }
    });
    Ok(Some(rows.zip(entries).map(|(row, entry)| look(row, entry, rules)).collect()))
}

fn look(row: Row, entry: &HelloRequest, rules: &HelloRules) -> Look {
    let node = &entry.identity.node;
    if !row.known {
        return Look::Refused(CloseReason::NotPermitted(format!(
            "node {node} is not registered; an operator registers it in the gateway's database \
             with SELECT register_node('{node}')"
        )));
    }
    let record = row.record.as_ref();
    if let Err(reason) = certificate::admit(rules.unknown_serial, &entry.identity, &entry.hello, record) {
        return Look::Refused(reason);
    }
    let here = Place::of(&entry.hello.machine, &entry.hello.boot_id);
    let judged =
        row.before.and_then(|before| duplicate::judge(&rules.duplicates, before, &row.moves, here, row.now));
    match judged {
        Some(Judgement::Duplicate) => Look::Duplicate,
        Some(Judgement::Moved(moves)) => Look::Granted { moves: Some(moves), record: row.record },
        None => Look::Granted { moves: None, record: row.record },
    }
}

/// What is stored about one of them.
struct Row {
    known: bool,
    record: Option<CertificateRecord>,
    /// Where its last Hello came from, if that was elsewhere.
    before: Option<Place>,
    moves: Moves,
    now: UnixMillis,
}

fn moves_of(
    machines: Option<Vec<i64>>,
    boots: Option<Vec<i64>>,
    left_at: Option<Vec<i64>>,
    returned_at: Option<Vec<i64>>,
) -> Moves {
    let places = machines.unwrap_or_default().into_iter().zip(boots.unwrap_or_default());
    let left = places.zip(left_at.unwrap_or_default());
    Moves {
        left: left.map(|((machine, boot), at)| (Place { machine, boot }, UnixMillis(at))).collect(),
        returned: returned_at.unwrap_or_default().into_iter().map(UnixMillis).collect(),
    }
}

/// What the last step writes of moves and duplicates, side by side.
#[derive(Debug, Default)]
pub(super) struct Written<'a> {
    pub(super) nodes: Vec<&'a str>,
    pub(super) serials: Vec<&'a str>,
    pub(super) machines: Vec<String>,
    pub(super) boots: Vec<String>,
    pub(super) left_at: Vec<String>,
    pub(super) returned_at: Vec<String>,
    pub(super) duplicate_nodes: Vec<&'a str>,
    pub(super) duplicate_serials: Vec<&'a str>,
    pub(super) duplicate_reasons: Vec<&'a str>,
}

impl<'a> Written<'a> {
    pub(super) fn of(entries: &'a [HelloRequest], looks: &[Look]) -> Self {
        let mut written = Self::default();
        for (entry, look) in entries.iter().zip(looks) {
            match look {
                Look::Granted { moves: Some(moves), .. } => written.push(entry, moves),
                Look::Duplicate => {
                    // Once it is admitted again it begins anew.
                    written.push(entry, &Moves::default());
                    written.duplicate_nodes.push(entry.identity.node.as_str());
                    written.duplicate_serials.push(&entry.identity.certificate_serial);
                    written.duplicate_reasons.push(DUPLICATE_IDENTITY);
                }
                Look::Granted { moves: None, .. } | Look::Refused(_) => {}
            }
        }
        written
    }

    fn push(&mut self, entry: &'a HelloRequest, moves: &Moves) {
        let literal =
            |numbers: &mut dyn Iterator<Item = i64>| array_literal(numbers.map(|number| number.to_string()));
        self.nodes.push(entry.identity.node.as_str());
        self.serials.push(&entry.identity.certificate_serial);
        self.machines.push(literal(&mut moves.left.iter().map(|(place, _)| place.machine)));
        self.boots.push(literal(&mut moves.left.iter().map(|(place, _)| place.boot)));
        self.left_at.push(literal(&mut moves.left.iter().map(|(_, at)| at.0)));
        self.returned_at.push(literal(&mut moves.returned.iter().map(|at| at.0)));
    }
}
