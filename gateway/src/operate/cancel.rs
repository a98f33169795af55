//! `gateway cancel`: takes a command back, or asks its node to stop.
//!
//! The database decides which of them it is, under the row's lock.
//!
//! 1. Exit code 0: canceled, or asked for. 3: it had ended in another state before.

use std::process::ExitCode;

use gateway_core::command::CommandState;
use serde_json::json;

use super::ENDED_OTHERWISE;
use super::arguments::CancelArgs;
use super::database::{Database, WRITE_TIMEOUT};
use super::terminal::{harmless, json_line, write};
use crate::error::GatewayError;

pub(super) async fn run(arguments: &CancelArgs) -> Result<ExitCode, GatewayError> {
    let urls = arguments.place.urls_or_default()?;
    let mut database = Database::open(&urls.database, WRITE_TIMEOUT).await?;
    database.begin_writing().await?;
    let query = sqlx::query_scalar(include_str!("../../queries/operate/cancel.sql"))
        .bind(&arguments.node)
        .bind(arguments.id)
        .bind(&arguments.reason);
    let states = database.texts("canceling the command", query).await?;
    database.end().await?;
    let state = states.into_iter().next().unwrap_or_default();
    let is_over = CommandState::from_name(&state).is_some_and(CommandState::is_terminal);
    let has_ended = is_over && state != "canceled";
    let asked = !is_over;
    let text = if arguments.json {
        json_line(&json!({ "node_id": arguments.node, "id": arguments.id, "state": state, "asked": asked }))
    } else {
        let id = arguments.id;
        match (has_ended, asked) {
            (true, _) => format!("Command {id} had ended before: {state}.\n"),
            (_, true) => format!(
                "Command {id} is {state}; {} is asked to cancel it. `gateway commands --id {id}` shows what became \
                 of it.\n",
                harmless(&arguments.node)
            ),
            _ => format!("Command {id} is canceled.\n"),
        }
    };
    write(&text)?;
    Ok(if has_ended { ExitCode::from(ENDED_OTHERWISE) } else { ExitCode::SUCCESS })
}
