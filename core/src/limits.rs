//! Every bound of a gateway, in one place, with the relations between them.
//!
//! What an operator may tune is in `Limits`, with the defaults of the TOML; what follows from the
//! protocol is a constant. `Limits::check` holds the relations; a gateway whose limits break one
//! does not start.
//!
//! Memory that load can make grow is at most, for one gateway:
//! `to_writer_bytes + shards × (receive_bytes_per_shard) + streams × (2 × session_inbox_bytes +
//! session_outbox_bytes) + MAX_SPEC_BYTES_ON_THE_WAY + MAX_RELAY_BYTES + shards × MAX_RELAYS_PER_SHARD ×
//! (MAX_REQUEST_BYTES or MAX_ANSWER_BYTES) + tunnels.most × 2 × (2 × tunnels.window_bytes + MAX_TUNNEL_FRAME_BYTES)`, and what is spoken to by few is far below it.

use std::sync::Arc;
use std::time::Duration;

use crate::certificate::UnknownSerial;
use crate::duplicate::DuplicateRule;

/// Longest text that a node may put into a field that is no id (progress, error, boot id, …).
pub const MAX_TEXT_BYTES: usize = 4 << 10;
/// Largest payload of a command; the database refuses more at enqueue.
pub const MAX_PAYLOAD_BYTES: usize = 512 << 10;
/// Largest batch of any queue of the writer, in entries.
pub const MAX_BATCH_ENTRIES: usize = 500;
/// Nodes of one queue whose entries are batched apart, since the database refused one of them.
pub const MAX_SUSPECTS: usize = 1024;
/// Entries of suspects in one batch, where bad ones are likely: so many keep the search for one short.
pub const MAX_SUSPECT_BATCH_ENTRIES: usize = 16;
/// Entries stored one after the other that end the suspicion of a node.
pub const GOOD_ENTRIES_OF_A_SUSPECT: u32 = 100;
/// Lanes that one dispatch pass asks for.
pub const MAX_LANES_PER_PASS: usize = 4096;
/// Commands that one dispatch pass may claim.
pub const MAX_CLAIMS_PER_PASS: usize = 1000;
/// Commands, or nodes, that one job of the sweeps looks at.
pub const MAX_SWEPT_ROWS: u32 = 1000;
/// Credits of a lane that count; a larger capacity is taken as this.
pub const MAX_LANE_CAPACITY: u32 = 1024;
/// Feature names in a Hello.
pub const MAX_FEATURES: usize = 64;
/// Longest name of a feature.
pub const MAX_FEATURE_BYTES: usize = 64;
/// What an entry of a Hello's lists may take on the wire: of its commands, and of its other lists.
const KNOWN_COMMAND_BYTES: usize = 48;
const LISTED_BYTES: usize = 128;
/// What the rest of a Hello may take on the wire, fields to come included.
const OTHER_HELLO_BYTES: usize = 64 << 10;
/// Frames rejected as invalid or not storable, with no good one between them, that end a session.
pub const MAX_BAD_FRAMES_IN_A_ROW: u32 = 32;
/// Longest kind of an event, and longest key id of its envelope.
pub const MAX_EVENT_TEXT_BYTES: usize = 256;
/// Largest body of an event, and largest body of its envelope.
pub const MAX_EVENT_BODY_BYTES: usize = 512 << 10;
/// Longest id of a status, and longest kind of one.
pub const MAX_STATUS_TEXT_BYTES: usize = 256;
/// Largest body of a status.
pub const MAX_STATUS_BODY_BYTES: usize = 512 << 10;
/// Hooks that a transaction may run, each under a savepoint of its own: past 64 of them PostgreSQL looks
/// their state up on disk, for every transaction that meets their rows.
pub const MAX_SAVEPOINTS: usize = 60;
/// Hooks that one kind of events or statuses may have.
pub const MAX_HOOKS_OF_A_KIND: usize = 16;
// An event with all its hooks fits a transaction.
const _: () = assert!(MAX_HOOKS_OF_A_KIND <= MAX_SAVEPOINTS);
/// Longest signature of an event's envelope.
pub const MAX_SIGNATURE_BYTES: usize = 8 << 10;
/// Largest body of a spec, and specs of one node; `set_spec` refuses more.
pub const MAX_SPEC_BYTES: usize = 512 << 10;
pub const MAX_SPECS_PER_NODE: usize = 64;
/// Sessions whose specs one job looks at.
pub const MAX_SPEC_LOOKS: usize = 500;
/// What the specs of one job may weigh, but for the last of them.
pub const MAX_SPEC_BYTES_PER_PASS: usize = 4 << 20;
/// What specs on their way from the database to nodes may weigh together, but for those to nodes that take
/// nothing of what waits for them.
pub const MAX_SPEC_BYTES_ON_THE_WAY: usize = 64 << 20;
/// What specs on their way to one node may weigh, but for the last of them.
const MAX_SPEC_BYTES_TO_A_NODE: usize = 1 << 20;
/// Sections of one session that may be with the writer at once; together they hold at most
/// `frame_bytes`, or are one.
pub const MAX_SECTIONS_WITH_WRITER: usize = 16;
/// Calls to be passed on that one shard has open: being received, waiting for their answer, being answered.
pub const MAX_RELAYS_PER_SHARD: usize = 256;
/// Of those, what joins may have, and all others not.
pub const MAX_JOINS_PER_SHARD: usize = MAX_RELAYS_PER_SHARD / 2;
/// Of those, what one certificate may have.
pub const MAX_RELAYS_PER_CERTIFICATE: u32 = 4;
/// What calls of all shards that wait for the relays may weigh.
pub const MAX_RELAY_BYTES: usize = 8 << 20;
/// Revoked certificates that a gateway remembers, 16 bytes each, for all its shards together.
pub const MAX_REVOKED: usize = 1 << 20;
/// Certificates that one look at what is revoked brings.
pub const MAX_REVOKED_PER_LOOK: u32 = 5_000;
/// Answers that may wait to be sent to one node; past it the session is not read.
pub const MAX_WAITING_ANSWERS: usize = 256;

