//! Which gateway an operator's command calls, and what it proves itself by.
//!
//! 1. What stands on the command line wins over the configuration.
//! 2. With a URL no database is asked. Where the database is away, the gateway of --config is called where its own file
//!    says that it is: a gateway is looked at most when its database is gone.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::control_arguments::Callee;
use super::place::{DEFAULT_CONFIG, usage};
use super::terminal::remark;
use crate::client::{CallError, DatabaseRegistry, FindError, Finder, GatewayClient, InternalFiles};
use crate::config::{Config, ConfigError};
use crate::error::GatewayError;

/// A configuration, and the file that it is from.
struct Named {
    file: PathBuf,
    config: Config,
}

/// A gateway that can be asked.
pub(super) struct Called {
    client: Arc<GatewayClient>,
    /// What is shown to it.
    certificate: PathBuf,
}

impl Called {
    pub(super) fn new(client: Arc<GatewayClient>, files: &InternalFiles) -> Self {
        Self { client, certificate: files.certificate.clone() }
    }

    /// Why a call of it has no answer.
    pub(super) fn failed(&self, error: &CallError) -> GatewayError {
        GatewayError::Control(not_called(error, &self.certificate))
    }
}

impl std::ops::Deref for Called {
    type Target = GatewayClient;

    fn deref(&self) -> &GatewayClient {
        &self.client
    }
}

/// A client of the gateway that is meant.
pub(super) async fn client(callee: &Callee) -> Result<Called, GatewayError> {
    let named = configuration(callee)?;
    let files = files(callee, named.as_ref())?;
    if let Some(url) = &callee.url {
        return at(url, &files);
    }
    let (gateway, own) = match (&callee.gateway, &named) {
        (Some(gateway), named) => {
            (gateway.clone(), named.as_ref().filter(|named| named.config.gateway.id == *gateway))
        }
        (None, Some(named)) => (named.config.gateway.id.clone(), Some(named)),
        (None, None) => {
            let sentence =
                "which gateway is meant? Name it with --gateway ID or --url URL, or its --config FILE";
            return Err(usage("", sentence.to_owned()).into());
        }
    };
    match (finder(callee, files.clone())?.gateway(&gateway).await, own.and_then(|own| own_url(&own.config))) {
        (Ok(found), _) => Ok(Called::new(found.client, &files)),
        (Err(error @ FindError::Away(_)), Some(url)) => {
            let called = at(&url, &files)?;
            remark(&format!("{}; it is asked at {url}, as its file says", not_found(callee, &error)));
            Ok(called)
        }
        (Err(error), _) => Err(not_found(callee, &error)),
    }
}

/// The id of the gateway that is meant, where that is known without asking anybody.
pub(super) fn id(callee: &Callee) -> Option<String> {
    match (&callee.gateway, &callee.url) {
        (Some(id), _) => Some(id.clone()),
        (None, Some(_)) => None,
        (None, None) => Some(configuration(callee).ok()??.config.gateway.id),
    }
}

fn at(url: &str, files: &InternalFiles) -> Result<Called, GatewayError> {
    let client = GatewayClient::new(url, files.clone()).map_err(|sentence| usage("--url", sentence))?;
    Ok(Called::new(Arc::new(client), files))
}

