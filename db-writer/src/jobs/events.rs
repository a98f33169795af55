//! A batch of journals' runs: one transaction of two statements, whatever the batch's size, and a few more
//! where a journal is new or an event that is new has a hook.
//!
//! First the cursors are read, which the events that are stored tell; then what joins on to them is stored.
//!
//! 1. What is at or below a cursor is there already and is not sent again; what stands behind a gap is not
//!    stored. All between a cursor and a journal's new one is stored in one transaction, so a journal is
//!    contiguous whoever else stores it at the same time, and the key of events stores each one once.
//! 2. Events are stored in order of (node, journal, seq): two gateways wait for each other in one order.
//! 3. Journals are locked, in the order of (node, journal), only where a hook is to be told what is new:
//!    then nobody else may have stored it. A row that is there is not changed: where no vacuum can run, its
//!    versions would slow down whoever looks for it.
//! 4. Where nothing joins on, nothing is written.

use std::collections::BTreeMap;

use gateway_core::frame::Event;
use gateway_core::ids::{EventSeq, JournalId, NodeId};
use gateway_core::seam::EventsRequest;
use gateway_core::store::EventsOutcome;

use super::JobError;
use super::hooks::{HookRunner, StoredEvent};
use super::stored::{bigint, corrupt, counter};
use crate::connection::Link;

type Journal<'a> = (&'a NodeId, &'a JournalId);

/// What the batch does to one journal.
#[derive(Debug, Default)]
struct Offer<'a> {
    /// In the batch's order.
    runs: Vec<&'a EventsRequest>,
    /// Whether the journal has a row.
    is_known: bool,
    /// The cursor before the batch, and after it.
    before: EventSeq,
    after: EventSeq,
}

impl<'a> Offer<'a> {
    /// The events that the batch stores, by seq: behind the cursor, and before a gap. Of an event that two
    /// runs hold, the first one's.
    fn fresh(&self) -> impl Iterator<Item = (&'a EventsRequest, &'a Event)> + use<'a> {
        let mut fresh: BTreeMap<EventSeq, (&'a EventsRequest, &'a Event)> = BTreeMap::new();
        for run in &self.runs {
            let new =
                run.batch.events.iter().filter(|event| event.seq > self.before && event.seq <= self.after);
            for event in new {
                fresh.entry(event.seq).or_insert((run, event));
            }
        }
        fresh.into_values()
    }
}

pub(super) async fn execute(
    link: &mut Link,
    entries: &[EventsRequest],
    hooks: &mut HookRunner,
) -> Result<Vec<EventsOutcome>, JobError> {
    let mut offers: BTreeMap<Journal<'_>, Offer<'_>> = BTreeMap::new();
    for entry in entries {
        offers.entry((&entry.node, &entry.batch.journal)).or_default().runs.push(entry);
    }
    let is_report = |event: &Event| event.refused.is_none() && hooks.is_report(&event.kind);
    let has_reports = entries.iter().any(|entry| entry.batch.events.iter().any(is_report));
    link.begin().await?;
    if has_reports {
        let all: Vec<Journal<'_>> = offers.keys().copied().collect();
        lock(link, &all).await?;
    }
    read_cursors(link, &mut offers).await?;
    let unknown = offers.iter().filter(|(_, offer)| !offer.is_known);
    let new: Vec<Journal<'_>> = unknown.map(|(journal, _)| *journal).collect();
    if !new.is_empty() {
        lock(link, &new).await?;
    }
    for offer in offers.values_mut() {
        offer.after = advanced(offer.before, &offer.runs);
    }
    let fresh: Vec<(&EventsRequest, &Event)> = offers.values().flat_map(Offer::fresh).collect();
    if !fresh.is_empty() {
        write(link, &fresh).await?;
    }
    let reports: Vec<StoredEvent<'_>> = fresh
        .iter()
        .filter(|(_, event)| is_report(event))
        .map(|(run, event)| StoredEvent { node: &run.node, batch: &run.batch, event })
        .collect();
    let tally = hooks.run_reports(link, &reports).await?;
    link.commit().await?;
    hooks.note(tally);
    entries
        .iter()
        .map(|entry| {
            let offer = offers.get(&(&entry.node, &entry.batch.journal));
            offer
                .map(|offer| EventsOutcome { acked: offer.after })
                .ok_or_else(|| corrupt("a journal is gone"))
        })
        .collect()
}

