//! The development authority of a run whose machines may join: the testbed's, behind the gateway.
//!
//! It runs in the harness's own process and ends with it; a gateway knows it by its URL alone.
//! Certificates live for a day.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use gateway_testbed::authority::{Authority, AuthorityError};
use gateway_testbed::pki::Pki;

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