/// The tunable bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub frame_bytes: usize,
    pub result_bytes: usize,
    pub events_per_batch: usize,
    pub lanes_per_node: usize,
    pub known_commands: usize,
    /// Specs that a Hello may list.
    pub specs_per_node: usize,
    /// Sections of a node's inventory.
    pub sections_per_node: usize,
    pub header_list_bytes: u32,
    pub streams_per_connection: u32,
    pub handshake_timeout: Duration,
    pub hello_timeout: Duration,
    pub streamless_timeout: Duration,
    pub heartbeat_interval: Duration,
    pub missed_heartbeats: u32,
    /// How long a peer may read nothing of what waits for it.
    pub send_timeout: Duration,
    pub liveness_write_every: Duration,
    /// When a certificate that two machines use in turn is quarantined.
    pub duplicates: DuplicateRule,
    /// What becomes of a Hello whose certificate the database does not know.
    pub unknown_serial: UnknownSerial,
    /// Frames of one session that wait behind the durable one with the writer; past it the session
    /// is not read. As many sections of its inventory may wait beside them.
    pub session_inbox_frames: usize,
    pub session_inbox_bytes: usize,
    /// What may wait to be read by one peer; past it the peer is slow and is cut.
    pub session_outbox_bytes: usize,
    /// Of tunnels; shared with the machine that holds them.
    pub tunnels: Arc<TunnelLimits>,
    /// Partly received frames of one shard.
    pub receive_bytes_per_shard: usize,
    pub to_writer_messages: usize,
    pub to_writer_bytes: usize,
    pub to_shard_messages: usize,
    pub handshakes_at_once: usize,
    pub streams: usize,
    pub pending_hellos: usize,
    /// Connections that one certificate may have on one shard.
    pub connections_per_certificate: u32,
    /// Connections of peers without a certificate of a node, of the gateway.
    pub anonymous_connections: usize,
    pub opens_per_second: u32,
    pub opens_burst: u32,
    /// Joins, which anybody may ask for, have a bucket of their own.
    pub joins_per_second: u32,
    pub joins_burst: u32,
    pub batch_entries: usize,
    pub batch_bytes: usize,
    /// Calls of one kind (Join, Renew, FetchSecret) that are under way to their service.
    pub relays_in_flight: usize,
    /// Calls of one kind that wait to be; more are refused.
    pub relays_waiting: usize,
    /// How long a node waits for the answer of a service.
    pub relay_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frame_bytes: 1 << 20,
            result_bytes: 512 << 10,
            events_per_batch: 1000,
            lanes_per_node: 16,
            known_commands: 4096,
            // Twice of what `set_spec` allows: what was taken out of the table must not keep a node out.
            specs_per_node: 2 * MAX_SPECS_PER_NODE,
            sections_per_node: 64,
            header_list_bytes: 16 << 10,
            streams_per_connection: 16,
            handshake_timeout: Duration::from_secs(10),
            hello_timeout: Duration::from_secs(10),
            streamless_timeout: Duration::from_secs(15),
            heartbeat_interval: Duration::from_secs(10),
            missed_heartbeats: 3,
            send_timeout: Duration::from_secs(10),
            liveness_write_every: Duration::from_secs(30),
            duplicates: DuplicateRule::default(),
            unknown_serial: UnknownSerial::default(),
            session_inbox_frames: 16,
            session_inbox_bytes: 64 << 10,
            session_outbox_bytes: 16 << 20,
            tunnels: Arc::default(),
            receive_bytes_per_shard: 64 << 20,
            to_writer_messages: 16_384,
            to_writer_bytes: 64 << 20,
            to_shard_messages: 16_384,
            handshakes_at_once: 16,
            streams: 10_000,
            pending_hellos: 1_000,
            connections_per_certificate: 32,
            anonymous_connections: 1_024,
            opens_per_second: 200,
            opens_burst: 200,
            joins_per_second: 50,
            joins_burst: 50,
            batch_entries: MAX_BATCH_ENTRIES,
            batch_bytes: 16 << 20,
            relays_in_flight: 32,
            relays_waiting: 256,
            relay_timeout: Duration::from_secs(10),
        }
    }
}

