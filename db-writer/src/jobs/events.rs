//! A batch of journals' runs: one transaction of three statements, whatever the batch's size, and a few
//! more where an event that is new has a hook.
//!
//! First every journal of the batch is made sure to have a row, which is locked; then the cursors are
//! read, which the events that are stored tell; and then what joins on to them is stored.
//!
//! 1. Journals are made and locked in order of (node, journal), and nothing else is locked. A row that is
//!    there is not changed: where no vacuum can run, its versions would slow down whoever looks for it.
//! 2. What is at or below a cursor is there already and is not sent again; what stands behind a gap
//!    is not stored. So an event is stored once, and a journal is contiguous up to its cursor.
//! 3. Where nothing moves, the third statement is left out.

use std::collections::{BTreeMap, BTreeSet};

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
    /// The cursor before the batch, and after it.
    before: EventSeq,
    after: EventSeq,
}

impl Offer<'_> {
    /// Whether the batch stores the event: it is behind the cursor, and before a gap.
    fn is_new(&self, event: &Event) -> bool {
        event.seq > self.before && event.seq <= self.after
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
    link.begin().await?;
    lock(link, &mut offers).await?;
    for offer in offers.values_mut() {
        offer.after = advanced(offer.before, &offer.runs);
    }
    if offers.values().any(|offer| offer.after > offer.before) {
        write(link, &offers).await?;
    }
    let tally = hooks.run_reports(link, &reports(&offers, hooks)).await?;
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

/// Makes sure that every journal has a row, locks it and reads its cursor.
async fn lock(link: &mut Link, offers: &mut BTreeMap<Journal<'_>, Offer<'_>>) -> Result<(), JobError> {
    let nodes: Vec<&str> = offers.keys().map(|(node, _)| node.as_str()).collect();
    let journals: Vec<&str> = offers.keys().map(|(_, journal)| journal.as_str()).collect();
    sqlx::query_file!("queries/events_lock.sql", &nodes as &[&str], &journals as &[&str])
        .execute(link.within())
        .await?;
    let rows = sqlx::query_file!("queries/events_cursors.sql", &nodes as &[&str], &journals as &[&str])
        .fetch_all(link.within())
        .await?;
    if rows.len() != offers.len() {
        return Err(corrupt("a journal without a row"));
    }
    for (offer, row) in offers.values_mut().zip(rows) {
        offer.before = EventSeq(counter(row.acked_seq));
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

/// The events that are new and have a hook, in the order of locks.
fn reports<'a>(offers: &BTreeMap<Journal<'a>, Offer<'a>>, hooks: &HookRunner) -> Vec<StoredEvent<'a>> {
    let mut reports = Vec::new();
    for ((node, _), offer) in offers {
        let mut seen = BTreeSet::new();
        let first = reports.len();
        for run in &offer.runs {
            // Two runs may hold the same event: the first is the one that is stored.
            let is_stored = |event: &&'a Event| offer.is_new(event) && seen.insert(event.seq);
            let stored = run.batch.events.iter().filter(is_stored);
            let is_report = |event: &&Event| event.refused.is_none() && hooks.is_report(&event.kind);
            reports.extend(stored.filter(is_report).map(|event| StoredEvent {
                node,
                batch: &run.batch,
                event,
            }));
        }
        reports[first..].sort_by_key(|report| report.event.seq);
    }
    reports
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
async fn write(link: &mut Link, offers: &BTreeMap<Journal<'_>, Offer<'_>>) -> Result<(), JobError> {
    let mut columns = Columns::default();
    for offer in offers.values() {
        for run in &offer.runs {
            let new = run.batch.events.iter().filter(|event| offer.is_new(event));
            new.for_each(|event| columns.push(run, event));
        }
    }
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
