//! The operator's commands: over the database (enqueue, cancel, the lists, `verify`), and over a gateway's control API
//! (drain, revoke and the like, `tunnel`, `top`).
//!
//! `arguments` and `control_arguments` are their command line, `database` the connection, `callee` the gateway that
//! is called, `table` and `terminal` what a person sees; every other file is one command. Queries are in `gateway/queries`.
//!
//! 1. A command that only reads does so in a read-only transaction with a statement timeout.
//! 2. Answers go to stdout: one JSON document or JSON lines with `--json`, else a table or a sentence.
//!    What went wrong goes to stderr, as a sentence: what, where, what to do.
//! 3. No string of a node or a client reaches a terminal with control characters in it.

pub mod arguments;
mod callee;
mod cancel;
mod control;
pub mod control_arguments;
mod database;
mod enqueue;
mod escape;
mod events;
mod failure;
mod invariants;
mod listings;
mod node_logs;
mod place;
mod revoke;
mod table;
pub(crate) mod terminal;
mod top;
mod tunnel;
mod verify;

use std::process::ExitCode;

use crate::error::GatewayError;
use arguments::{CertsCommand, OperatorCommand};
use control_arguments::ControlCommand;

/// Doors for the fuzzer alone: what makes strings of nodes harmless.
#[cfg(feature = "fuzz")]
pub mod doors {
    /// A text on one line.
    pub fn harmless(text: &str) -> String {
        super::terminal::harmless(text)
    }

    /// A cell of a table.
    pub fn harmless_within(text: &str, width: usize) -> String {
        super::terminal::harmless_within(text, width)
    }

    /// A line of JSON.
    pub fn json_line(value: &serde_json::Value) -> String {
        super::terminal::json_line(value)
    }
}

pub use invariants::{INVARIANTS, Invariant};
pub use place::Place;

/// The command did not end as it should: failed, canceled, expired or refused.
const ENDED_OTHERWISE: u8 = 3;
/// The command had not ended when the wait was over.
const NOT_ENDED: u8 = 4;

/// Runs a call of a control API; the exit code is the answer's.
pub fn call(command: &ControlCommand) -> Result<ExitCode, GatewayError> {
    runtime()?.block_on(async {
        match command {
            ControlCommand::Drain(arguments) => control::drain(arguments).await,
            ControlCommand::Undrain(arguments) => control::undrain(arguments).await,
            ControlCommand::Revoke(arguments) => revoke::run(arguments).await,
            ControlCommand::Dispatch(arguments) => control::dispatch(arguments).await,
            ControlCommand::ReloadTls(arguments) => control::reload_tls(arguments).await,
            ControlCommand::Health(arguments) => control::health(arguments).await,
            ControlCommand::LiveSessions(arguments) => control::live_sessions(arguments).await,
            ControlCommand::Top(arguments) => top::run(arguments).await,
        }
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, GatewayError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| GatewayError::Machine(format!("no runtime for the network: {error}")))
}

/// Runs one of them; the exit code is the answer's.
pub fn run(command: &OperatorCommand) -> Result<ExitCode, GatewayError> {
    runtime()?.block_on(async {
        match command {
            OperatorCommand::Enqueue(arguments) => enqueue::run(arguments).await,
            OperatorCommand::Cancel(arguments) => cancel::run(arguments).await,
            OperatorCommand::Nodes(arguments) => listings::nodes(arguments).await,
            OperatorCommand::Sessions(arguments) => listings::sessions(arguments).await,
            OperatorCommand::Gateways(arguments) => listings::gateways(arguments).await,
            OperatorCommand::Certs(CertsCommand::List(arguments)) => listings::certs(arguments).await,
            OperatorCommand::Commands(arguments) => listings::commands(arguments).await,
            OperatorCommand::Specs(arguments) => listings::specs(arguments).await,
            OperatorCommand::Events(arguments) => events::run(arguments).await,
            OperatorCommand::Inventory(arguments) => listings::inventory(arguments).await,
            OperatorCommand::Tunnel(arguments) => tunnel::run(arguments).await,
            OperatorCommand::Verify(arguments) => verify::run(arguments).await,
        }
    })
}
