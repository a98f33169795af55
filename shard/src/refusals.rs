//! What the log says of certificates that are refused (in the handshake, where a call is opened, and by the database)
//! and of nodes that are cut since they flood.
//!
//! An alert has no words, and a node's own log may be out of reach; so an operator reads here which node it is, which
//! certificate, why, and what to do. It decides nothing: whoever refuses gives the reason.
//!
//! 1. One serial is told of once a minute, and in a minute at most `OURS` that our roots issued and `STRANGERS` others:
//!    neither nodes that dial again and again nor strangers fill the log. Strangers don't hush nodes, nor does who
//!    shows a copy of a node's certificate without its key: what a handshake refuses has places of its own.
//! 2. What a certificate says is escaped and cut, and where its chain is not good, it is a claim and told as one.
//! 3. What is not told is counted, and the next line says how many that were.

use std::time::{SystemTime, UNIX_EPOCH};

use gateway_core::close::CloseReason;

use crate::identity::{NodeCertificate, claims_of};
use crate::told::Told;

/// Certificates a minute.
const OURS: usize = 64;
const STRANGERS: usize = 8;
/// The most of a name or a serial that is logged, in characters.
const LONGEST_TEXT: usize = 200;
/// And of a reason, which may hold a statement with a name twice.
const LONGEST_REASON: usize = 1_000;

/// Shared by all shards.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Of peers that have shown that the certificate is theirs.
    ours: Told<OURS>,
    /// Of handshakes that failed before that.
    shown: Told<OURS>,
    strangers: Told<STRANGERS>,
    floods: Told<OURS>,
}

/// Who has issued a certificate, as far as it was found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Issuer {
    /// An authority of the node roots.
    Ours,
    Unknown,
}

/// A certificate, as the log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    /// The first URI that it names, if any.
    node: Option<String>,
    serial: String,
}

impl Shown {
    /// Of a DER certificate; what can't be read is left out.
    pub(crate) fn of(certificate: &[u8]) -> Self {
        let (serial, uri) = claims_of(certificate).unwrap_or_default();
        Self { node: uri.as_deref().map(harmless), serial: harmless(&serial) }
    }

    /// Of what a peer of this process says.
    pub(crate) fn claimed(uri: &str, serial: &str) -> Self {
        Self { node: Some(harmless(uri)), serial: harmless(serial) }
    }
}

impl Refusals {
    /// Tells of the end of a call or a session, where it is for its certificate or a flood.
    pub(crate) fn tell_end(&self, certificate: &NodeCertificate, reason: &CloseReason) {
        if *reason == CloseReason::Flood {
            self.tell_flood(certificate);
        } else if let Some(advice) = reason.certificate_advice() {
            let identity = &certificate.identity;
            let node = Some(harmless(identity.node.as_str()));
            let shown = Shown { node, serial: identity.certificate_serial.clone() };
            let untold = self.ours.may_tell(&shown.serial, now_seconds());
            say(&shown, Issuer::Ours, &reason.to_string(), advice, untold);
        }
    }

    fn tell_flood(&self, certificate: &NodeCertificate) {
        let serial = certificate.identity.certificate_serial.as_str();
        let Some(untold) = self.floods.may_tell(serial, now_seconds()) else { return };
        let node = harmless(certificate.identity.node.as_str());
        tracing::warn!(
            node,
            serial,
            untold,
            "a node is cut, since it floods its connection: {}. What to do: mend the node's software",
            CloseReason::Flood
        );
    }

    /// Tells of a certificate that names nobody.
    pub(crate) fn tell_unnamed(&self, shown: &Shown, reason: &CloseReason) {
        let advice = reason.certificate_advice().unwrap_or_default();
        let untold = self.ours.may_tell(&shown.serial, now_seconds());
        say(shown, Issuer::Ours, &reason.to_string(), advice, untold);
    }

    /// Tells of a refusal in the handshake, where the peer need not own what it shows; in seconds since 1970.
    pub(crate) fn tell(&self, shown: &Shown, issuer: Issuer, reason: &str, advice: &str, now_seconds: u64) {
        let untold = match issuer {
            Issuer::Ours => self.shown.may_tell(&shown.serial, now_seconds),
            Issuer::Unknown => self.strangers.may_tell(&shown.serial, now_seconds),
        };
        say(shown, issuer, reason, advice, untold);
    }
}

/// One line, with how many were passed over before it, unless this one is passed over.
fn say(shown: &Shown, issuer: Issuer, reason: &str, advice: &str, untold: Option<u64>) {
    let Some(untold) = untold else { return };
    let node = shown.node.as_deref().unwrap_or("(unnamed)");
    let serial = shown.serial.as_str();
    let reason = harmless_within(reason, LONGEST_REASON);
    match issuer {
        Issuer::Ours => tracing::warn!(
            node,
            serial,
            untold,
            "a node's certificate is refused: {reason}. What to do: {advice}"
        ),
        Issuer::Unknown => tracing::warn!(
            claimed_node = node,
            serial,
            untold,
            "a certificate that proves nothing is refused: {reason}. What to do: {advice}"
        ),
    }
}

/// Since 1970, by the host's clock.
fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn harmless(text: &str) -> String {
    harmless_within(text, LONGEST_TEXT)
}

/// Quotes stay as they are: statements in a reason are pasted.
fn harmless_within(text: &str, longest: usize) -> String {
    let mut harmless = String::new();
    for sign in text.chars().take(longest) {
        match sign {
            '\'' | '"' => harmless.push(sign),
            _ => harmless.extend(sign.escape_debug()),
        }
    }
    harmless
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_certificate_says_of_itself_is_escaped_and_cut() {
        let hostile = format!("spiffe://x/\u{1b}[2J\n{}", "y".repeat(1_000));
        let text = harmless(&hostile);
        assert!(text.chars().all(|sign| !sign.is_control()), "{text}");
        assert!(text.len() < 2 * LONGEST_TEXT, "{text}");
        let statement = format!("node {0} is not registered: SELECT register_node('{0}')", "n".repeat(200));
        assert_eq!(harmless_within(&statement, LONGEST_REASON), statement, "it can be pasted");
        assert_eq!(Shown::of(b"no certificate"), Shown { node: None, serial: String::new() });
    }

    #[test]
    fn strangers_do_not_hush_a_node() {
        let refusals = Refusals::default();
        for stranger in 0..1_000 {
            let shown = Shown { node: None, serial: format!("{stranger:X}") };
            refusals.tell(&shown, Issuer::Unknown, "unknown", "none", 1_800_000_000);
        }
        assert_eq!(
            refusals.strangers.may_tell("another", 1_800_000_000),
            None,
            "no more of them for a minute"
        );
        assert_eq!(refusals.ours.may_tell("5A", 1_800_000_000), Some(0), "a node is told of");
    }
}
