//! What a shard counts. Plain numbers that only grow, but for the gauges that say so.
//!
//! They are written by one thread and read by another, relaxed: a reader sees each number a moment
//! late, and no two of them at the same moment. Labels are fixed words, never text of a peer.

use std::sync::atomic::{AtomicU64, Ordering};

use gateway_core::close::{AdmissionBound, CloseReason};
use gateway_core::frame::{GatewayFrame, NodeFrame};
use gateway_core::histogram::Latencies;

/// One number.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn one_more(&self) {
        self.add(1);
    }

    pub(crate) fn one_less(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// The numbers of one shard. Aligned, so that two shards never write to one cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ShardCounters {
    /// Gauge: open TCP connections, those in the handshake included.
    pub connections: Counter,
    /// Gauge: sessions, from admission to their end.
    pub sessions: Counter,
    /// Gauge: the same, by what carries them.
    pub sessions_by_transport: TransportCounts,
    /// Sessions admitted.
    pub opens: Counter,
    pub refused_opens_per_second: Counter,
    pub refused_joins_per_second: Counter,
    pub refused_streams: Counter,
    pub refused_pending_hellos: Counter,
    /// Calls to be passed on that found no place.
    pub refused_relays: Counter,
    /// Streams for tunnels that found no place.
    pub refused_tunnels: Counter,
    /// Calls that were taken to be passed on to a service: Join, Renew, FetchSecret.
    pub relays: Counter,
    /// Gauge: streams of nodes for tunnels, those that have not said for which included.
    pub tunnel_streams: Counter,
    /// What tunnels have carried, framing of the messages not included: from nodes, and to them.
    pub tunnel_bytes_in: Counter,
    pub tunnel_bytes_out: Counter,
    /// Sessions refused while the gateway did not serve.
    pub refused_not_serving: Counter,
    /// Calls refused for want of a certificate, or for one that does not count.
    pub refused_unauthenticated: Counter,
    /// Times that other certificates or roots took the place of the listener's.
    pub tls_renewals: Counter,
    pub handshakes_ok: Counter,
    pub handshakes_failed: Counter,
    /// Of those, for a certificate that is revoked; for one out of its time.
    pub handshakes_revoked: Counter,
    pub handshakes_expired: Counter,
    /// From the accept until HTTP/2 stands, of those that succeeded.
    pub handshake_latencies: Latencies,
    /// Connections closed since their certificate, or who has none, had as many as they may.
    pub refused_connections: Counter,
    /// Accepts that failed: too many open files, mostly.
    pub accept_errors: Counter,
    /// Frames of sessions and their bytes, prefix included.
    pub frames_in: Counter,
    pub frames_out: Counter,
    pub frames_in_by_kind: KindCounts,
    pub frames_out_by_kind: KindCounts,
    pub bytes_in: Counter,
    pub bytes_out: Counter,
    pub heartbeat_timeouts: Counter,
    /// Times that a message for the writer found its mailbox full.
    pub writer_full_waits: Counter,
    /// Times that a large frame had to wait for memory to be received into.
    pub receive_budget_waits: Counter,
    /// Connections ended for sending more control frames or requests than any use has.
    pub floods: Counter,
    pub panics: Counter,
    /// Messages taken from the mailbox.
    pub mail_taken: Counter,
    /// Gauge: messages that waited in the mailbox when it was looked into last.
    pub mail_waiting: Counter,
    /// How much later than due a timer of the ring came: what the shard's tasks and the kernel make it wait.
    pub ring_lateness: Latencies,
    /// Times that the mailbox's task looked into it. Ring the mailbox, and a shard that lives looks.
    pub mail_looks: Counter,
    pub closes: CloseCounts,
}

