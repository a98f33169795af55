//! Which gateway an operator's command calls, and what it proves itself by.
//!
//! 1. What stands on the command line wins over the configuration.
//! 2. With a URL no database is asked.

use std::path::Path;
use std::sync::Arc;

use super::control_arguments::Callee;
use super::place::{DEFAULT_CONFIG, usage};
use crate::client::{CallError, DatabaseRegistry, FindError, Finder, GatewayClient, InternalFiles};
use crate::config::{Config, ConfigError};
use crate::error::GatewayError;

/// A client of the gateway that is meant.
pub(super) async fn client(callee: &Callee) -> Result<Arc<GatewayClient>, GatewayError> {
    let config = configuration(callee)?;
    let files = files(callee, config.as_ref())?;
    if let Some(url) = &callee.url {
        let client = GatewayClient::new(url, files).map_err(|sentence| usage("--url", sentence))?;
        return Ok(Arc::new(client));
    }
    let gateway = match (&callee.gateway, &config) {
        (Some(gateway), _) => gateway.clone(),
        (None, Some(config)) => config.gateway.id.clone(),
        (None, None) => {
            let sentence =
                "which gateway is meant? Name it with --gateway ID or --url URL, or its --config FILE";
            return Err(usage("", sentence.to_owned()).into());
        }
    };
    let found = finder(callee, files)?.gateway(&gateway).await;
    found.map(|found| found.client).map_err(|error| not_found(&error))
}

/// What finds gateways in the database of the command.
pub(super) fn finder(callee: &Callee, files: InternalFiles) -> Result<Finder, GatewayError> {
    let url = callee.place.urls_or_default()?.database;
    let registry = DatabaseRegistry::new(url.reveal())
        .map_err(|_| usage("--database-url", "is no URL of a PostgreSQL database".to_owned()))?;
    Ok(Finder::new(Arc::new(registry), files))
}

/// What the command proves itself by, and checks gateways with.
pub(super) fn files_of(callee: &Callee) -> Result<InternalFiles, GatewayError> {
    files(callee, configuration(callee)?.as_ref())
}

pub(super) fn not_found(error: &FindError) -> GatewayError {
    let advice = match error {
        FindError::Unregistered { .. } => "; `SELECT id, internal_url FROM gateways` has those that are",
        FindError::NoApi { .. } => {
            "; set control.api_listen there, or gateway.internal_url to where it is reached"
        }
        FindError::NotConnected | FindError::Away(_) => "",
    };
    GatewayError::Control(format!("{error}{advice}"))
}

pub(super) fn not_called(error: &CallError) -> GatewayError {
    GatewayError::Control(error.to_string())
}

/// The configuration that the command line, or the environment, or the usual place has.
fn configuration(callee: &Callee) -> Result<Option<Config>, GatewayError> {
    let named = callee.place.config.clone().or_else(|| {
        let set = std::env::var_os("GATEWAY_CONFIG").filter(|file| !file.is_empty());
        set.map(Into::into)
    });
    match named {
        Some(file) => Ok(Some(Config::load(&file)?)),
        None if Path::new(DEFAULT_CONFIG).exists() => Ok(Some(Config::load(Path::new(DEFAULT_CONFIG))?)),
        None => Ok(None),
    }
}

fn files(callee: &Callee, config: Option<&Config>) -> Result<InternalFiles, GatewayError> {
    let missing = |option: &str, what: &str| -> ConfigError {
        usage(option, format!("is needed: {what}; or name the gateway's own --config FILE, which has one"))
    };
    let ca = callee.ca.clone().or_else(|| config?.control.client_ca.clone());
    let own = config.map(|config| {
        let (upstream, tls) = (&config.upstream, &config.tls);
        (
            upstream.certificate.clone().unwrap_or_else(|| tls.certificate.clone()),
            upstream.key.clone().unwrap_or_else(|| tls.key.clone()),
        )
    });
    let shown = callee.certificate.clone().zip(callee.key.clone()).or(own);
    let (certificate, key) =
        shown.ok_or_else(|| missing("--certificate", "the certificate to show, with --key"))?;
    Ok(InternalFiles { ca: ca.ok_or_else(|| missing("--ca", "the CA of control APIs"))?, certificate, key })
}
