//! A batch of Hellos: one transaction in three steps, whatever the batch's size.
//!
//! First the lease and the sessions are locked, so that the second step, which locks and reads what
//! the nodes may have, sees all that any dispatch has committed. Then it is decided what each
//! command's fate is, and the third step writes and reads the rest. Where a Hello lists what its node
//! has, a fourth step compares that with what is stored.
//!
//! 1. At most one Hello of a node is in a batch.
//! 2. A Hello that is refused changes nothing and holds no other back.
//! 3. Who is granted was decided under the sessions' locks: see `hello_sessions`.

use std::collections::{BTreeSet, HashMap};

use gateway_core::certificate::{CertificateRecord, KIND_NOT_ALLOWED};
use gateway_core::command::CommandState;
use gateway_core::frame::{CancelCommand, Command, KnownCommand};
use gateway_core::ids::{Attempt, CommandId, EventSeq, LaneSeq, SessionEpoch};
use gateway_core::seam::HelloRequest;
use gateway_core::store::{HelloGrant, HelloOutcome, InFlight, LeaseProof, Routed, StoreError};
use gateway_core::time::UnixMillis;
use uuid::Uuid;

use super::hello_fate::{Fate, Row, fate};
use super::hello_sessions::{Look, Written, lock_sessions};
use super::inventory;
use super::stored::{StoredCommand, bigint, command_state, corrupt, counter, integer, lane_name, number};
use super::{HelloRules, JobError};
use crate::connection::Link;

pub(super) async fn execute(
    link: &mut Link,
    proof: &LeaseProof,
    entries: &[HelloRequest],
    rules: &HelloRules,
) -> Result<Routed<Vec<HelloOutcome>>, JobError> {
    let distinct: BTreeSet<&str> = entries.iter().map(|entry| entry.identity.node.as_str()).collect();
    if distinct.len() < entries.len() {
        let twice = "two Hellos of one node in a batch".to_owned();
        return Err(JobError::Store(StoreError::Rejected(twice)));
    }
    link.begin().await?;
    let Some(looks) = lock_sessions(link, proof, entries, rules).await? else {
        link.roll_back().await?;
        return Ok(Routed::LeaseLost);
    };
    let granted: Vec<&HelloRequest> = entries
        .iter()
        .zip(&looks)
        .filter_map(|(entry, look)| matches!(look, Look::Granted { .. }).then_some(entry))
        .collect();
    let moves = Written::of(entries, &looks);
    let records: Vec<Option<&CertificateRecord>> = looks.iter().filter_map(Look::granted).collect();
    let permits = |slot: usize, kind: &str| {
        let record: Option<&CertificateRecord> = records.get(slot).copied().flatten();
        record.is_none_or(|record| record.permits(&rules.destructive_kinds, kind))
    };
    let mut answers = read_commands(link, &granted, permits).await?;
    let mut grants = write(link, proof, &granted, &mut answers, &moves).await?;
    let lists = granted.iter().map(|entry| (&entry.identity.node, &entry.hello.inventory[..]));
    for (grant, record) in grants.iter_mut().zip(&records) {
        grant.is_recorded = record.is_some();
    }
    for (grant, wanted) in grants.iter_mut().zip(inventory::wanted(link, lists).await?) {
        grant.inventory_wanted = wanted;
    }
    link.commit().await?;
    let mut grants = grants.into_iter();
    let outcomes = looks.into_iter().zip(entries).map(|(look, entry)| match look {
        Look::Refused(reason) => Ok(HelloOutcome::Refused(reason)),
        Look::Duplicate => Ok(HelloOutcome::Quarantined(Box::new(entry.identity.clone()))),
        Look::Granted { .. } => {
            let grant = grants.next().map(|grant| HelloOutcome::Granted(Box::new(grant)));
            grant.ok_or_else(|| corrupt("a session's row is gone"))
        }
    });
    outcomes.collect::<Result<_, _>>().map(Routed::Committed)
}

/// What the commands of one node mean for its answer.
#[derive(Debug, Default)]
struct Answer {
    replays: Vec<StoredCommand>,
    in_flight: Vec<InFlight>,
    cancels: Vec<CancelCommand>,
    changes: Vec<Change>,
}