impl ShardCounters {
    pub(crate) fn count_refusal(&self, reason: &CloseReason) {
        match reason {
            CloseReason::Refused { bound: AdmissionBound::OpensPerSecond, .. } => {
                self.refused_opens_per_second.one_more();
            }
            CloseReason::Refused { bound: AdmissionBound::JoinsPerSecond, .. } => {
                self.refused_joins_per_second.one_more();
            }
            CloseReason::Refused { bound: AdmissionBound::Streams, .. } => self.refused_streams.one_more(),
            CloseReason::Refused { bound: AdmissionBound::PendingHellos, .. } => {
                self.refused_pending_hellos.one_more();
            }
            CloseReason::Refused { bound: AdmissionBound::Relays, .. } => self.refused_relays.one_more(),
            CloseReason::Refused { bound: AdmissionBound::Tunnels, .. } => self.refused_tunnels.one_more(),
            CloseReason::BadCertificate(_)
            | CloseReason::Revoked(_)
            | CloseReason::Expired
            | CloseReason::NotPermitted(_) => self.refused_unauthenticated.one_more(),
            _ => self.refused_not_serving.one_more(),
        }
    }
}

/// Frames of each kind, in the order of the frame's own list of kinds.
#[derive(Debug, Default)]
pub struct KindCounts([Counter; NodeFrame::KINDS.len()]);

const _: () = assert!(NodeFrame::KINDS.len() == GatewayFrame::KINDS.len(), "one array fits both");

impl KindCounts {
    /// Each kind's count, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().map(Counter::get)
    }

    pub(crate) fn count(&self, kind: usize) {
        self.0[kind].one_more();
    }
}

/// What carries a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Http2,
    WebSocket,
    /// Memory of this process.
    Local,
}

/// Sessions, by what carries them.
#[derive(Debug, Default)]
pub struct TransportCounts([Counter; 3]);

impl TransportCounts {
    /// Every transport with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        ["h2", "websocket", "local"].into_iter().zip(self.0.iter().map(Counter::get))
    }

    pub(crate) fn of(&self, transport: Transport) -> &Counter {
        &self.0[transport as usize]
    }
}

/// The labels of `CloseReason`, in the order of `CloseCounts`.
const LABELS: [&str; 17] = [
    "finished",
    "peer-gone",
    "fenced",
    "stopping",
    "draining",
    "heartbeat-timeout",
    "slow-peer",
    "flood",
    "bad-certificate",
    "revoked",
    "expired",
    "not-permitted",
    "refused",
    "superseded",
    "protocol",
    "unimplemented",
    "bug",
];

/// Ends of admitted sessions, by reason.
#[derive(Debug, Default)]
pub struct CloseCounts([Counter; LABELS.len()]);

impl CloseCounts {
    /// Every label with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        LABELS.into_iter().zip(self.0.iter().map(Counter::get))
    }

    /// The count of one label; zero for a word that is none.
    pub fn get(&self, label: &str) -> u64 {
        self.iter().find(|(known, _)| *known == label).map_or(0, |(_, count)| count)
    }

    pub(crate) fn count(&self, reason: &CloseReason) {
        let label = reason.label();
        if let Some(at) = LABELS.iter().position(|known| *known == label) {
            self.0[at].one_more();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_reason_has_its_count() {
        let reasons = [
            CloseReason::Finished,
            CloseReason::PeerGone,
            CloseReason::Fenced,
            CloseReason::Stopping,
            CloseReason::Draining { reconnect_after: Duration::ZERO },
            CloseReason::HeartbeatTimeout,
            CloseReason::SlowPeer,
            CloseReason::Flood,
            CloseReason::BadCertificate(String::new()),
            CloseReason::Revoked(String::new()),
            CloseReason::Expired,
            CloseReason::NotPermitted(String::new()),
            CloseReason::Refused { bound: AdmissionBound::Streams, retry_after: Duration::ZERO },
            CloseReason::Superseded,
            CloseReason::Protocol(String::new()),
            CloseReason::Unimplemented(String::new()),
            CloseReason::Bug { id: 1 },
        ];
        let counts = CloseCounts::default();
        for reason in &reasons {
            counts.count(reason);
        }
        assert!(counts.iter().all(|(_, count)| count == 1), "{:?}", counts.iter().collect::<Vec<_>>());
    }
}