/// Makes sure that journals, in the order of locks, have rows, and locks them.
async fn lock(link: &mut Link, journals: &[Journal<'_>]) -> Result<(), JobError> {
    let nodes: Vec<&str> = journals.iter().map(|(node, _)| node.as_str()).collect();
    let ids: Vec<&str> = journals.iter().map(|(_, journal)| journal.as_str()).collect();
    sqlx::query_file!("queries/events_lock.sql", &nodes as &[&str], &ids as &[&str])
        .execute(link.within())
        .await?;
    Ok(())
}

async fn read_cursors(
    link: &mut Link,
    offers: &mut BTreeMap<Journal<'_>, Offer<'_>>,
) -> Result<(), JobError> {
    let nodes: Vec<&str> = offers.keys().map(|(node, _)| node.as_str()).collect();
    let journals: Vec<&str> = offers.keys().map(|(_, journal)| journal.as_str()).collect();
    let rows = sqlx::query_file!("queries/events_cursors.sql", &nodes as &[&str], &journals as &[&str])
        .fetch_all(link.within())
        .await?;
    if rows.len() != offers.len() {
        return Err(corrupt("not every journal was answered"));
    }
    for (offer, row) in offers.values_mut().zip(rows) {
        offer.is_known = row.acked_seq.is_some();
        offer.before = EventSeq(counter(row.acked_seq.unwrap_or_default()));
    }
    Ok(())
}

/// The cursor behind all runs that join on to it, one upon the other.
fn advanced(cursor: EventSeq, runs: &[&EventsRequest]) -> EventSeq {
    let ends = |run: &&EventsRequest| Some((run.batch.events.first()?.seq, run.batch.events.last()?.seq));
    let mut spans: Vec<(EventSeq, EventSeq)> = runs.iter().filter_map(ends).collect();
    spans.sort_unstable();
    spans
        .into_iter()
        .fold(cursor, |cursor, (first, last)| if first.0 <= cursor.0 + 1 { cursor.max(last) } else { cursor })
}

/// The columns of the events to be stored.
#[derive(Debug, Default)]
struct Columns<'a> {
    nodes: Vec<&'a str>,
    journals: Vec<&'a str>,
    seqs: Vec<i64>,
    kinds: Vec<&'a str>,
    bodies: Vec<&'a [u8]>,
    boots: Vec<&'a str>,
    signed_bodies: Vec<Option<&'a [u8]>>,
    signed_kids: Vec<Option<&'a str>>,
    signatures: Vec<Option<&'a [u8]>>,
    rejected: Vec<Option<&'a str>>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, entry: &'a EventsRequest, event: &'a Event) {
        let attested = event.attested.as_ref();
        self.nodes.push(entry.node.as_str());
        self.journals.push(entry.batch.journal.as_str());
        self.seqs.push(bigint(event.seq.0));
        self.kinds.push(&event.kind);
        self.bodies.push(&event.body);
        self.boots.push(&entry.batch.boot_id);
        self.signed_bodies.push(attested.map(|attested| attested.body.as_ref()));
        self.signed_kids.push(attested.map(|attested| attested.kid.as_str()));
        self.signatures.push(attested.map(|attested| attested.signature.as_ref()));
        self.rejected.push(event.refused.as_ref().map(|refused| refused.message.as_str()));
    }
}

/// Stores what is new.
async fn write(link: &mut Link, fresh: &[(&EventsRequest, &Event)]) -> Result<(), JobError> {
    let mut columns = Columns::default();
    fresh.iter().for_each(|(run, event)| columns.push(run, event));
    sqlx::query_file!(
        "queries/events_write.sql",
        &columns.nodes as &[&str],
        &columns.journals as &[&str],
        &columns.seqs,
        &columns.kinds as &[&str],
        &columns.bodies as &[&[u8]],
        &columns.boots as &[&str],
        &columns.signed_bodies as &[Option<&[u8]>],
        &columns.signed_kids as &[Option<&str>],
        &columns.signatures as &[Option<&[u8]>],
        &columns.rejected as &[Option<&str>]
    )
    .execute(link.within())
    .await?;
    Ok(())
}