/// A row that the Hello changes.
#[derive(Debug)]
struct Change {
    id: Uuid,
    state: CommandState,
    attempt: Attempt,
    sent_again: bool,
}

/// What a node lists, by command; of several attempts the latest.
type Listed<'a> = HashMap<CommandId, &'a KnownCommand>;

fn listed(entry: &HelloRequest) -> Listed<'_> {
    let mut latest = Listed::new();
    for known in &entry.hello.known_commands {
        let kept = latest.entry(known.id).or_insert(known);
        if known.attempt > kept.attempt {
            *kept = known;
        }
    }
    latest
}

/// Locks and reads what the nodes may have, and decides each command's fate; slot for slot.
/// `permits` says whether a slot may be sent a kind.
async fn read_commands(
    link: &mut Link,
    granted: &[&HelloRequest],
    permits: impl Fn(usize, &str) -> bool,
) -> Result<Vec<Answer>, JobError> {
    let nodes: Vec<&str> = granted.iter().map(|entry| entry.identity.node.as_str()).collect();
    let known: Vec<Listed<'_>> = granted.iter().map(|entry| listed(entry)).collect();
    let (mut of_node, mut ids, mut attempts) = (Vec::new(), Vec::new(), Vec::new());
    for (node, known) in nodes.iter().zip(&known) {
        for (id, known) in known {
            of_node.push(*node);
            ids.push(id.0);
            attempts.push(integer(known.attempt.0));
        }
    }
    let rows = sqlx::query_file!(
        "queries/hello_commands.sql",
        &nodes as &[&str],
        &of_node as &[&str],
        &ids,
        &attempts
    )
    .fetch_all(link.within())
    .await?;
    let slots: HashMap<&str, usize> = nodes.iter().enumerate().map(|(slot, node)| (*node, slot)).collect();
    let mut answers: Vec<Answer> = granted.iter().map(|_| Answer::default()).collect();
    for row in rows {
        let slot = *slots.get(row.node_id.as_str()).ok_or_else(|| corrupt("a node that said no Hello"))?;
        let (Some(answer), Some(known)) = (answers.get_mut(slot), known.get(slot)) else { continue };
        let id = CommandId(row.id);
        let state = command_state(&row.state)?;
        let attempt = Attempt(number(row.attempt));
        let lane = lane_name(&row.lane)?;
        let decided =
            fate(Row { state, attempt, marked: row.marked, too_late: row.too_late }, known.get(&id).copied());
        let change = |state, attempt, sent_again| Change { id: row.id, state, attempt, sent_again };
        let now_attempt = match decided {
            Fate::Rest => continue,
            Fate::Expire => {
                answer.changes.push(change(CommandState::Expired, attempt, false));
                continue;
            }
            Fate::Adopt { state: adopted, attempt: reported } => {
                if (adopted, reported) != (state, attempt) {
                    answer.changes.push(change(adopted, reported, false));
                }
                reported
            }
            Fate::Replay if !permits(slot, &row.kind) => {
                answer.changes.push(change(CommandState::Refused, attempt, false));
                continue;
            }
            Fate::Replay => {
                answer.changes.push(change(state, attempt, true));
                answer.replays.push(StoredCommand {
                    id: row.id,
                    attempt: row.attempt,
                    lane: lane.clone(),
                    seq: row.seq,
                    kind: row.kind,
                    payload: row.payload.unwrap_or_default(),
                    not_after: row.not_after,
                });
                attempt
            }
        };
        answer.in_flight.push(InFlight { lane, id, attempt: now_attempt });
        if row.cancel_requested {
            answer.cancels.push(CancelCommand { id, reason: row.cancel_reason.unwrap_or_default() });
        }
    }
    Ok(answers)
}

/// The columns of the rows that change.
#[derive(Debug, Default)]
struct Changes<'a> {
    nodes: Vec<&'a str>,
    ids: Vec<Uuid>,
    states: Vec<&'static str>,
    attempts: Vec<i32>,
    sent_again: Vec<bool>,
}

