//! A batch of journals' runs: one statement, whatever the batch's size, where the cursors of all its journals
//! are known; else one transaction of two, and a few more where a journal is new or an event that is new has
//! a hook.
//!
//! 1. What is at or below a cursor is there already and is not sent again; what stands behind a gap is not
//!    stored. All between a cursor and a journal's new one is stored in one transaction, so a journal is
//!    contiguous whoever else stores it at the same time, and the key of events stores each one once.
//! 2. A cursor that is known (see `known_cursors`) may be too low. Where that may show, by a gap, by a resend
//!    or by an event that is there already, the cursors are read.
//! 3. Events are stored in order of (node, journal, seq): two gateways wait for each other in one order.
//! 4. Journals are locked, in the order of (node, journal), only where a hook is to be told what is new:
//!    then nobody else may have stored it. A row that is there is not changed: where no vacuum can run, its
//!    versions would slow down whoever looks for it.
//! 5. Where nothing joins on, nothing is written.

use std::collections::BTreeMap;

use gateway_core::frame::Event;
use gateway_core::ids::{EventSeq, JournalId, NodeId};
use gateway_core::seam::EventsRequest;
use gateway_core::store::EventsOutcome;

use super::JobError;
use super::hook_slots::StoredEvent;
use super::hooks::HookRunner;
use super::known_cursors::KnownCursors;
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

impl<'a> Offer<'a> {
    /// The cursor is this: what joins on to it is to be stored.
    fn advance(&mut self, cursor: EventSeq) {
        self.before = cursor;
        self.after = advanced(cursor, &self.runs);
    }

    /// Whether something of it does not join on.
    fn has_gap(&self) -> bool {
        self.runs.iter().any(|run| run.batch.events.last().is_some_and(|last| last.seq > self.after))
    }

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

type Offers<'a> = BTreeMap<Journal<'a>, Offer<'a>>;

pub(super) async fn execute(
    link: &mut Link,
    entries: &[EventsRequest],
    hooks: &mut HookRunner,
    known: &mut KnownCursors,
) -> Result<Vec<EventsOutcome>, JobError> {
    let mut offers: Offers<'_> = BTreeMap::new();
    for entry in entries {
        offers.entry((&entry.node, &entry.batch.journal)).or_default().runs.push(entry);
    }
    let is_report = |event: &Event| event.refused.is_none() && hooks.is_report(&event.kind);
    let has_reports = entries.iter().any(|entry| entry.batch.events.iter().any(is_report));
    if has_reports || !append(link, &mut offers, known).await? {
        store(link, &mut offers, has_reports.then_some(hooks)).await?;
    }
    for ((node, journal), offer) in &offers {
        known.handle_cursor(node, journal, offer.after);
    }
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

/// Stores all by what is known of cursors, in one statement that commits by itself. Whether that could be done.
async fn append(link: &mut Link, offers: &mut Offers<'_>, known: &KnownCursors) -> Result<bool, JobError> {
    for ((node, journal), offer) in offers.iter_mut() {
        let Some(cursor) = known.get(node, journal) else { return Ok(false) };
        offer.advance(cursor);
        // A gap may be this gateway's alone, and a resend is answered with the cursor as it is now.
        if offer.has_gap() || offer.after == offer.before {
            return Ok(false);
        }
    }
    let fresh: Vec<(&EventsRequest, &Event)> = offers.values().flat_map(Offer::fresh).collect();
    match append_events(link, &fresh).await {
        Ok(()) => Ok(true),
        // Another gateway has stored some of it.
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Stores all by the cursors as the database has them, and runs the hooks of what is new.
async fn store(
    link: &mut Link,
    offers: &mut Offers<'_>,
    reports: Option<&mut HookRunner>,
) -> Result<(), JobError> {
    link.begin().await?;
    if reports.is_some() {
        let all: Vec<Journal<'_>> = offers.keys().copied().collect();
        lock(link, &all).await?;
    }
    let new = read_cursors(link, offers).await?;
    if !new.is_empty() {
        lock(link, &new).await?;
    }
    let fresh: Vec<(&EventsRequest, &Event)> = offers.values().flat_map(Offer::fresh).collect();
    if !fresh.is_empty() {
        write(link, &fresh).await?;
    }
    let Some(hooks) = reports else { return Ok(link.commit().await?) };
    let stored: Vec<StoredEvent<'_>> = fresh
        .iter()
        .filter(|(_, event)| event.refused.is_none() && hooks.is_report(&event.kind))
        .map(|(run, event)| StoredEvent { node: &run.node, batch: &run.batch, event })
        .collect();
    let tally = hooks.run_reports(link, &stored).await?;
    hooks.commit(link, tally).await
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

/// Reads the cursors, and advances all offers by them; gives the journals that are new.
async fn read_cursors<'a>(link: &mut Link, offers: &mut Offers<'a>) -> Result<Vec<Journal<'a>>, JobError> {
    let nodes: Vec<&str> = offers.keys().map(|(node, _)| node.as_str()).collect();
    let journals: Vec<&str> = offers.keys().map(|(_, journal)| journal.as_str()).collect();
    let rows = sqlx::query_file!("queries/events_cursors.sql", &nodes as &[&str], &journals as &[&str])
        .fetch_all(link.within())
        .await?;
    if rows.len() != offers.len() {
        return Err(corrupt("not every journal was answered"));
    }
    let mut new = Vec::new();
    for ((journal, offer), row) in offers.iter_mut().zip(rows) {
        if row.acked_seq.is_none() {
            new.push(*journal);
        }
        offer.advance(EventSeq(counter(row.acked_seq.unwrap_or_default())));
    }
    Ok(new)
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
    fn of(fresh: &[(&'a EventsRequest, &'a Event)]) -> Self {
        let mut columns = Self::default();
        fresh.iter().for_each(|(run, event)| columns.push(run, event));
        columns
    }

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

/// A statement that inserts events, by its file: each is checked when this is built.
macro_rules! insert {
    ($file:literal, $columns:expr) => {{
        let columns = $columns;
        sqlx::query_file!(
            $file,
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
    }};
}

/// Stores what nobody else has stored, in a statement that commits by itself.
async fn append_events(link: &mut Link, fresh: &[(&EventsRequest, &Event)]) -> Result<(), sqlx::Error> {
    insert!("queries/events_append.sql", Columns::of(fresh)).execute(link.autocommit()).await.map(drop)
}

/// Stores what is new, though another may store the same.
async fn write(link: &mut Link, fresh: &[(&EventsRequest, &Event)]) -> Result<(), sqlx::Error> {
    insert!("queries/events_write.sql", Columns::of(fresh)).execute(link.within()).await.map(drop)
}
