//! What the threads have counted, read together: for health, metrics and the watchdog.
//!
//! 1. Reading changes nothing and waits for nobody: counters are atomics.
//! 2. No text of a node gets into a name, a label or a value.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway_control::relay::RelayStatus;
use gateway_control::tunnel::TunnelStatus;
use gateway_control::{Family, Health, Label, Points, Status, Unit, number, phase_label};
use gateway_core::admission::Admission;
use gateway_core::ids::ShardId;
use gateway_core::limits::Limits;
use gateway_core::store::Queue;
use gateway_core::time::Moment;
use gateway_core::writer::Phase;
use gateway_db_writer::{LoopStatus, QueueStatus, WriterStatus};
use gateway_shard::ShardCounters;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::tls_watch::TlsStatus;
use super::{health, latencies, loops};

/// What a gateway is, and within which bounds.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) gateway: String,
    pub(super) version: &'static str,
    pub(super) started: Instant,
    pub(super) limits: Arc<Limits>,
    pub(super) lease_ttl: Duration,
}
use crate::logging::lines_lost;

/// Rounds of the watchdog without a turn, after which a thread stands: one may be a busy machine's.
const STANDING_ROUNDS: u64 = 2;

/// The atomics of a gateway's threads.
#[derive(Debug)]
pub struct Readings {
    origin: Origin,
    admission: Arc<Admission>,
    writer: Arc<WriterStatus>,
    relays: Arc<RelayStatus>,
    tunnels: Arc<TunnelStatus>,
    /// With the cpu of each.
    shards: Vec<(Option<usize>, Arc<ShardCounters>)>,
    /// The turns of each thread that must turn, in the order of `turns`; the watchdog writes them.
    threads: Vec<LoopStatus>,
    tls: Arc<TlsStatus>,
    api_tls: Arc<TlsStatus>,
}

/// A counter of a shard: its name, what it counts, how it is read.
pub(super) type ShardReading = (&'static str, &'static str, fn(&ShardCounters) -> u64);

pub(super) const SHARD_GAUGES: [ShardReading; 4] = [
    ("connections", "Open TCP connections, handshakes included", |shard| shard.connections.get()),
    ("sessions", "Open streams of sessions, from admission to the end", |shard| shard.sessions.get()),
    ("tunnel_streams", "Open streams of nodes for tunnels", |shard| shard.tunnel_streams.get()),
    ("mail_waiting", "Messages that waited for a shard when it looked last", |shard| {
        shard.mail_waiting.get()
    }),
];

pub(super) const SHARD_COUNTERS: [ShardReading; 22] = [
    ("opens", "Sessions admitted", |shard| shard.opens.get()),
    ("handshakes", "TLS handshakes that succeeded", |shard| shard.handshakes_ok.get()),
    ("refused_connections", "Connections closed since their peer had as many as it may", |shard| {
        shard.refused_connections.get()
    }),
    ("handshakes_failed", "TLS handshakes that failed", |shard| shard.handshakes_failed.get()),
    ("handshakes_revoked", "TLS handshakes that failed for a revoked certificate", |shard| {
        shard.handshakes_revoked.get()
    }),
    ("handshakes_expired", "TLS handshakes that failed for a certificate out of its time", |shard| {
        shard.handshakes_expired.get()
    }),
    ("tls_renewals", "Sets of TLS files that took the place of the one before", |shard| {
        shard.tls_renewals.get()
    }),
    ("accept_errors", "Connections that could not be accepted", |shard| shard.accept_errors.get()),
    ("frames_in", "Frames from nodes", |shard| shard.frames_in.get()),
    ("frames_out", "Frames to nodes", |shard| shard.frames_out.get()),
    ("bytes_in", "Bytes of frames from nodes", |shard| shard.bytes_in.get()),
    ("bytes_out", "Bytes of frames to nodes", |shard| shard.bytes_out.get()),
    ("heartbeat_timeouts", "Sessions ended for missed heartbeats", |shard| shard.heartbeat_timeouts.get()),
    ("writer_full_waits", "Messages that found the writer's mailbox full", |shard| {
        shard.writer_full_waits.get()
    }),
    ("receive_budget_waits", "Frames that waited for memory", |shard| shard.receive_budget_waits.get()),
    ("tunnel_bytes_in", "Bytes of tunnels from nodes", |shard| shard.tunnel_bytes_in.get()),
    ("tunnel_bytes_out", "Bytes of tunnels to nodes", |shard| shard.tunnel_bytes_out.get()),
    ("relay_calls", "Calls taken to be passed on to a service", |shard| shard.relays.get()),
    ("floods", "Connections ended for too many control frames or requests", |shard| shard.floods.get()),
    ("panics", "Connections ended by a fault of our own", |shard| shard.panics.get()),
    ("mail_taken", "Messages that a shard took from the writer", |shard| shard.mail_taken.get()),
    ("mail_looks", "Looks of a shard into its mailbox", |shard| shard.mail_looks.get()),
];