/// Where a gateway is by its own file; `None` where only itself knows.
fn own_url(config: &Config) -> Option<String> {
    let listen = config.control.api_listen.filter(|listen| listen.port() != 0);
    config.gateway.internal_url.clone().or_else(|| listen.map(|listen| format!("https://{listen}")))
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

pub(super) fn not_found(callee: &Callee, error: &FindError) -> GatewayError {
    let advice = match error {
        FindError::Unregistered { .. } => "; `gateway gateways` lists those that are".into(),
        FindError::NoApi { .. } => {
            "; set control.api_listen there, or gateway.internal_url to where it is reached".into()
        }
        // Which database, without its password.
        FindError::Away(_) => match callee.place.urls_or_default() {
            Ok(urls) => format!(" (at {}); --url names a gateway without it", urls.database),
            Err(_) => String::new(),
        },
        FindError::NotConnected => String::new(),
    };
    GatewayError::Control(format!("{error}{advice}"))
}

/// The alerts with which a gateway refuses what is shown to it, and what each says of that.
const ALERTS: [(&str, &str); 6] = [
    ("UnsupportedCertificate", "it is not for clients (it lacks the clientAuth usage)"),
    ("UnknownCA", "no CA of the gateway's control.client_ca has issued it"),
    ("DecryptError", "no CA of the gateway's control.client_ca has issued it"),
    ("CertificateExpired", "it has expired, or is not valid yet"),
    ("CertificateRevoked", "it is revoked"),
    ("BadCertificate", "it can't be read as one"),
];

fn not_called(error: &CallError, certificate: &Path) -> String {
    let told = error.to_string();
    let alert = ALERTS.iter().find(|(alert, _)| told.contains(&format!("fatal alert: {alert}")));
    match (error, alert) {
        (CallError::Unreachable { address, .. }, Some((_, what))) => format!(
            "the gateway at {address} refuses the certificate {}: {what}. Name another with --certificate and --key",
            certificate.display()
        ),
        _ => told,
    }
}

/// The configuration that the command line, or the environment, or the usual place has.
fn configuration(callee: &Callee) -> Result<Option<Named>, GatewayError> {
    let named = callee.place.config.clone().or_else(|| {
        let set = std::env::var_os("GATEWAY_CONFIG").filter(|file| !file.is_empty());
        set.map(Into::into)
    });
    let usual = || Some(PathBuf::from(DEFAULT_CONFIG)).filter(|file| file.exists());
    let Some(file) = named.or_else(usual) else { return Ok(None) };
    Ok(Some(Named { config: Config::load(&file)?, file }))
}

fn files(callee: &Callee, named: Option<&Named>) -> Result<InternalFiles, GatewayError> {
    let missing = |option: &str, what: &str| -> ConfigError {
        usage(option, format!("is needed: {what}; or name the gateway's own --config FILE, which has one"))
    };
    let ca = callee.ca.clone().or_else(|| named?.config.control.client_ca.clone());
    let own = named.map(|Named { config, .. }| {
        let (upstream, control, tls) = (&config.upstream, &config.control, &config.tls);
        let first = |upstream: &Option<PathBuf>, control: &Option<PathBuf>, tls: &PathBuf| {
            upstream.clone().or_else(|| control.clone()).unwrap_or_else(|| tls.clone())
        };
        (
            first(&upstream.certificate, &control.certificate, &tls.certificate),
            first(&upstream.key, &control.key, &tls.key),
        )
    });
    let shown = callee.certificate.clone().zip(callee.key.clone()).or(own);
    let (certificate, key) =
        shown.ok_or_else(|| missing("--certificate", "the certificate to show, with --key"))?;
    let ca = match (ca, named) {
        (Some(ca), _) => ca,
        (None, Some(named)) => return Err(without_api(named).into()),
        (None, None) => return Err(missing("--ca", "the CA of control APIs").into()),
    };
    Ok(InternalFiles { ca, certificate, key })
}

/// A file that a gateway without a control API has.
fn without_api(Named { file, config }: &Named) -> ConfigError {
    let listen = config.control.listen;
    let health =
        if listen.port() == 0 { String::new() } else { format!(", or ask http://{listen}/v1/health") };
    let sentence = format!(
        "{} has no [control] client_ca: this gateway has no control API. Set api_listen and client_ca there{health}; \
         of another gateway, name the CA with --ca",
        file.display()
    );
    usage("", sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_the_gateway_refuses_is_named_with_what_is_wrong_about_it() {
        let unreachable =
            |why: &str| CallError::Unreachable { address: "g:1".to_owned(), why: why.to_owned() };
        let told = |why: &str| not_called(&unreachable(why), Path::new("tls/gw.crt"));
        let refused = told("the answer: received fatal alert: UnsupportedCertificate");
        assert!(refused.contains("refuses the certificate tls/gw.crt: it is not for clients"), "{refused}");
        assert!(refused.contains("clientAuth") && refused.contains("--certificate"), "{refused}");
        assert!(told("received fatal alert: UnknownCA").contains("control.client_ca"));
        assert!(told("connecting: refused").contains("can't be reached: connecting: refused"));
    }
}
