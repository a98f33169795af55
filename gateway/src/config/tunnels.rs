//! The section about tunnels: where the keys of tickets come from, who is asked about callers, and the bounds.
//!
//! As in `sections`, the comments that an operator reads stand in `configs/gateway.toml`.
//!
//! 1. Tunnels are offered where all that they need is named: keys, the IAM service, and a control API.

use std::path::PathBuf;
use std::time::Duration;

use gateway_control::relay::UpstreamAddress;
use gateway_control::tunnel::JwksUrl;
use gateway_core::limits::TunnelLimits;
use gateway_core::tunnel::MAX_TUNNEL_FRAME_BYTES;
use serde::{Deserialize, Serialize};

use super::problem::{Lines, Problem};
use super::sections::Config;
use super::units::{Size, Span};

// A frame is far smaller than what a peer may keep unread.
const _: () = assert!(MAX_TUNNEL_FRAME_BYTES <= 1 << 20);

const MILLIS_100: Duration = Duration::from_millis(100);
const MINUTE: Duration = Duration::from_secs(60);

/// `[tunnels]`: interactive streams between callers of the control API and nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TunnelsSection {
    pub jwks_url: Option<String>,
    pub jwks_file: Option<PathBuf>,
    pub jwks_max_age: Span,
    pub iam_url: Option<String>,
    pub audience: String,
    pub direct_address: Option<String>,
    pub max: usize,
    pub max_per_node: usize,
    pub window_bytes: Size,
    pub open_timeout: Span,
    pub max_life: Span,
    pub reauthorize_every: Span,
    pub iam_patience: Span,
    pub used_tickets: usize,
}

impl Default for TunnelsSection {
    fn default() -> Self {
        let limits = TunnelLimits::default();
        Self {
            jwks_url: None,
            jwks_file: None,
            jwks_max_age: Span::seconds(300),
            iam_url: None,
            audience: "gateway".to_owned(),
            direct_address: None,
            max: 1000,
            max_per_node: limits.per_node,
            window_bytes: Size(limits.window_bytes),
            open_timeout: Span(limits.open_timeout),
            max_life: Span(limits.max_life),
            reauthorize_every: Span(limits.reauthorize_every),
            iam_patience: Span(limits.iam_patience),
            used_tickets: limits.used_tickets,
        }
    }
}

impl Config {
    /// Whether all that tunnels need is named.
    pub fn names_tunnels(&self) -> bool {
        let section = &self.tunnels;
        let has_keys = section.jwks_url.is_some() || section.jwks_file.is_some();
        has_keys && section.iam_url.is_some() && self.control.api_listen.is_some()
    }

    /// The bounds of tunnels, where they are offered or not.
    pub fn tunnel_limits(&self, are_offered: bool) -> TunnelLimits {
        let section = &self.tunnels;
        TunnelLimits {
            most: if are_offered { section.max } else { 0 },
            per_node: section.max_per_node,
            window_bytes: section.window_bytes.0,
            open_timeout: section.open_timeout.0,
            max_life: section.max_life.0,
            reauthorize_every: section.reauthorize_every.0,
            iam_patience: section.iam_patience.0,
            iam_timeout: self.upstream.timeout.0,
            used_tickets: section.used_tickets,
            direct_address: section.direct_address.clone(),
        }
    }
}

pub(super) fn check(config: &Config, lines: &Lines, problems: &mut Vec<Problem>) {
    let section = &config.tunnels;
    check_places(config, lines, problems);
    let spans = [
        ("tunnels.jwks_max_age", section.jwks_max_age, MINUTE / 60, MINUTE * 60),
        ("tunnels.open_timeout", section.open_timeout, MILLIS_100, MINUTE),
        ("tunnels.max_life", section.max_life, MINUTE / 60, MINUTE * 60 * 12),
        ("tunnels.reauthorize_every", section.reauthorize_every, MILLIS_100, MINUTE),
        ("tunnels.iam_patience", section.iam_patience, MILLIS_100, MINUTE * 2),
    ];
    for (key, span, least, most) in spans {
        if !(least..=most).contains(&span.0) {
            let sentence = format!("{span} is not within \"{}\" and \"{}\"", Span(least), Span(most));
            problems.push(lines.problem(key, sentence));
        }
    }
    let counts = [
        ("tunnels.max", section.max, 100_000),
        ("tunnels.max_per_node", section.max_per_node, 256),
        ("tunnels.used_tickets", section.used_tickets, 1 << 24),
    ];
    for (key, count, most) in counts {
        if !(1..=most).contains(&count) {
            problems.push(lines.problem(key, format!("must be 1 to {most}")));
        }
    }
    if !(4 << 10..=1 << 20).contains(&section.window_bytes.0) {
        problems.push(lines.problem("tunnels.window_bytes", "must be \"4KiB\" to \"1MiB\""));
    }
    if section.audience.is_empty() {
        problems.push(lines.problem("tunnels.audience", "must not be empty: tickets name it as their aud"));
    }
}

fn check_places(config: &Config, lines: &Lines, problems: &mut Vec<Problem>) {
    let (section, upstream) = (&config.tunnels, &config.upstream);
    let has_keys = section.jwks_url.is_some() || section.jwks_file.is_some();
    if has_keys != section.iam_url.is_some() {
        let (key, other) = if has_keys {
            ("tunnels.jwks_url", "iam_url")
        } else {
            ("tunnels.iam_url", "jwks_url or jwks_file")
        };
        problems.push(lines.problem(key, format!("needs tunnels.{other}: no tunnel is opened without both")));
    }
    let urls = [("tunnels.jwks_url", &section.jwks_url), ("tunnels.iam_url", &section.iam_url)];
    if let Some((key, _)) = urls.iter().find(|(_, url)| url.is_some())
        && upstream.ca.is_none()
    {
        let sentence = "needs upstream.ca, the CA that the service's certificate must chain to";
        problems.push(lines.problem(key, sentence));
    }
    if let Some(Err(sentence)) = section.iam_url.as_deref().map(UpstreamAddress::parse) {
        problems.push(lines.problem("tunnels.iam_url", sentence));
    }
    if let Some(Err(sentence)) = section.jwks_url.as_deref().map(JwksUrl::check) {
        problems.push(lines.problem("tunnels.jwks_url", sentence));
    }
}
