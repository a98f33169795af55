//! `gateway enqueue`: one command for one node, and, if asked, the wait for its end.
//!
//! 1. Whoever waits listens before it enqueues, so that no end is missed; a look every second makes it
//!    independent of NOTIFY (a pooler may swallow it, an idempotent repeat was not asked to notify).
//! 2. The command exists if and only if its id is printed.
//! 3. A wait that is over cancels nothing: the command goes on.

use std::io::Read as _;
use std::process::ExitCode;
use std::time::Duration;

use gateway_core::limits::MAX_PAYLOAD_BYTES;
use serde_json::Value;
use sqlx::postgres::PgListener;
use tokio::time::Instant;
use uuid::Uuid;

use super::arguments::{EnqueueArgs, When};
use super::database::{Database, WRITE_TIMEOUT};
use super::failure::is_unknown_node;
use super::listings::commands_query;
use super::place::{Urls, usage};
use super::terminal::{bytes_as_text, harmless, json_line, remark, write};
use super::{ENDED_OTHERWISE, NOT_ENDED};
use crate::error::GatewayError;

const DONE_CHANNEL: &str = "gateway_command_done";
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a database may be away while one waits for a command, before that is said.
const RIDE_OUT: Duration = Duration::from_secs(30);
/// Longer than anybody waits, and still a date.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(super) async fn run(arguments: &EnqueueArgs) -> Result<ExitCode, GatewayError> {
    let payload = payload(arguments.payload.as_deref())?;
    let urls = arguments.place.urls_or_default()?;
    let mut database = Database::open(&urls.database, WRITE_TIMEOUT).await?;
    let listener = match arguments.wait {
        Some(_) => listen(&urls).await,
        None => None,
    };
    let mut told = enqueue(arguments, payload, &mut database).await?;
    let known = told["known"] == true;
    let id: Uuid = told["id"].as_str().and_then(|id| id.parse().ok()).unwrap_or_default();
    let Some(timeout) = arguments.wait else {
        write(&if arguments.json { json_line(&told) } else { enqueued(arguments, id, known) })?;
        return Ok(ExitCode::SUCCESS);
    };
    let deadline = Instant::now() + timeout.unwrap_or(FAR);
    let mut wait = Wait { arguments, id, urls: &urls, database: Some(database), listener };
    let Some(mut row) = wait.until(deadline).await? else {
        told["timed_out"] = Value::Bool(true);
        let sentence =
            format!("Command {id} has not ended yet; `gateway commands --id {id}` shows where it is.\n");
        write(&if arguments.json { json_line(&told) } else { sentence })?;
        return Ok(ExitCode::from(NOT_ENDED));
    };
    row["known"] = Value::Bool(known);
    row["timed_out"] = Value::Bool(!row["done"].as_bool().unwrap_or(false));
    write(&if arguments.json { json_line(&row) } else { sentence_of(&row) })?;
    Ok(match (row["done"] == true, row["state"] == "succeeded") {
        (false, _) => ExitCode::from(NOT_ENDED),
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(ENDED_OTHERWISE),
    })
}

fn payload(source: Option<&str>) -> Result<Vec<u8>, GatewayError> {
    let bounded = |reader: &mut dyn std::io::Read, name: &str| {
        let mut bytes = Vec::new();
        reader
            // What could not be delivered is not read whole.
            .take(MAX_PAYLOAD_BYTES as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| usage("--payload", format!("{name} can't be read: {error}")))?;
        if bytes.len() > MAX_PAYLOAD_BYTES {
            let sentence = format!(
                "{name} has more than {MAX_PAYLOAD_BYTES} bytes, which is the most that is delivered; store it elsewhere \
                 and send a reference to it"
            );
            return Err(usage("--payload", sentence).into());
        }
        Ok(bytes)
    };
    match source {
        None => Ok(Vec::new()),
        Some("-") => bounded(&mut std::io::stdin().lock(), "stdin"),
        Some(text) => match text.strip_prefix('@') {
            None => Ok(text.as_bytes().to_vec()),
            Some(file) => {
                let mut opened = std::fs::File::open(file)
                    .map_err(|error| usage("--payload", format!("the file {file} can't be read: {error}")))?;
                bounded(&mut opened, &format!("the file {file}"))
            }
        },
    }
}