/// What bounds tunnels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelLimits {
    /// Tunnels of the gateway, from the open on. Zero: none are offered.
    pub most: usize,
    pub per_node: usize,
    /// What may be on its way in one direction of a tunnel; HTTP/2 may have as much of it unread.
    pub window_bytes: usize,
    /// How long an open waits for the node's stream.
    pub open_timeout: Duration,
    pub max_life: Duration,
    /// How often the IAM service is asked about the caller of a tunnel.
    pub reauthorize_every: Duration,
    /// How long a tunnel outlives an IAM service that can't be asked.
    pub iam_patience: Duration,
    /// How long the IAM service may take to answer.
    pub iam_timeout: Duration,
    /// Tickets that are remembered as used.
    pub used_tickets: usize,
    /// Where nodes dial for their side of a tunnel, so as to reach this very gateway.
    pub direct_address: Option<String>,
}

impl Default for TunnelLimits {
    fn default() -> Self {
        Self {
            most: 0,
            per_node: 16,
            window_bytes: 256 << 10,
            open_timeout: Duration::from_secs(10),
            max_life: Duration::from_secs(12 * 3600),
            reauthorize_every: Duration::from_secs(60),
            iam_patience: Duration::from_secs(120),
            iam_timeout: Duration::from_secs(10),
            used_tickets: 65_536,
            direct_address: None,
        }
    }
}

impl TunnelLimits {
    /// Questions that may be with the IAM service at once: all tunnels are asked about in time, though each answer takes as
    /// long as one may.
    pub fn iam_in_flight(&self) -> usize {
        let every = self.reauthorize_every.as_millis().max(1);
        let needed = (self.most as u128 * self.iam_timeout.as_millis()).div_ceil(every);
        usize::try_from(needed).unwrap_or(usize::MAX).clamp(1, self.most.max(1))
    }
}

/// A relation between limits that does not hold; the sentence names both and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LimitsError(pub String);

