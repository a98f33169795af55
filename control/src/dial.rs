//! A dial to what speaks HTTP/2 with internal mTLS: a service behind the gateway, or a gateway's control API.
//!
//! Owns how a connection is made; who keeps it, and what goes over it, is the caller's.
//!
//! 1. Both sides prove themselves, TLS 1.3, ALPN `h2`; what the files hold now is used.
//! 2. A task of its own drives the connection, until both sides have let go of it; how it ended is kept, since a request that
//!    comes later hears no more than that the connection is gone.
//! 3. Where it is `Pinged`, a peer that is gone without a word is found within `PING_EVERY + PING_ANSWERED_WITHIN`, and all that
//!    is open on the connection ends. gRPC services count pings as abuse, so theirs are not.

use std::fmt::Display;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::relay::{UpstreamAddress, UpstreamFiles};
use crate::socket::{Heard, buffered};

/// What a peer may send of one answer before it is taken, and of all together: answers that wait, such as tunnels
/// whose caller is slow, hold up no other.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// The largest DATA frame: the data of a tunnel comes in few large ones.
const FRAME_BYTES: u32 = 64 << 10;

const PING_EVERY: Duration = Duration::from_secs(20);
const PING_ANSWERED_WITHIN: Duration = Duration::from_secs(20);

/// Whether the peer of a connection is asked, now and then, if it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pinged {
    Yes,
    No,
}

/// A connection that takes requests.
pub(crate) struct Dialled {
    pub(crate) requests: SendRequest<Bytes>,
    pub(crate) end: End,
}

/// How a connection ended, once it has failed.
#[derive(Debug, Clone, Default)]
pub(crate) struct End(Arc<OnceLock<String>>);

impl End {
    /// Why a request failed with `error`: how its connection ended, such as with a certificate that was refused.
    pub(crate) fn why(&self, error: impl Display) -> String {
        self.0.get().cloned().unwrap_or_else(|| error.to_string())
    }
}

/// Dials; the error says where it failed.
pub(crate) async fn dial(
    address: &UpstreamAddress,
    files: &UpstreamFiles,
    pinged: Pinged,
) -> Result<Dialled, String> {
    let config = files.client_config().map_err(|error| error.to_string())?;
    let tcp = TcpStream::connect((address.host(), address.port()))
        .await
        .map_err(|error| format!("connecting: {error}"))?;
    let tls = TlsConnector::from(config)
        .connect(address.server_name(), buffered(tcp))
        .await
        .map_err(|error| format!("the TLS handshake: {error}"))?;
    if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err("it speaks no HTTP/2 (ALPN h2)".to_owned());
    }
    let (requests, mut connection) = h2::client::Builder::new()
        .enable_push(false)
        .header_table_size(0)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(16 << 10)
        .handshake(Heard::new(tls))
        .await
        .map_err(|error| format!("starting HTTP/2: {error}"))?;
    let pings = connection.ping_pong().filter(|_| pinged == Pinged::Yes);
    let end = End::default();
    let ended = end.clone();
    tokio::spawn(async move {
        let mut connection = pin!(connection);
        tokio::select! {
            // Kept before the connection goes, of which requests hear.
            outcome = &mut connection => if let Err(error) = outcome {
                let _ = ended.0.set(error.to_string());
            },
            () = silent(pings, PING_EVERY, PING_ANSWERED_WITHIN) => {}
        }
    });
    let requests = requests.ready().await.map_err(|error| format!("starting HTTP/2: {}", end.why(error)))?;
    Ok(Dialled { requests, end })
}

/// Resolves when a ping is not answered.
async fn silent(pings: Option<PingPong>, every: Duration, answered_within: Duration) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        tokio::time::sleep(every).await;
        let answer = tokio::time::timeout(answered_within, pings.ping(Ping::opaque()));
        if !matches!(answer.await, Ok(Ok(_))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_comes_late_hears_how_its_connection_ended() {
        let end = End::default();
        assert_eq!(
            end.why("stream closed because of a broken pipe"),
            "stream closed because of a broken pipe"
        );
        end.0.set("received fatal alert: UnsupportedCertificate".to_owned()).unwrap();
        assert_eq!(
            end.why("stream closed because of a broken pipe"),
            "received fatal alert: UnsupportedCertificate"
        );
    }

    #[tokio::test]
    async fn a_peer_that_answers_no_ping_is_found_and_one_that_does_is_kept() {
        for answers in [true, false] {
            let (near, far) = tokio::io::duplex(64 << 10);
            tokio::spawn(async move {
                let mut peer = h2::server::handshake(far).await.unwrap();
                if answers {
                    drop(peer.accept().await);
                }
                std::future::pending::<()>().await;
            });
            let (_requests, mut connection) = h2::client::handshake(near).await.unwrap();
            let pings = connection.ping_pong();
            tokio::spawn(connection);
            let silent = silent(pings, Duration::from_millis(50), Duration::from_millis(500));
            let found = tokio::time::timeout(Duration::from_secs(3), silent).await;
            assert_eq!(found.is_ok(), !answers);
        }
    }
}