async fn enqueue(
    arguments: &EnqueueArgs,
    payload: Vec<u8>,
    database: &mut Database,
) -> Result<Value, GatewayError> {
    let parts = |when: &Option<When>| match when {
        None => (None, None),
        Some(When::At(date)) => (Some(date.clone()), None),
        Some(When::In(duration)) => (None, Some(duration.as_secs_f64())),
    };
    let (not_before, not_before_in) = parts(&arguments.not_before);
    let (not_after, not_after_in) = parts(&arguments.not_after);
    database.begin_writing().await?;
    let query = sqlx::query_scalar(include_str!("../../queries/operate/enqueue.sql"))
        .bind(&arguments.node)
        .bind(&arguments.kind)
        .bind(payload)
        .bind(&arguments.lane)
        .bind(&arguments.idempotency_key)
        .bind(arguments.attempts)
        .bind(not_before)
        .bind(not_before_in)
        .bind(not_after)
        .bind(not_after_in)
        .bind(arguments.wait.is_some());
    let doing = "enqueueing the command";
    let rows = match database.asked(query).await {
        Ok(rows) => rows,
        Err(error) => {
            let refused = database.refused(doing, &error);
            if !is_unknown_node(&error) {
                return Err(refused);
            }
            let meant = similar(arguments, database).await;
            return Err(GatewayError::Database(format!("{refused}{meant}")));
        }
    };
    database.end().await?;
    rows.first().map_or(Ok(Value::Null), |row| database.row(doing, row))
}

/// Nodes that may have been meant, as a further sentence.
async fn similar(arguments: &EnqueueArgs, database: &mut Database) -> String {
    // The transaction has failed; another one reads.
    if database.end().await.is_err() || database.begin_reading().await.is_err() {
        return String::new();
    }
    let query =
        sqlx::query_scalar(include_str!("../../queries/operate/similar_nodes.sql")).bind(&arguments.node);
    match database.texts("looking for similar nodes", query).await {
        Ok(nodes) if !nodes.is_empty() => {
            let nodes: Vec<String> = nodes.iter().map(|node| harmless(node)).collect();
            format!(". Or did you mean {}?", nodes.join(" or "))
        }
        _ => String::new(),
    }
}

async fn listen(urls: &Urls) -> Option<PgListener> {
    let url = urls.listen.as_ref().unwrap_or(&urls.database);
    let listening = async {
        let mut listener = PgListener::connect(url.reveal()).await?;
        listener.listen(DONE_CHANNEL).await?;
        Ok::<_, sqlx::Error>(listener)
    };
    match tokio::time::timeout(Duration::from_secs(10), listening).await {
        Ok(Ok(listener)) => Some(listener),
        // The look every second goes on without it.
        _ => {
            remark(&format!("LISTEN does not work at {url}; the end is looked for every second instead"));
            None
        }
    }
}

/// The wait for the end of one command.
struct Wait<'a> {
    arguments: &'a EnqueueArgs,
    id: Uuid,
    urls: &'a Urls,
    /// `None` while the database is away.
    database: Option<Database>,
    listener: Option<PgListener>,
}

