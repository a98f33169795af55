//! Looks at what is revoked: each one statement, which reads an index from where the last look ended.
//!
//! 1. Neither changes anything or waits for a row.

use gateway_core::revocation;
use gateway_core::store::{CertificateState, ChangeMark, RevocationLook, RevocationsFound};

use super::JobError;
use super::stored::corrupt;
use crate::connection::Link;

pub(super) async fn execute(link: &mut Link, look: &RevocationLook) -> Result<RevocationsFound, JobError> {
    match look {
        RevocationLook::Changes { after, at_most } => changes(link, after, *at_most).await,
        RevocationLook::All { after, at_most } => all(link, after, *at_most).await,
    }
}

async fn changes(link: &mut Link, after: &ChangeMark, at_most: u32) -> Result<RevocationsFound, JobError> {
    let query =
        sqlx::query_file!("queries/revocations_changed.sql", after.micros, after.serial, i64::from(at_most));
    let rows = query.fetch_all(link.within()).await?;
    let now_micros = rows.first().ok_or_else(|| corrupt("no answer to what is revoked"))?.now_micros;
    let mut marks = Vec::with_capacity(rows.len());
    let mut certificates = Vec::with_capacity(rows.len());
    // The one row that only says the time names nobody.
    for row in rows {
        let (Some(serial), Some(micros)) = (row.serial, row.changed_micros) else { continue };
        let revoked = revocation::why(row.revoked, row.reason);
        marks.push(ChangeMark { micros, serial: serial.clone() });
        certificates.push(CertificateState { serial, revoked });
    }
    let more_changes = marks.pop().filter(|_| certificates.len() >= at_most as usize);
    Ok(RevocationsFound { certificates, more_changes, more_after: None, now_micros })
}

async fn all(link: &mut Link, after: &str, at_most: u32) -> Result<RevocationsFound, JobError> {
    let query = sqlx::query_file!("queries/revocations_all.sql", after, i64::from(at_most));
    let rows = query.fetch_all(link.within()).await?;
    let now_micros = rows.first().ok_or_else(|| corrupt("no answer to what is revoked"))?.now_micros;
    let named = rows.into_iter().filter_map(|row| Some((row.serial?, row.reason)));
    let certificates: Vec<CertificateState> = named
        .map(|(serial, reason)| CertificateState { serial, revoked: revocation::why(true, reason) })
        .collect();
    let is_full = certificates.len() >= at_most as usize;
    let more_after = certificates.last().filter(|_| is_full).map(|last| last.serial.clone());
    Ok(RevocationsFound { certificates, more_changes: None, more_after, now_micros })
}
