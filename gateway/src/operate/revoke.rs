//! `gateway revoke`: takes a node's certificates back, in the database first, then at once where its session is.
//!
//! 1. What counts is the row; every gateway finds it by itself. A gateway that can't be called changes nothing
//!    about that, so it is a remark.
//! 2. Exit code 0: revoked. 3: there is none that could be.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::ENDED_OTHERWISE;
use super::callee::{files_of, finder, not_called, not_found};
use super::control_arguments::RevokeArgs;
use super::database::{Database, WRITE_TIMEOUT};
use super::terminal::{harmless, json_line, remark, write};
use crate::client::{FindError, GatewayClient};
use crate::error::GatewayError;

pub(super) async fn run(arguments: &RevokeArgs) -> Result<ExitCode, GatewayError> {
    let (node, callee) = (&arguments.node, &arguments.ask.callee);
    let urls = callee.place.urls_or_default()?;
    let mut database = Database::open(&urls.database, WRITE_TIMEOUT).await?;
    database.begin_writing().await?;
    let query = sqlx::query_scalar(include_str!("../../queries/operate/revoke.sql"))
        .bind(node)
        .bind(&arguments.serial)
        .bind(&arguments.reason);
    let serials = database.texts("revoking certificates", query).await?;
    database.end().await?;
    if serials.is_empty() {
        let answer = json!({ "node_id": node, "revoked": [], "gateway": null, "hastened": false });
        let sentence = format!(
            "{} has no certificate in node_certs that could be revoked (or it is revoked already).\n",
            harmless(node)
        );
        write(&if arguments.ask.json { json_line(&answer) } else { sentence })?;
        return Ok(ExitCode::from(ENDED_OTHERWISE));
    }
    let (gateway, hastened) = match hasten(arguments).await {
        Ok(gateway) => (gateway, true),
        Err(error) => {
            remark(&format!("it is revoked, and gateways find that by themselves: {error}"));
            (None, false)
        }
    };
    let hastened = hastened && gateway.is_some();
    let answer = json!({ "node_id": node, "revoked": serials, "gateway": gateway, "hastened": hastened });
    let sentence = match &gateway {
        Some(gateway) if hastened => format!("; the gateway {} ends its session now", harmless(gateway)),
        _ => String::new(),
    };
    let told = format!("Revoked for {}: {}{sentence}.\n", harmless(node), serials.join(", "));
    write(&if arguments.ask.json { json_line(&answer) } else { told })?;
    Ok(ExitCode::SUCCESS)
}

/// Has the gateway of the node's session look now; `None` where it has none.
async fn hasten(arguments: &RevokeArgs) -> Result<Option<String>, GatewayError> {
    let callee = &arguments.ask.callee;
    let files = files_of(callee)?;
    let body = json!({ "node_id": arguments.node });
    if let Some(url) = &callee.url {
        let client = GatewayClient::new(url, files).map_err(GatewayError::Control)?;
        let answer: Value = client.post("/v1/revoke", &body).await.map_err(|error| not_called(&error))?;
        return Ok((answer["here"] == 1).then(|| url.clone()));
    }
    let finder = finder(callee, files)?;
    let found = match &callee.gateway {
        Some(gateway) => finder.gateway(gateway).await,
        None => finder.of_node(&arguments.node).await,
    };
    match found {
        Err(FindError::NotConnected) => Ok(None),
        Err(error) => Err(not_found(&error)),
        Ok(found) => {
            found.client.post("/v1/revoke", &body).await.map_err(|error| not_called(&error))?;
            Ok(Some(found.gateway))
        }
    }
}
