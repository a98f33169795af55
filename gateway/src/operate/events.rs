//! `gateway events`: the newest events, and with `--follow` those to come.
//!
//! A follower compares each journal's cursor with what it has shown, so it shows each event once and
//! misses none, in whatever order transactions commit.
//!
//! 1. The first events and the first cursors are of one snapshot.
//! 2. A look takes a bounded number of events; what is left is taken at once, before it rests.
//! 3. A database that goes away does not end a follower: it says so once, and goes on where it was.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use sqlx::Row as _;

use super::arguments::EventsArgs;
use super::database::Database;
use super::table::{Column, column, loose_line, table};
use super::terminal::{Reader, bytes_as_text, json_line, remark, write};
use crate::error::GatewayError;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Journals of one query, and events of each.
const JOURNALS: usize = 64;
const EVENTS: i64 = 64;

const COLUMNS: [Column; 6] = [
    column("STORED", "stored_at", 20),
    column("NODE", "node_id", 64),
    column("JOURNAL", "journal_id", 20),
    column("SEQ", "seq", 12),
    column("KIND", "kind", 24),
    column("BODY", "shown", 80),
];

/// How far journals are shown, by node and journal.
type Cursors = BTreeMap<(String, String), i64>;

pub(super) async fn run(arguments: &EventsArgs) -> Result<ExitCode, GatewayError> {
    let reading = &arguments.reading;
    let mut database = Database::open_for_reading(&reading.place, reading.timeout).await?;
    let query = sqlx::query_scalar(include_str!("../../queries/operate/events.sql"))
        .bind(&arguments.node)
        .bind(&arguments.journal)
        .bind(&arguments.kind)
        .bind(i64::from(arguments.limit));
    let mut newest = database.rows("listing events", query).await?;
    let mut shown = if arguments.follow { cursors(arguments, &mut database).await? } else { Cursors::new() };
    database.end().await?;
    newest.reverse();
    let mut reader = show_first(arguments, &mut newest)?;
    // `None` while the database is away.
    let mut database = Some(database);
    while arguments.follow && reader == Reader::There {
        let is_behind = match look_again(arguments, &mut database, &mut shown, &mut reader).await {
            Ok(is_behind) => is_behind,
            Err(GatewayError::DatabaseAway(sentence)) => {
                if database.take().is_some() {
                    remark(&format!("{sentence}. Events are followed again when it is back"));
                }
                false
            }
            Err(error) => return Err(error),
        };
        if !is_behind && reader == Reader::There {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A look, on a new connection where the last one was lost.
async fn look_again(
    arguments: &EventsArgs,
    database: &mut Option<Database>,
    shown: &mut Cursors,
    reader: &mut Reader,
) -> Result<bool, GatewayError> {
    let reading = &arguments.reading;
    if let Some(database) = database {
        return look(arguments, database, shown, reader).await;
    }
    let opened = Database::open_for_reading(&reading.place, reading.timeout).await?;
    look(arguments, database.insert(opened), shown, reader).await
}

fn show_first(arguments: &EventsArgs, rows: &mut [Value]) -> Result<Reader, GatewayError> {
    if arguments.reading.json || arguments.follow {
        return show(arguments, rows);
    }
    if rows.is_empty() {
        return write("No event fits.\n");
    }
    rows.iter_mut().for_each(prepare);
    write(&table(&COLUMNS, rows))
}

fn show(arguments: &EventsArgs, rows: &mut [Value]) -> Result<Reader, GatewayError> {
    let mut text = String::new();
    for row in rows {
        if arguments.reading.json {
            bytes_as_text(row, "body");
            text.push_str(&json_line(row));
        } else {
            prepare(row);
            text.push_str(&loose_line(&COLUMNS, row));
        }
    }
    write(&text)
}

/// One column for the body, as text or in hex, or for why the event was refused.
fn prepare(row: &mut Value) {
    bytes_as_text(row, "body");
    let of = |field: &str| row[field].as_str().map(str::to_owned);
    let shown = match of("rejected") {
        Some(why) => format!("rejected: {why}"),
        None => of("body").or_else(|| of("body_hex").map(|hex| format!("0x{hex}"))).unwrap_or_default(),
    };
    row["shown"] = Value::String(shown);
}

async fn cursors(arguments: &EventsArgs, database: &mut Database) -> Result<Cursors, GatewayError> {
    let rows = sqlx::query(include_str!("../../queries/operate/journals.sql"))
        .bind(&arguments.node)
        .bind(&arguments.journal)
        .fetch_all(database.connection())
        .await
        .map_err(|error| database.refused("reading the journals", &error))?;
    let read = |row: &sqlx::postgres::PgRow| Ok(((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?));
    let cursors: Result<Cursors, sqlx::Error> = rows.iter().map(read).collect();
    cursors.map_err(|error| database.refused("reading the journals", &error))
}

/// Shows what came since; `true` where more is left.
async fn look(
    arguments: &EventsArgs,
    database: &mut Database,
    shown: &mut Cursors,
    reader: &mut Reader,
) -> Result<bool, GatewayError> {
    database.begin_reading().await?;
    let stored = cursors(arguments, database).await?;
    let mut is_behind = false;
    let mut grown = Vec::new();
    for (journal, acked) in stored {
        let from = shown.get(&journal).copied().unwrap_or(0);
        if acked > from {
            let to = acked.min(from.saturating_add(EVENTS));
            is_behind |= to < acked;
            grown.push((journal, from, to));
        }
    }
    for part in grown.chunks(JOURNALS) {
        let nodes: Vec<&str> = part.iter().map(|((node, _), ..)| node.as_str()).collect();
        let journals: Vec<&str> = part.iter().map(|((_, journal), ..)| journal.as_str()).collect();
        let from: Vec<i64> = part.iter().map(|(_, from, _)| *from).collect();
        let to: Vec<i64> = part.iter().map(|(.., to)| *to).collect();
        let query = sqlx::query_scalar(include_str!("../../queries/operate/events_after.sql"))
            .bind(nodes)
            .bind(journals)
            .bind(from)
            .bind(to)
            .bind(&arguments.kind);
        let mut rows = database.rows("following events", query).await?;
        if !rows.is_empty() {
            *reader = show(arguments, &mut rows)?;
        }
        shown.extend(part.iter().map(|(journal, _, to)| (journal.clone(), *to)));
    }
    database.end().await?;
    Ok(is_behind)
}
