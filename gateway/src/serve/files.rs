//! The TLS files: read, understood, or refused with the key that names them.
//!
//! 1. A file that others than the gateway's user can read and that holds a secret is told of.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gateway_control::relay::UpstreamFiles;
use gateway_control::small_file;
use gateway_shard::IdentityRules;
use gateway_shard::tls::{Serving, TlsError, TlsMaterial};

use super::api::Api;
use super::tls_watch::FileSet;
use crate::config::{Config, ConfigError, Lines, Problem};

/// The TLS files, and how they are to be understood.
#[derive(Debug, Clone)]
pub(super) struct TlsFiles {
    /// The serving chain, its key and the roots of nodes, each with the key that names it.
    files: [(&'static str, PathBuf); 3],
    leeway: Duration,
}

impl TlsFiles {
    pub(super) fn of(config: &Config) -> Self {
        let tls = &config.tls;
        let files = [
            ("tls.certificate", tls.certificate.clone()),
            ("tls.key", tls.key.clone()),
            ("tls.node_ca", tls.node_ca.clone()),
        ];
        Self { files, leeway: config.identity.clock_skew.0 }
    }

    /// Tells of a key that others may read.
    pub(super) fn warn_if_open(&self) {
        let (key, file) = &self.files[1];
        warn_if_open(key, file);
    }
}

impl FileSet for TlsFiles {
    type Material = TlsMaterial;
    const USERS: &str = "the nodes' listener";

    fn serving(material: &TlsMaterial) -> Option<&Serving> {
        Some(material.serving())
    }

    fn read(&self) -> Result<Vec<Vec<u8>>, ConfigError> {
        self.files.iter().map(|(key, file)| read(key, file)).collect()
    }

    fn material(&self, read: &[Vec<u8>]) -> Result<TlsMaterial, ConfigError> {
        let [certificate, key, node_ca] = read else {
            unreachable!("`read` gives as many texts as there are files")
        };
        TlsMaterial::new(certificate, key, node_ca, self.leeway).map_err(|error| {
            let (key, file) = match &error {
                TlsError::NoKey | TlsError::BadKey(_) | TlsError::KeyMismatch => &self.files[1],
                TlsError::BadRoot { .. } | TlsError::BadRoots(_) => &self.files[2],
                TlsError::NotPem { file, .. } | TlsError::NoCertificate { file } if file.contains("node") => {
                    &self.files[2]
                }
                TlsError::NotPem { file, .. } if file.contains("key") => &self.files[1],
                _ => &self.files[0],
            };
            problem(key, format!("{}: {error}", file.display()))
        })
    }
}

/// How certificates name nodes.
pub(super) fn identity_rules(config: &Config) -> Result<Arc<IdentityRules>, ConfigError> {
    IdentityRules::new(config.tls.trust_domain.as_deref(), &config.identity.uri_path)
        .map(Arc::new)
        .map_err(|error| problem("tls.trust_domain", error.to_string()))
}

/// The files of the internal TLS, once they were understood; `None` where no service is named.
pub(super) fn upstream_files(config: &Config) -> Result<Option<UpstreamFiles>, ConfigError> {
    let (upstream, tls) = (&config.upstream, &config.tls);
    let Some(ca) = &upstream.ca else { return Ok(None) };
    let files = UpstreamFiles {
        ca: ca.clone(),
        certificate: upstream.certificate.clone().unwrap_or_else(|| tls.certificate.clone()),
        key: upstream.key.clone().unwrap_or_else(|| tls.key.clone()),
    };
    warn_if_open("upstream.key", &files.key);
    match files.client_config() {
        Ok(_) => Ok(Some(files)),
        Err(error) => {
            let key = match &error.file {
                file if *file == files.ca => "upstream.ca",
                file if *file == files.certificate => "upstream.certificate",
                _ => "upstream.key",
            };
            Err(problem(key, error.to_string()))
        }
    }
}

/// Everything that is wrong with the files that the configuration names: what can't be read, and,
/// where all can be, what can't be used.
pub fn check_files(config: &Config) -> Result<(), Vec<Problem>> {
    let (tls, database) = (&config.tls, &config.database);
    let files = [
        ("tls.certificate", Some(&tls.certificate)),
        ("tls.key", Some(&tls.key)),
        ("tls.node_ca", Some(&tls.node_ca)),
        ("database.url_file", database.url_file.as_ref()),
        ("database.listen_url_file", database.listen_url_file.as_ref()),
        ("control.certificate", config.control.certificate.as_ref()),
        ("control.key", config.control.key.as_ref()),
        ("control.client_ca", config.control.client_ca.as_ref()),
        ("upstream.ca", config.upstream.ca.as_ref()),
        ("upstream.certificate", config.upstream.certificate.as_ref()),
        ("upstream.key", config.upstream.key.as_ref()),
        ("tunnels.jwks_file", config.tunnels.jwks_file.as_ref()),
    ];
    let problems: Vec<Problem> = files
        .into_iter()
        .filter_map(|(key, file)| read(key, file?).err())
        .flat_map(|error| error.problems)
        .collect();
    if !problems.is_empty() {
        return Err(problems);
    }
    let unusable = |error: ConfigError| error.problems;
    let tls = TlsFiles::of(config);
    tls.read().and_then(|read| tls.material(&read)).map_err(unusable)?;
    identity_rules(config).map_err(unusable)?;
    upstream_files(config).map_err(unusable)?;
    Api::prepare(config).map_err(unusable)?;
    config.database_url().map_err(|problem| vec![problem])?;
    config.listen_url().map_err(|problem| vec![problem])?;
    Ok(())
}

/// Tells of a secret that others may read.
pub(super) fn warn_if_open(key: &str, file: &Path) {
    let mode = std::fs::metadata(file).map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o004 != 0 {
        tracing::warn!(key, file = %file.display(), "every user can read this secret; do: chmod o-rwx");
    }
}

/// What a file holds that a key names.
pub(super) fn read(key: &str, file: &Path) -> Result<Vec<u8>, ConfigError> {
    small_file::read(file).map_err(|error| problem(key, format!("{} {error}", file.display())))
}

pub(super) fn problem(key: &str, sentence: String) -> ConfigError {
    ConfigError { file: None, problems: vec![Lines::default().problem(key, sentence) as Problem] }
}