impl Limits {
    /// Holds the relations between the bounds.
    pub fn check(&self) -> Result<(), LimitsError> {
        let relations: [(bool, &str); 10] = [
            (
                self.result_bytes < self.frame_bytes,
                "a result must fit into a frame: raise sessions.frame_bytes",
            ),
            (self.frame_bytes <= self.receive_bytes_per_shard, "a frame must fit into shards.receive_bytes"),
            (self.frame_bytes <= self.session_outbox_bytes, "a frame must fit into sessions.outbox_bytes"),
            (self.result_bytes <= self.batch_bytes, "a result must fit into group_commit.batch_bytes"),
            (self.batch_bytes <= self.to_writer_bytes, "a batch must fit into db_writer.queue_bytes"),
            (
                (1..=MAX_BATCH_ENTRIES).contains(&self.batch_entries),
                "group_commit.batch_entries must be 1 to 500",
            ),
            (
                self.pending_hellos <= self.streams,
                "admission.max_pending_hellos must not exceed admission.max_streams",
            ),
            (
                self.missed_heartbeats > 0 && !self.heartbeat_interval.is_zero(),
                "sessions.heartbeat_interval and sessions.missed_heartbeats must not be zero",
            ),
            (
                self.specs_per_node >= MAX_SPECS_PER_NODE,
                "sessions.specs_per_node must be 64 at least: so many specs a node may be given",
            ),
            (
                self.relays_in_flight > 0 && !self.relay_timeout.is_zero(),
                "upstream.max_in_flight and upstream.timeout must not be zero",
            ),
        ];
        match relations.iter().find(|(holds, _)| !holds) {
            Some((_, sentence)) => Err(LimitsError((*sentence).to_owned())),
            None => Ok(()),
        }
    }

    /// How large a Hello may be: what its lists may hold, and some more. Before it, nothing larger is received.
    pub fn hello_bytes(&self) -> usize {
        let listed = self.lanes_per_node + self.specs_per_node + self.sections_per_node + MAX_FEATURES;
        let bytes = OTHER_HELLO_BYTES + self.known_commands * KNOWN_COMMAND_BYTES + listed * LISTED_BYTES;
        bytes.min(self.frame_bytes)
    }

    /// What may be on its way to a node on each of `lanes` lanes before it reports on it. Half of the
    /// outbox, since each lane may pass its share by less than one payload and frames have heads.
    pub fn read_ahead_bytes(&self, lanes: usize) -> usize {
        (self.session_outbox_bytes / 2 / lanes.max(1)).saturating_sub(MAX_PAYLOAD_BYTES).max(1)
    }

    /// What specs on their way to one node may weigh: a node that reads is never cut for them.
    pub fn spec_bytes_to_a_node(&self) -> usize {
        (self.session_outbox_bytes / 4).clamp(1, MAX_SPEC_BYTES_TO_A_NODE)
    }

    /// How long a session may be silent.
    pub fn heartbeat_timeout(&self) -> Duration {
        self.heartbeat_interval * self.missed_heartbeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_hold_their_relations() {
        assert_eq!(Limits::default().check(), Ok(()));
    }

    #[test]
    fn a_hello_with_all_that_it_may_list_is_none_too_large() {
        let limits = Limits::default();
        // Tag, length, then: id and its head, an attempt and a state of the longest varints; names of 64
        // bytes with a hash or a number; texts.
        let known = 2 + (2 + 16) + (1 + 5) + (1 + 10);
        let named = 3 + (2 + 64) + (2 + 32);
        let lists = limits.lanes_per_node + limits.sections_per_node + limits.specs_per_node + MAX_FEATURES;
        let most = limits.known_commands * known + lists * named + 5 * MAX_TEXT_BYTES;
        assert!(most <= limits.hello_bytes(), "{most} bytes, {} are allowed", limits.hello_bytes());
        assert!(limits.hello_bytes() < limits.frame_bytes / 2, "it is no bound");
    }

    #[test]
    fn a_broken_relation_is_named() {
        let limits = Limits { result_bytes: 2 << 20, ..Limits::default() };
        assert!(limits.check().is_err_and(|error| error.0.contains("sessions.frame_bytes")));
    }
}