const SHARD_REFUSALS: [ShardReading; 8] = [
    ("opens-per-second", "", |shard| shard.refused_opens_per_second.get()),
    ("joins-per-second", "", |shard| shard.refused_joins_per_second.get()),
    ("streams", "", |shard| shard.refused_streams.get()),
    ("pending-hellos", "", |shard| shard.refused_pending_hellos.get()),
    ("relays", "", |shard| shard.refused_relays.get()),
    ("tunnels", "", |shard| shard.refused_tunnels.get()),
    ("not-serving", "", |shard| shard.refused_not_serving.get()),
    ("unauthenticated", "", |shard| shard.refused_unauthenticated.get()),
];

type WriterReading = (&'static str, &'static str, fn(&WriterStatus) -> &AtomicU64);

const WRITER_COUNTERS: [WriterReading; 30] = [
    ("writer_turns", "Turns of the writer's loop", |writer| &writer.ticks),
    ("writer_messages_taken", "Messages that the writer took from shards", |writer| &writer.messages_taken),
    ("writer_messages_given", "Messages that the writer gave to shards", |writer| &writer.messages_given),
    ("pokes", "Notifications heard", |writer| &writer.pokes),
    ("asks", "Asks of the control API that the writer answered", |writer| &writer.asks),
    ("hellos_granted", "Sessions opened", |writer| &writer.hellos_granted),
    ("hellos_refused", "Sessions refused by the database", |writer| &writer.hellos_refused),
    ("sessions_superseded", "Sessions that a newer one of the node ended", |writer| {
        &writer.sessions_superseded
    }),
    ("certificates_quarantined", "Certificates revoked since two machines used them in turn", |writer| {
        &writer.certificates_quarantined
    }),
    (
        "hellos_of_unknown_certificates",
        "Sessions opened with certificates that node_certs does not have",
        |writer| &writer.hellos_of_unknown_certificates,
    ),
    ("dispatch_passes", "Dispatch statements that committed", |writer| &writer.dispatch_passes),
    ("commands_claimed", "Commands marked dispatched", |writer| &writer.commands_claimed),
    ("credits_exhausted", "Times that a command took the last free credit of its lane", |writer| {
        &writer.credits_exhausted
    }),
    ("updates_stored", "Updates stored", |writer| &writer.updates_stored),
    ("update_conflicts", "Terminal states reported after another one", |writer| &writer.update_conflicts),
    ("updates_not_stored", "Updates rejected", |writer| &writer.updates_not_stored),
    ("event_batches_stored", "Batches of events acked", |writer| &writer.event_batches_stored),
    ("events_refused", "Tombstones stored for events that could not be", |writer| &writer.events_refused),
    ("specs_pushed", "Specs given to sessions", |writer| &writer.specs_pushed),
    ("spec_answers_stored", "Outcomes of specs acked to nodes", |writer| &writer.spec_answers_stored),
    ("spec_answers_refused", "Outcomes of specs rejected", |writer| &writer.spec_answers_refused),
    ("statuses_stored", "Statuses stored for the first time", |writer| &writer.statuses_stored),
    ("hooks_run", "Hooks that ran for what was stored", |writer| &writer.hooks_run),
    ("hooks_failed", "Hooks that failed, each published in outbox", |writer| &writer.hooks_failed),
    ("sections_stored", "Sections of inventories acked", |writer| &writer.sections_stored),
    ("sections_refused", "Sections of inventories that could not be stored", |writer| {
        &writer.sections_refused
    }),
    ("fences", "Times that the lease was lost", |writer| &writer.fences),
    ("sweeps", "Runs of the sweeps that this gateway ended, for all gateways", |writer| &writer.sweeps),
    ("commands_expired", "Commands that its sweeps made expired", |writer| &writer.commands_expired),
    ("sessions_reaped", "Sessions of dead gateways that its sweeps ended", |writer| &writer.sessions_reaped),
];

