//! The control API of a gateway: its files, and the desk at which it asks the writer and the watch of the files.
//!
//! It only puts them together; what a call does is `gateway_control::api`'s, what an ask means the writer's.
//!
//! 1. Where no address is configured there is no API, and nothing of it is read or made.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Sender, TrySendError};
use gateway_control::api::{ApiConfig, ApiFile, ApiTls, Desk, DeskAway, DeskFuture, TlsReload};
use gateway_core::desk::{DeskAnswer, DeskAsk};
use gateway_core::mail::Post;
use gateway_core::seam::ToShard;
use gateway_db_writer::{DeskError, DeskPost};
use tokio::sync::{oneshot, watch};

use super::files::{problem, read, warn_if_open};
use super::tls_watch::{FileSet, LookAsked};
use crate::config::{Config, ConfigError};

/// What the API's listener shows, and the CA of its clients, each with the key that names it.
#[derive(Debug, Clone)]
pub(super) struct ApiFiles([(&'static str, PathBuf); 3]);

impl ApiFiles {
    /// `None` where there is no API.
    pub(super) fn of(config: &Config) -> Option<Self> {
        let (control, tls) = (&config.control, &config.tls);
        control.api_listen?;
        Some(Self([
            ("control.certificate", control.certificate.as_ref().unwrap_or(&tls.certificate).clone()),
            ("control.key", control.key.as_ref().unwrap_or(&tls.key).clone()),
            ("control.client_ca", control.client_ca.clone()?),
        ]))
    }
}

impl FileSet for ApiFiles {
    type Material = ApiTls;
    const USERS: &str = "the control API";

    fn read(&self) -> Result<Vec<Vec<u8>>, ConfigError> {
        self.0.iter().map(|(key, file)| read(key, file)).collect()
    }

    fn material(&self, read: &[Vec<u8>]) -> Result<ApiTls, ConfigError> {
        let [certificate, key, client_ca] = read else {
            unreachable!("`read` gives as many texts as there are files")
        };
        ApiTls::new(certificate, key, client_ca).map_err(|error| {
            let (key, file) = &self.0[match error.file {
                ApiFile::Certificate => 0,
                ApiFile::Key => 1,
                ApiFile::ClientCa => 2,
            }];
            problem(key, format!("{}: {error}", file.display()))
        })
    }
}

/// An API that is to be served, and what its files held.
pub(super) struct Api {
    pub(super) files: ApiFiles,
    pub(super) read: Vec<Vec<u8>>,
    pub(super) listener: watch::Sender<Arc<ApiTls>>,
    tls: watch::Receiver<Arc<ApiTls>>,
}

impl Api {
    /// Reads its files; `None` where there is none.
    pub(super) fn prepare(config: &Config) -> Result<Option<Self>, ConfigError> {
        let Some(files) = ApiFiles::of(config) else { return Ok(None) };
        let read = files.read()?;
        let tls = files.material(&read)?;
        let (key, file) = &files.0[1];
        warn_if_open(key, file);
        let (listener, tls) = watch::channel(Arc::new(tls));
        Ok(Some(Self { files, read, listener, tls }))
    }

    /// What its listener is given.
    pub(super) fn config(
        &self,
        config: &Config,
        desk: GatewayDesk,
        to_shards: Vec<Post<ToShard>>,
        started: Instant,
    ) -> Option<ApiConfig> {
        Some(ApiConfig {
            listen: config.control.api_listen?,
            tls: self.tls.clone(),
            clients: config.control.clients.clone().into(),
            drain_within: config.gateway.drain.0,
            ping_every: config.control.ping_every.0,
            desk: Arc::new(desk),
            to_shards,
            started,
        })
    }
}

/// Whom the API asks.
pub(super) struct GatewayDesk {
    pub(super) writer: DeskPost,
    pub(super) looks: Sender<LookAsked>,
}

impl Desk for GatewayDesk {
    fn ask(&self, ask: DeskAsk) -> DeskFuture<DeskAnswer> {
        let writer = self.writer.clone();
        Box::pin(async move {
            writer.ask(ask).await.map_err(|error| match error {
                DeskError::Full => DeskAway::Full,
                DeskError::Gone => DeskAway::Gone,
            })
        })
    }

    fn reload_tls(&self) -> DeskFuture<TlsReload> {
        let (answer, answered) = oneshot::channel();
        let asked = self.looks.try_send(LookAsked(Some(answer)));
        Box::pin(async move {
            match asked {
                Ok(()) => answered.await.map_err(|_| DeskAway::Gone),
                Err(TrySendError::Full(_)) => Err(DeskAway::Full),
                Err(TrySendError::Disconnected(_)) => Err(DeskAway::Gone),
            }
        })
    }
}