/// Writes sessions, presence, outbox and changed commands, and completes the grants.
async fn write(
    link: &mut Link,
    proof: &LeaseProof,
    granted: &[&HelloRequest],
    answers: &mut [Answer],
    moves: &Written<'_>,
) -> Result<Vec<HelloGrant>, JobError> {
    let text = |of: fn(&HelloRequest) -> &str| granted.iter().map(|entry| of(entry)).collect::<Vec<&str>>();
    let (mut lanes, mut capacities) = (Vec::new(), Vec::new());
    let mut changes = Changes::default();
    for (entry, answer) in granted.iter().zip(answers.iter()) {
        lanes.push(array_literal(entry.hello.lanes.iter().map(|lane| lane.lane.as_str())));
        let announced = entry.hello.lanes.iter().map(|lane| lane.capacity.to_string());
        capacities.push(array_literal(announced));
        for change in &answer.changes {
            changes.nodes.push(entry.identity.node.as_str());
            changes.ids.push(change.id);
            changes.states.push(change.state.as_str());
            changes.attempts.push(integer(change.attempt.0));
            changes.sent_again.push(change.sent_again);
        }
    }
    let rows = sqlx::query_file!(
        "queries/hello_write.sql",
        proof.gateway.as_str(),
        bigint(proof.epoch.0),
        &text(|entry| entry.identity.node.as_str()) as &[&str],
        &text(|entry| &entry.hello.boot_id) as &[&str],
        &text(|entry| &entry.hello.machine) as &[&str],
        &text(|entry| &entry.hello.software_version) as &[&str],
        &text(|entry| &entry.hello.role) as &[&str],
        &text(|entry| &entry.identity.certificate_serial) as &[&str],
        &text(|entry| entry.hello.journal.as_ref().map_or("", |journal| journal.as_str())) as &[&str],
        &lanes,
        &capacities,
        &changes.nodes as &[&str],
        &changes.ids,
        &changes.states as &[&str],
        &changes.attempts,
        &changes.sent_again,
        &moves.nodes as &[&str],
        &moves.serials as &[&str],
        &moves.machines,
        &moves.boots,
        &moves.left_at,
        &moves.returned_at,
        &moves.duplicate_nodes as &[&str],
        &moves.duplicate_serials as &[&str],
        &moves.duplicate_reasons as &[&str],
        KIND_NOT_ALLOWED
    )
    .fetch_all(link.within())
    .await?;
    if rows.len() != granted.len() {
        return Err(corrupt("a session's row is gone"));
    }
    Ok(rows
        .into_iter()
        .zip(answers)
        .map(|(row, answer)| {
            let answer = std::mem::take(answer);
            let epoch = SessionEpoch(counter(row.session_epoch));
            let replays: Vec<Command> =
                answer.replays.into_iter().map(|command| command.send_in(epoch)).collect();
            HelloGrant {
                epoch,
                server_time: UnixMillis(row.server_time),
                journal_acked: EventSeq(counter(row.journal_acked)),
                replays,
                in_flight: answer.in_flight,
                cancels: answer.cancels,
                cursors: row.cursors.into_iter().map(|seq| LaneSeq(counter(seq))).collect(),
                has_pending: row.has_pending,
                inventory_wanted: Vec::new(),
                is_recorded: true,
            }
        })
        .collect())
}

/// Texts as PostgreSQL writes an array of them.
pub(super) fn array_literal<T: AsRef<str>>(texts: impl Iterator<Item = T>) -> String {
    let mut literal = String::from("{");
    for (place, text) in texts.enumerate() {
        literal.push_str(if place == 0 { "\"" } else { ",\"" });
        for character in text.as_ref().chars() {
            if matches!(character, '"' | '\\') {
                literal.push('\\');
            }
            literal.push(character);
        }
        literal.push('"');
    }
    literal.push('}');
    literal
}

#[cfg(test)]
mod tests {
    use super::array_literal;

    #[test]
    fn a_lane_name_can_not_break_out_of_its_literal() {
        assert_eq!(array_literal([""; 0].iter()), "{}");
        assert_eq!(array_literal(["a", "NULL", "b,}{"].iter()), r#"{"a","NULL","b,}{"}"#);
        assert_eq!(array_literal(["\"\\"].iter()), r#"{"\"\\"}"#);
    }
}