impl Readings {
    pub(super) fn new(
        origin: Origin,
        admission: Arc<Admission>,
        writer: Arc<WriterStatus>,
        relays: Arc<RelayStatus>,
        tunnels: Arc<TunnelStatus>,
        shards: Vec<(Option<usize>, Arc<ShardCounters>)>,
    ) -> Self {
        let threads = (0..=shards.len()).map(|_| LoopStatus::default()).collect();
        let (tls, api_tls) = Default::default();
        Self { origin, admission, writer, relays, tunnels, shards, threads, tls, api_tls }
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    pub(super) fn admission(&self) -> &Admission {
        &self.admission
    }

    /// The cpu that each shard is pinned to, in order.
    pub(super) fn cpus(&self) -> impl Iterator<Item = Option<usize>> {
        self.shards.iter().map(|(cpu, _)| *cpu)
    }

    /// How long ago the last good attempt at the lease began, while it is held.
    pub(super) fn lease_age(&self) -> Option<Duration> {
        let since = self.writer.lease_good_since.load(Relaxed);
        let now = Moment::on_clock(self.origin.started, Instant::now());
        (since > 0).then(|| now.since(Moment::from_nanos(since)))
    }

    /// Where the writer is in its life.
    pub fn phase(&self) -> Phase {
        self.writer.phase()
    }

    /// What the writer counts.
    pub fn writer(&self) -> &WriterStatus {
        &self.writer
    }

    /// What each shard counts, in order.
    pub fn shards(&self) -> impl Iterator<Item = (ShardId, &ShardCounters)> {
        (0..).map(ShardId).zip(self.shards.iter().map(|(_, counters)| &**counters))
    }

    /// The looks at the TLS files.
    pub fn tls(&self) -> &Arc<TlsStatus> {
        &self.tls
    }

    /// The looks at the control API's files.
    pub fn api_tls(&self) -> &Arc<TlsStatus> {
        &self.api_tls
    }

    /// Streams that are admitted now, over all shards.
    pub fn streams(&self) -> usize {
        self.admission.streams()
    }

    /// A number for each thread that must turn; it has risen whenever the thread has turned.
    pub(super) fn turns(&self) -> Vec<(String, u64)> {
        let shards = self.shards().map(|(shard, counters)| {
            (format!("shard-{shard}"), counters.mail_looks.get() + counters.mail_taken.get())
        });
        let writer = ("db-writer".to_owned(), self.writer.ticks.load(Relaxed));
        shards.chain([writer]).collect()
    }

    /// The turns of the threads as loops, in the order of `turns`.
    pub(super) fn thread_loops(&self) -> &[LoopStatus] {
        &self.threads
    }

    /// Whether a thread that must turn has not for so many rounds of the watchdog that it counts as standing.
    pub(super) fn is_standing(&self) -> bool {
        self.threads.iter().any(|thread| thread.read().consecutive_failures >= STANDING_ROUNDS)
    }

    fn per_shard(&self, reading: &ShardReading) -> Vec<(Vec<Label>, f64)> {
        self.shards()
            .map(|(shard, counters)| (vec![Label::Shard(shard)], number((reading.2)(counters))))
            .collect()
    }

    pub(super) fn per_queue(&self, read: impl Fn(&QueueStatus) -> f64) -> Vec<(Vec<Label>, f64)> {
        Queue::ALL
            .into_iter()
            .map(|queue| (vec![Label::Queue(queue)], read(self.writer.queue(queue))))
            .collect()
    }

    fn shard_families(&self) -> Vec<Family> {
        let family =
            |reading: &ShardReading, points| Family { name: reading.0, help: reading.1, unit: None, points };
        let gauges =
            SHARD_GAUGES.iter().map(|reading| family(reading, Points::Gauges(self.per_shard(reading))));
        let counters =
            SHARD_COUNTERS.iter().map(|reading| family(reading, Points::Counters(self.per_shard(reading))));
        let mut families: Vec<Family> = gauges.chain(counters).collect();
        let labelled =
            |name, shard, word, value| (vec![Label::Shard(shard), Label::Word(name, word)], number(value));
        let refusals = self.shards().flat_map(|(shard, counters)| {
            SHARD_REFUSALS.iter().map(move |(word, _, read)| labelled("reason", shard, *word, read(counters)))
        });
        families.push(Family {
            name: "refusals",
            help: "Streams refused at their opening",
            unit: None,
            points: Points::Counters(refusals.collect()),
        });
        let closes = self.shards().flat_map(|(shard, counters)| {
            counters.closes.iter().map(move |(word, count)| labelled("reason", shard, word, count))
        });
        let transports = self.shards().flat_map(|(shard, counters)| {
            let counts = counters.sessions_by_transport.iter();
            counts.map(move |(word, count)| labelled("transport", shard, word, count))
        });
        families.push(Family {
            name: "sessions_by_transport",
            help: "Open streams of sessions, by what carries them",
            unit: None,
            points: Points::Gauges(transports.collect()),
        });
        families.push(Family {
            name: "closes",
            help: "Ends of admitted sessions",
            unit: None,
            points: Points::Counters(closes.collect()),
        });
        families
    }

    fn tls_families(&self) -> [Family; 3] {
        let family =
            |name, help, status: &TlsStatus| Family::counter(name, help, status.reloads.load(Relaxed));
        [
            family("tls_reloads", "Times that the TLS files had changed and were taken", &self.tls),
            family(
                "control_tls_reloads",
                "Times that the TLS files of the control API had changed and were taken",
                &self.api_tls,
            ),
            Family::gauge(
                "tls_certificate_end_timestamp",
                "When the certificate that nodes are shown ends, since 1970",
                self.tls.ends_at.load(Relaxed),
            )
            .in_unit(Unit::Seconds),
        ]
    }

    fn queue_families(&self) -> Vec<Family> {
        let count = |counter: &AtomicU64| number(counter.load(Relaxed));
        let seconds = |counter: &AtomicU64| number(counter.load(Relaxed)) / 1e9;
        let family = |name, help, unit, points| Family { name, help, unit, points };
        vec![
            family(
                "jobs",
                "Group commits of a queue",
                None,
                Points::Counters(self.per_queue(|queue| count(&queue.jobs))),
            ),
            family(
                "job_entries",
                "Entries of group commits",
                None,
                Points::Counters(self.per_queue(|queue| count(&queue.entries))),
            ),
            family(
                "job",
                "Time that group commits took, together",
                Some(Unit::Seconds),
                Points::Counters(self.per_queue(|queue| seconds(&queue.nanos))),
            ),
            family(
                "job_longest",
                "The longest group commit so far",
                Some(Unit::Seconds),
                Points::Gauges(self.per_queue(|queue| seconds(&queue.longest_nanos))),
            ),
            family(
                "job_failures",
                "Group commits that failed",
                None,
                Points::Counters(self.per_queue(|queue| number(queue.runs.read().failures))),
            ),
            family(
                "job_failures_in_a_row",
                "Group commits that failed since the last good one",
                None,
                Points::Gauges(self.per_queue(|queue| number(queue.runs.read().consecutive_failures))),
            ),
        ]
    }
}

impl Status for Readings {
    fn health(&self) -> Health {
        health::health(self)
    }

