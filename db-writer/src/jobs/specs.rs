//! Specs: what is due to sessions, one read; what nodes said of them, one statement that commits by itself.
//!
//! 1. Neither looks at a body but to send it: sizes are known without reading it.
//! 2. The outcome is stored as `applied`, or `failed` with why behind a colon, so that no sentence of a node is
//!    taken for a success.

use gateway_core::frame::{Spec, SpecGeneration};
use gateway_core::ids::{GatewayId, Generation, SpecName};
use gateway_core::seam::SpecAnswer;
use gateway_core::store::{SpecAppliedOutcome, SpecsFound, SpecsLook};

use super::JobError;
use super::hello::array_literal;
use super::stored::{bigint, corrupt, counter};
use crate::connection::Link;

pub(super) async fn look(
    link: &mut Link,
    gateway: &GatewayId,
    looks: &[SpecsLook],
    at_most_bytes: usize,
) -> Result<Vec<SpecsFound>, JobError> {
    let nodes: Vec<&str> = looks.iter().map(|look| look.node.as_str()).collect();
    let epochs: Vec<i64> = looks.iter().map(|look| bigint(look.epoch.0)).collect();
    let literal = |of: fn(&SpecGeneration) -> String| -> Vec<String> {
        looks.iter().map(|look| array_literal(look.known.iter().map(of))).collect()
    };
    let names = literal(|known| known.name.as_str().to_owned());
    let generations = literal(|known| known.generation.to_string());
    let answered_too: Vec<bool> = looks.iter().map(|look| look.answered_too).collect();
    let rooms: Vec<i64> = looks.iter().map(|look| bigint(look.room as u64)).collect();
    let rows = sqlx::query_file!(
        "queries/specs_due.sql",
        gateway.as_str(),
        bigint(at_most_bytes as u64),
        &nodes as &[&str],
        &epochs,
        &names,
        &generations,
        &answered_too,
        &rooms
    )
    .fetch_all(link.within())
    .await?;
    let mut found = vec![SpecsFound::default(); looks.len()];
    for row in rows {
        let slot = usize::try_from(row.slot - 1).ok().and_then(|slot| found.get_mut(slot));
        let found = slot.ok_or_else(|| corrupt("a spec of a session that was not looked at"))?;
        found.more |= row.more;
        if let Some(body) = row.body {
            let name = SpecName::new(&row.name).map_err(corrupt)?;
            found.specs.push(Spec {
                name,
                generation: Generation(counter(row.generation)),
                body: body.into(),
            });
        }
    }
    Ok(found)
}

pub(super) async fn store(
    link: &mut Link,
    entries: &[SpecAnswer],
) -> Result<Vec<SpecAppliedOutcome>, JobError> {
    let nodes: Vec<&str> = entries.iter().map(|entry| entry.node.as_str()).collect();
    let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    let generations: Vec<i64> = entries.iter().map(|entry| bigint(entry.generation.0)).collect();
    let outcomes: Vec<String> = entries.iter().map(outcome).collect();
    let rows = sqlx::query_file!(
        "queries/specs_applied.sql",
        &nodes as &[&str],
        &names as &[&str],
        &generations,
        &outcomes
    )
    .fetch_all(link.autocommit())
    .await?;
    if rows.len() != entries.len() {
        return Err(corrupt("an answer about a spec without an answer"));
    }
    rows.into_iter()
        .map(|row| match (row.verdict.as_str(), row.current) {
            ("unknown", _) => Ok(SpecAppliedOutcome::UnknownSpec),
            ("beyond", Some(current)) => {
                Ok(SpecAppliedOutcome::UnknownGeneration { current: Generation(counter(current)) })
            }
            ("old" | "repeat" | "apply", _) => Ok(SpecAppliedOutcome::Stored),
            (other, _) => Err(corrupt(format!("no verdict {other:?}"))),
        })
        .collect()
}

fn outcome(entry: &SpecAnswer) -> String {
    match entry.error.as_deref() {
        None => "applied".to_owned(),
        Some("") => "failed".to_owned(),
        Some(error) => format!("failed: {error}"),
    }
}
