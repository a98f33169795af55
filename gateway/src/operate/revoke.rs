//! `gateway revoke`: takes a node's certificates back, in the database first, then at once where its session is.
//!
//! 1. What counts is the row; every gateway finds it by itself. A gateway that can't be called changes nothing
//!    about that, so it is a remark.
//! 2. Exit code 0: revoked. 3: there is none that could be.

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};

use super::ENDED_OTHERWISE;
use super::callee::{Called, files_of, finder, not_found};
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
    let why = match serials.is_empty() {
        true => why_not(&mut database, arguments).await?,
        false => "",
    };
    database.end().await?;
    if serials.is_empty() {
        let answer = json!({ "node_id": node, "revoked": [], "gateway": null, "hastened": false });
        let sentence = format!("{} {why}.\n", harmless(node));
        write(&if arguments.ask.json { json_line(&answer) } else { sentence })?;
        return Ok(ExitCode::from(ENDED_OTHERWISE));
    }
    let (gateway, hastened) = match hasten(arguments).await {
        Ok(gateway) => (gateway, true),
        Err(error) => {
            let told = error.to_string();
            let why = told.trim_end_matches('.');
            remark(&format!(
                "it is revoked, and gateways find that within about a second. None was called: {why}"
            ));
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

/// Why there is nothing to revoke.
async fn why_not(database: &mut Database, arguments: &RevokeArgs) -> Result<&'static str, GatewayError> {
    let query = sqlx::query_scalar(include_str!("../../queries/operate/why_not_revoked.sql"))
        .bind(&arguments.node)
        .bind(&arguments.serial);
    let words = database.texts("looking for the certificate", query).await?;
    let is_one = arguments.serial.is_some();
    Ok(match words.first().map(String::as_str) {
        Some("revoked") if is_one => "has that certificate, and it is revoked already",
        Some("revoked") => "has no other certificates than those that are revoked already",
        Some("unrecorded") if is_one => "has no certificate with that serial in node_certs",
        Some("unrecorded") => "is registered, and has no certificate in node_certs",
        _ => "is no node that is registered, and has no certificate in node_certs",
    })
}

/// Has the gateway of the node's session look now; `None` where it has none.
async fn hasten(arguments: &RevokeArgs) -> Result<Option<String>, GatewayError> {
    let callee = &arguments.ask.callee;
    let files = files_of(callee)?;
    let body = json!({ "node_id": arguments.node });
    if let Some(url) = &callee.url {
        let client = GatewayClient::new(url, files.clone()).map_err(GatewayError::Control)?;
        let client = Called::new(Arc::new(client), &files);
        let answer: Value = client.post("/v1/revoke", &body).await.map_err(|error| client.failed(&error))?;
        return Ok((answer["here"] == 1).then(|| url.clone()));
    }
    let finder = finder(callee, files.clone())?;
    let found = match &callee.gateway {
        Some(gateway) => finder.gateway(gateway).await,
        None => finder.of_node(&arguments.node).await,
    };
    match found {
        Err(FindError::NotConnected) => Ok(None),
        Err(error) => Err(not_found(callee, &error)),
        Ok(found) => {
            let client = Called::new(found.client, &files);
            client.post("/v1/revoke", &body).await.map_err(|error| client.failed(&error))?;
            Ok(Some(found.gateway))
        }
    }
}
