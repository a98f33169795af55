//! A batch of sections and looks: one statement for the sections, one for the looks.
//!
//! Where a batch has both, they are one transaction, so that it commits whole or not at all; else the one
//! statement commits by itself.
//!
//! 1. Sections are written, and work is enqueued, in the order of all locks. Sessions are read and not
//!    locked: no Hello waits for a section.
//! 2. A look reads what is committed, and the sections of its own batch.
//! 3. A section of a node is in a batch once.

use gateway_core::ids::{NodeId, SectionName};
use gateway_core::inventory::SectionHash;
use gateway_core::seam::{LookRequest, SectionRequest};
use gateway_core::store::{InventoryEntry, InventoryOutcome};

use super::JobError;
use super::stored::{bigint, corrupt, integer, section_name};
use crate::connection::Link;

pub(super) async fn execute(
    link: &mut Link,
    entries: &[InventoryEntry],
    most: usize,
) -> Result<Vec<InventoryOutcome>, JobError> {
    let (mut sections, mut looks): (Vec<&SectionRequest>, Vec<&LookRequest>) = Default::default();
    for entry in entries {
        match entry {
            InventoryEntry::Section(request) => sections.push(request),
            InventoryEntry::Look(request) => looks.push(request),
        }
    }
    let both = !sections.is_empty() && !looks.is_empty();
    if both {
        link.begin().await?;
    }
    let stored = if sections.is_empty() { Vec::new() } else { store(link, &sections, most, both).await? };
    let lists = looks.iter().map(|look| (&look.node, &look.list[..]));
    let wanted = wanted(link, lists).await?.into_iter().map(InventoryOutcome::Wanted);
    if both {
        link.commit().await?;
    }
    let (mut stored, mut wanted) = (stored.into_iter(), wanted);
    entries
        .iter()
        .map(|entry| match entry {
            InventoryEntry::Section(_) => stored.next().ok_or_else(|| corrupt("a section without an answer")),
            InventoryEntry::Look(_) => wanted.next().ok_or_else(|| corrupt("a look without an answer")),
        })
        .collect()
}

async fn store(
    link: &mut Link,
    sections: &[&SectionRequest],
    most: usize,
    in_transaction: bool,
) -> Result<Vec<InventoryOutcome>, JobError> {
    let nodes: Vec<&str> = sections.iter().map(|section| section.node.as_str()).collect();
    let epochs: Vec<i64> = sections.iter().map(|section| bigint(section.epoch.0)).collect();
    let names: Vec<&str> = sections.iter().map(|section| section.section.as_str()).collect();
    let hashes: Vec<&[u8]> = sections.iter().map(|section| &section.hash.0[..]).collect();
    let bodies: Vec<&[u8]> = sections.iter().map(|section| section.body.as_ref()).collect();
    let connection = if in_transaction { link.within() } else { link.autocommit() };
    let rows = sqlx::query_file!(
        "queries/inventory_store.sql",
        bigint(most as u64),
        &nodes as &[&str],
        &epochs,
        &names as &[&str],
        &hashes as &[&[u8]],
        &bodies as &[&[u8]]
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            if !row.known {
                InventoryOutcome::UnknownNode
            } else if row.superseded {
                InventoryOutcome::Superseded
            } else if !row.fits {
                InventoryOutcome::TooMany
            } else {
                InventoryOutcome::Stored
            }
        })
        .collect())
}

/// What of each node's list is not stored as it stands there; no statement where no list holds anything.
pub(super) async fn wanted<'a>(
    link: &mut Link,
    lists: impl Iterator<Item = (&'a NodeId, &'a [SectionHash])>,
) -> Result<Vec<Vec<SectionName>>, JobError> {
    let (mut slots, mut nodes, mut names, mut hashes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut wanted: Vec<Vec<SectionName>> = Vec::new();
    for (node, list) in lists {
        for SectionHash { section, hash } in list {
            slots.push(integer(u32::try_from(wanted.len()).unwrap_or(u32::MAX)));
            nodes.push(node.as_str());
            names.push(section.as_str());
            hashes.push(&hash.0[..]);
        }
        wanted.push(Vec::new());
    }
    if slots.is_empty() {
        return Ok(wanted);
    }
    let rows = sqlx::query_file!(
        "queries/inventory_look.sql",
        &slots,
        &nodes as &[&str],
        &names as &[&str],
        &hashes as &[&[u8]]
    )
    .fetch_all(link.within())
    .await?;
    for row in rows {
        let slot = usize::try_from(row.slot).ok().and_then(|slot| wanted.get_mut(slot));
        slot.ok_or_else(|| corrupt("a look without a slot"))?.push(section_name(&row.section)?);
    }
    Ok(wanted)
}