    fn families(&self) -> Vec<Family> {
        let current = self.phase();
        let phases = [Phase::Waiting, Phase::Serving, Phase::Draining, Phase::Stopping, Phase::Stopped];
        let phases = phases.map(|phase| {
            (vec![Label::Word("phase", phase_label(phase))], number(u64::from(phase == current)))
        });
        let mut families = vec![
            Family {
                name: "phase",
                help: "1 for the phase that the gateway is in",
                unit: None,
                points: Points::Gauges(phases.to_vec()),
            },
            Family::gauge(
                "sessions_durable",
                "Sessions with a durable Hello",
                self.writer.sessions.load(Relaxed),
            ),
            Family::gauge("streams", "Admitted streams", self.streams() as u64),
            Family::gauge(
                "hellos_pending",
                "Hellos without an outcome",
                self.admission.pending_hellos() as u64,
            ),
            Family::gauge(
                "notifications_heard",
                "1 while notifications of new commands arrive",
                u64::from(self.writer.listening.load(Relaxed)),
            ),
            Family::gauge(
                "revoked_certificates",
                "Certificates that handshakes are refused for, since they are revoked",
                self.writer.revoked_certificates.load(Relaxed),
            ),
            Family::gauge(
                "revocations_left_out",
                "Certificates that are revoked and more than are remembered",
                self.writer.revocations_left_out.load(Relaxed),
            ),
            Family::gauge(
                "leads_sweeps",
                "1 while this gateway sweeps for all",
                u64::from(self.writer.leads_sweeps.load(Relaxed)),
            ),
            Family::gauge(
                "last_sweep_timestamp",
                "When its last run of the sweeps ended, since 1970; 0 before",
                self.writer.last_sweep_at.load(Relaxed),
            )
            .in_unit(Unit::Seconds),
            Family::gauge(
                "writer_messages_waiting",
                "Messages of shards that waited for the writer at its last turn",
                self.writer.messages_waiting.load(Relaxed),
            ),
            Family::counter(
                "log_lines_lost",
                "Log lines that stderr did not take, or not in time",
                lines_lost(),
            ),
        ];
        families.extend(
            WRITER_COUNTERS
                .iter()
                .map(|(name, help, read)| Family::counter(name, help, read(&self.writer).load(Relaxed))),
        );
        families.extend(self.tls_families());
        families.extend(self.queue_families());
        families.extend(loops::families(self));
        families.extend(self.shard_families());
        families.extend(latencies::families(self));
        families.extend(self.relays.families());
        families.extend(self.tunnels.families());
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings() -> Readings {
        let admission = Admission::new(&Limits::default(), Moment::default());
        let shards = vec![(None, Arc::default()), (Some(1), Arc::default())];
        let origin = Origin {
            gateway: "g1".to_owned(),
            version: "1",
            started: Instant::now(),
            limits: Arc::default(),
            lease_ttl: Duration::from_secs(20),
        };
        Readings::new(origin, Arc::new(admission), Arc::default(), Arc::default(), Arc::default(), shards)
    }

    #[test]
    fn a_gateway_without_a_lease_is_not_healthy_and_not_yet_fenced() {
        let health = readings().health();
        assert!(!health.serving && !health.fenced);
        assert_eq!(health.reasons, ["it does not hold its lease yet"]);
        assert!(!health.lease.held && health.lease.age_seconds.is_none());
        assert_eq!(health.queues.len(), Queue::ALL.len());
        assert_eq!(health.shards[1].cpu, Some(1));
    }

    #[test]
    fn no_two_metrics_have_one_name() {
        let mut names: Vec<&str> = readings().families().iter().map(|family| family.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn every_thread_that_must_turn_is_watched() {
        let threads: Vec<String> = readings().turns().into_iter().map(|(thread, _)| thread).collect();
        assert_eq!(threads, ["shard-0", "shard-1", "db-writer"]);
    }
}