impl Wait<'_> {
    /// The command's row, once it is done or the time is over; `None` where the database was away then.
    async fn until(&mut self, deadline: Instant) -> Result<Option<Value>, GatewayError> {
        let mut away_since = None;
        loop {
            match self.look().await {
                Ok(row) if row["done"] == true || Instant::now() >= deadline => return Ok(Some(row)),
                Ok(_) => away_since = None,
                Err(error) => {
                    self.database = None;
                    let since = *away_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > RIDE_OUT {
                        return Err(GatewayError::Database(format!(
                            "command {} is enqueued and can't be followed: {error}",
                            self.id
                        )));
                    }
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                }
            }
            self.rest(deadline).await;
        }
    }

    async fn look(&mut self) -> Result<Value, GatewayError> {
        let mut database = match self.database.take() {
            Some(database) => database,
            None => Database::open(&self.urls.database, WRITE_TIMEOUT).await?,
        };
        database.begin_reading().await?;
        let query = commands_query()
            .bind(&self.arguments.node)
            .bind(self.id)
            .bind(None::<Vec<String>>)
            .bind(None::<String>)
            .bind(None::<f64>)
            .bind(1_i64);
        let rows = database.rows("looking at the command", query).await?;
        database.end().await?;
        let mut row = rows.into_iter().next().ok_or_else(|| {
            let sentence = format!("command {} has ended and was removed by retention meanwhile", self.id);
            GatewayError::Database(sentence)
        })?;
        bytes_as_text(&mut row, "result");
        self.database = Some(database);
        Ok(row)
    }

    /// Until its end is told, or it is time to look again.
    async fn rest(&mut self, deadline: Instant) {
        let next = deadline.min(Instant::now() + LOOK_EVERY);
        let wanted = self.id.to_string();
        let told = async {
            let Some(listener) = &mut self.listener else { return std::future::pending().await };
            loop {
                match listener.recv().await {
                    Ok(notification) if notification.payload().starts_with(&wanted) => return true,
                    Ok(_) => {}
                    Err(_) => return false,
                }
            }
        };
        match tokio::time::timeout_at(next, told).await {
            Ok(true) | Err(_) => {}
            Ok(false) => {
                self.listener = None;
                tokio::time::sleep_until(next).await;
            }
        }
    }
}

fn enqueued(arguments: &EnqueueArgs, id: Uuid, known: bool) -> String {
    let node = harmless(&arguments.node);
    if known {
        format!("{node} has a command with this idempotency key: {id}. Nothing new was enqueued.\n")
    } else {
        format!("Enqueued for {node}: {id}\n")
    }
}

/// How a command ended, for people; what the node said stands on lines of its own.
fn sentence_of(row: &Value) -> String {
    let text = |field: &str| row[field].as_str().map(harmless).filter(|text| !text.is_empty());
    let (id, state) = (text("id").unwrap_or_default(), text("state").unwrap_or_default());
    let mut told = match (row["done"] == true, text("waits_for")) {
        (true, _) => format!("Command {id}: {state}.\n"),
        (false, Some(why)) => format!(
            "Command {id} has not ended yet: it is {state}, and {why}. It goes on; `gateway cancel` takes it back.\n"
        ),
        (false, None) => format!("Command {id} has not ended yet: it is {state}.\n"),
    };
    for (field, heading) in
        [("result", "result"), ("result_hex", "result, in hex"), ("error", "error"), ("refusal", "refused")]
    {
        if let Some(said) = text(field) {
            told.push_str(&format!("  {heading}: {said}\n"));
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_payload_is_text_or_a_file_and_never_a_guess() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("plan.json");
        std::fs::write(&file, b"\xff{}").expect("written");
        let named = format!("@{}", file.display());
        assert_eq!(payload(None).expect("empty"), b"");
        assert_eq!(payload(Some("plan.json")).expect("text"), b"plan.json");
        assert_eq!(payload(Some(&named)).expect("the file"), b"\xff{}");
        let error = payload(Some("@/nowhere/plan.json")).expect_err("there is none").to_string();
        assert!(error.contains("--payload") && error.contains("/nowhere/plan.json"), "{error}");
        std::fs::write(&file, vec![0; MAX_PAYLOAD_BYTES + 1]).expect("written");
        let error = payload(Some(&named)).expect_err("too large").to_string();
        assert!(error.contains("524288 bytes"), "{error}");
    }

    #[test]
    fn what_a_node_says_can_not_write_on_the_terminal() {
        let row = json!({ "id": "x", "state": "failed", "done": true, "error": "\u{1b}[2J\nowned" });
        assert_eq!(sentence_of(&row), "Command x: failed.\n  error: \\u{1b}[2J\\nowned\n");
    }
}
