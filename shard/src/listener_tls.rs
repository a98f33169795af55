//! What a shard's listener shows and accepts now: certificates, roots, and what is revoked.
//!
//! Owns what new handshakes are made with. It is made anew when either part changes; a connection that stands, or is
//! in its handshake, keeps what it began with.
//!
//! 1. Nobody waits for it, and no lock is taken: what it is made of never changes, and comes by message.
//! 2. A certificate that is revoked while the roots are renewed stays revoked, and the other way round.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gateway_core::close::CloseReason;
use gateway_core::mail::{Inbox, Weigh};
use gateway_core::revocation::{RevokedSet, SerialKey, Verdict};
use rustls::ServerConfig;

use crate::http1;
use crate::identity::NodeCertificate;
use crate::refusals::Shown;
use crate::rest::RousingWaker;
use crate::shard::Shard;
use crate::tls::TlsMaterial;

/// ALPN's name of HTTP/2.
pub(crate) const HTTP2: &[u8] = b"h2";

/// Other certificates and roots, for the handshakes from now on.
#[derive(Debug)]
pub struct TlsNews(pub Arc<TlsMaterial>);

impl Weigh for TlsNews {
    // A few of them are on their way at most: they are read from disk.
    fn weight_bytes(&self) -> usize {
        0
    }
}

pub(crate) struct ListenerTls {
    /// ALPN's names of what is spoken.
    protocols: &'static [&'static [u8]],
    parts: RefCell<Parts>,
}

struct Parts {
    material: Arc<TlsMaterial>,
    revoked: Arc<RevokedSet>,
    config: Arc<ServerConfig>,
}

impl ListenerTls {
    /// With nothing revoked yet.
    pub(crate) fn new(material: Arc<TlsMaterial>, speaks_http1: bool) -> Self {
        let protocols: &[&[u8]] = if speaks_http1 { &[HTTP2, http1::ALPN] } else { &[HTTP2] };
        let revoked = Arc::default();
        let config = material.server_config(&revoked, protocols);
        Self { protocols, parts: RefCell::new(Parts { material, revoked, config }) }
    }

    /// Whether HTTP/1.1 is spoken beside HTTP/2.
    pub(crate) fn speaks_http1(&self) -> bool {
        self.protocols.contains(&http1::ALPN)
    }

    /// For the next handshake.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.parts.borrow().config)
    }

    /// Tells the log of the end of a call or a session, where it is for its certificate or a flood.
    pub(crate) fn tell_end(&self, certificate: &NodeCertificate, reason: &CloseReason) {
        self.parts.borrow().material.refusals().tell_end(certificate, reason);
    }

    /// Tells the log of a certificate of our roots that names nobody.
    pub(crate) fn tell_unnamed(&self, shown: &Shown, reason: &CloseReason) {
        self.parts.borrow().material.refusals().tell_unnamed(shown, reason);
    }

    /// What is held against a certificate.
    pub(crate) fn revoked(&self, serial: SerialKey) -> Option<Verdict> {
        self.parts.borrow().revoked.verdict(serial)
    }

    /// How long a certificate that ends then (since 1970) counts, by the host's clock and with the leeway that
    /// handshakes have.
    pub(crate) fn time_left(&self, ends_at: Duration) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (ends_at + self.parts.borrow().material.leeway()).saturating_sub(now)
    }

    pub(crate) fn set_revoked(&self, revoked: Arc<RevokedSet>) {
        let mut parts = self.parts.borrow_mut();
        parts.revoked = revoked;
        parts.renew(self.protocols);
    }

    fn set_material(&self, material: Arc<TlsMaterial>) {
        let mut parts = self.parts.borrow_mut();
        parts.material = material;
        parts.renew(self.protocols);
    }
}

impl Parts {
    fn renew(&mut self, protocols: &[&[u8]]) {
        self.config = self.material.server_config(&self.revoked, protocols);
    }
}

/// Takes what comes, for ever.
pub(crate) async fn run(shard: &Rc<Shard>, news: &Inbox<TlsNews>) {
    let mut rousing = RousingWaker::default();
    loop {
        let next = poll_fn(|context| {
            let rousing = rousing.of(context.waker(), &shard.rest);
            news.poll_take(&mut Context::from_waker(rousing))
        });
        let Some(TlsNews(material)) = next.await else { return std::future::pending().await };
        news.announce_space();
        shard.listener_tls.set_material(material);
        shard.counters.tls_renewals.one_more();
    }
}
