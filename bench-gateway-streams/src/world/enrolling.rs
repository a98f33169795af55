//! The development authority of a run whose machines may join: the testbed's, behind the gateway; and the control API of
//! the gateway that has one.
//!
//! It runs in the harness's own process and ends with it; a gateway knows it by its URL alone.
//! Certificates live for a day.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use gateway_testbed::authority::{Authority, AuthorityError};
use gateway_testbed::gateway_process::GatewayOptions;
use gateway_testbed::pki::Pki;

use super::settings::merged;

const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const CERTIFICATE_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Starts it where it is wanted.
pub(super) async fn start(
    wanted: bool,
    pki: &Pki,
    database_url: &str,
) -> Result<Option<Authority>, AuthorityError> {
    if !wanted {
        return Ok(None);
    }
    Authority::start(pki, ANY_PORT, database_url, CERTIFICATE_LIFE).await.map(Some)
}

/// A control API, and tunnels over it, for the gateway that has the authority behind it. What it shows to services is what
/// may call the API too, so that the operator's commands find all that they need in its configuration.
pub(super) fn open_api(
    options: &mut GatewayOptions,
    authority: Option<&Authority>,
    pki: &Pki,
    folder: &Path,
) -> anyhow::Result<()> {
    let Some(authority) = authority else { return Ok(()) };
    options.upstream_url = Some(authority.url());
    let api = pki.write_control_files(folder)?;
    options.files.internal_certificate.clone_from(&api.client_certificate);
    options.files.internal_key.clone_from(&api.client_key);
    options.api = Some(Box::new(api));
    let (keys, iam) = (authority.jwks_url(), authority.url());
    let tunnels = format!("[tunnels]\njwks_url = \"{keys}\"\niam_url = \"{iam}\"\n");
    options.extra = merged(&options.extra, &tunnels)?;
    Ok(())
}
