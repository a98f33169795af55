//! What `gateway top` shows, made of two looks at a gateway: its health and its metrics.
//!
//! Rates and latencies are of the time between the looks, all else is of the second.
//!
//! 1. A latency of which there was none is absent, never zero.
//! 2. The names of metrics that are read stand here, and a story holds them against a gateway that runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::metrics::{Metrics, Stretch};
use crate::serve::is_thread;

/// A run of a loop that takes longer than this is shown among those in trouble. A thread's run is a round of the watchdog,
/// however long that is: a thread is in trouble when it missed one, which is a failure.
const LONG_RUN_SECONDS: f64 = 5.0;

/// What is read of `/v1/health`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Health {
    gateway: String,
    version: String,
    phase: String,
    serving: bool,
    reasons: Vec<String>,
    uptime_seconds: f64,
    lease: Lease,
    headroom: Headroom,
    sessions: u64,
    loops: Vec<Loop>,
    shards: Vec<Cpu>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Lease {
    pub(super) held: bool,
    pub(super) epoch: Option<u64>,
    pub(super) age_seconds: Option<f64>,
    pub(super) ttl_seconds: f64,
}

/// What is used of what there is.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Room {
    pub(super) used: u64,
    pub(super) of: u64,
}

#[derive(Debug, Clone, Deserialize)]
struct Headroom {
    streams: Room,
    pending_hellos: Room,
    writer_messages: Room,
}

/// A loop that fails, or whose present run takes long.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Loop {
    #[serde(rename = "loop")]
    pub(super) name: String,
    pub(super) consecutive_failures: u64,
    pub(super) running_seconds: Option<f64>,
    pub(super) last_error: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Cpu {
    shard: u16,
    cpu: Option<usize>,
}

/// One look.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) health: Health,
    pub(super) metrics: Metrics,
}

/// All that is shown. Durations are in seconds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct View {
    pub(super) gateway: String,
    pub(super) version: String,
    pub(super) phase: String,
    pub(super) takes_sessions: bool,
    pub(super) reasons: Vec<String>,
    pub(super) draining: bool,
    pub(super) uptime_seconds: f64,
    /// Between the two looks.
    pub(super) over_seconds: f64,
    pub(super) lease: Lease,
    pub(super) sessions: u64,
    pub(super) sessions_by_transport: BTreeMap<String, u64>,
    pub(super) streams: Room,
    pub(super) pending_hellos: Room,
    pub(super) writer_messages: Room,
    pub(super) tunnels: u64,
    pub(super) opens_per_second: f64,
    pub(super) refusals_per_second: f64,
    /// Those that there were.
    pub(super) refusals_by_reason: BTreeMap<String, f64>,
    pub(super) frames_in_per_second: f64,
    pub(super) frames_out_per_second: f64,
    pub(super) bytes_in_per_second: f64,
    pub(super) bytes_out_per_second: f64,
    pub(super) commits_per_second: f64,
    pub(super) dispatch: Dispatch,
    pub(super) shards: Vec<Shard>,
    pub(super) queues: Vec<Queue>,
    pub(super) loops_in_trouble: Vec<Loop>,
    /// Of one core, of all threads.
    pub(super) cpu_cores: f64,
    pub(super) resident_bytes: u64,
}

/// Commands on their way from the database to their nodes.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Dispatch {
    pub(super) sent_per_second: f64,
    pub(super) latency_p50_seconds: Option<f64>,
    pub(super) latency_p99_seconds: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Shard {
    pub(super) shard: u16,
    pub(super) cpu: Option<usize>,
    pub(super) sessions: u64,
    pub(super) connections: u64,
    pub(super) mail_waiting: u64,
    pub(super) opens_per_second: f64,
    pub(super) refusals_per_second: f64,
    pub(super) frames_in_per_second: f64,
    pub(super) frames_out_per_second: f64,
}

/// A queue of the writer: its group commits.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Queue {
    pub(super) queue: String,
    pub(super) waiting: u64,
    pub(super) commits_per_second: f64,
    /// The mean of the commits between the looks.
    pub(super) entries_per_commit: Option<f64>,
    pub(super) flush_p50_seconds: Option<f64>,
    pub(super) flush_p99_seconds: Option<f64>,
}

impl View {
    pub(super) fn new(before: &Look, after: &Look, over_seconds: f64) -> Self {
        let stretch = Stretch { before: &before.metrics, after: &after.metrics, seconds: over_seconds };
        let (health, metrics) = (after.health.clone(), &after.metrics);
        let rate = |name: &str| stretch.rate(name, &[]);
        let transports = metrics.words("gateway_sessions_by_transport", "transport");
        let by_transport = transports.into_iter().map(|word| {
            let sessions = metrics.sum("gateway_sessions_by_transport", &[("transport", &word)]);
            (word, whole(sessions))
        });
        Self {
            draining: health.phase == "draining",
            sessions_by_transport: by_transport.collect(),
            tunnels: whole(metrics.sum("gateway_tunnels", &[])),
            opens_per_second: rate("gateway_opens_total"),
            refusals_per_second: rate(REFUSALS),
            refusals_by_reason: refusals(&stretch, metrics),
            frames_in_per_second: rate("gateway_frames_in_total"),
            frames_out_per_second: rate("gateway_frames_out_total"),
            bytes_in_per_second: rate("gateway_bytes_in_total"),
            bytes_out_per_second: rate("gateway_bytes_out_total"),
            commits_per_second: rate("gateway_jobs_total"),
            dispatch: Dispatch {
                sent_per_second: rate("gateway_commands_claimed_total"),
                latency_p50_seconds: stretch.quantile("gateway_dispatch_latency_seconds", &[], 0.5),
                latency_p99_seconds: stretch.quantile("gateway_dispatch_latency_seconds", &[], 0.99),
            },
            shards: health.shards.iter().map(|cpu| shard(&stretch, metrics, cpu)).collect(),
            queues: queues(&stretch, metrics),
            loops_in_trouble: health.loops.into_iter().filter(is_in_trouble).collect(),
            cpu_cores: rate("gateway_process_cpu_seconds_total"),
            resident_bytes: whole(metrics.sum("gateway_process_resident_memory_bytes", &[])),
            gateway: health.gateway,
            version: health.version,
            phase: health.phase,
            takes_sessions: health.serving,
            reasons: health.reasons,
            uptime_seconds: health.uptime_seconds,
            over_seconds,
            lease: health.lease,
            sessions: health.sessions,
            streams: health.headroom.streams,
            pending_hellos: health.headroom.pending_hellos,
            writer_messages: health.headroom.writer_messages,
        }
    }
}

const REFUSALS: &str = "gateway_refusals_total";

fn refusals(stretch: &Stretch<'_>, metrics: &Metrics) -> BTreeMap<String, f64> {
    let rates = metrics.words(REFUSALS, "reason").into_iter().map(|reason| {
        let rate = stretch.rate(REFUSALS, &[("reason", &reason)]);
        (reason, rate)
    });
    rates.filter(|(_, rate)| *rate > 0.0).collect()
}

fn shard(stretch: &Stretch<'_>, metrics: &Metrics, of: &Cpu) -> Shard {
    let number = of.shard.to_string();
    let with: &[(&str, &str)] = &[("shard", &number)];
    Shard {
        shard: of.shard,
        cpu: of.cpu,
        sessions: whole(metrics.sum("gateway_sessions", with)),
        connections: whole(metrics.sum("gateway_connections", with)),
        mail_waiting: whole(metrics.sum("gateway_mail_waiting", with)),
        opens_per_second: stretch.rate("gateway_opens_total", with),
        refusals_per_second: stretch.rate(REFUSALS, with),
        frames_in_per_second: stretch.rate("gateway_frames_in_total", with),
        frames_out_per_second: stretch.rate("gateway_frames_out_total", with),
    }
}

fn queues(stretch: &Stretch<'_>, metrics: &Metrics) -> Vec<Queue> {
    let queue = |queue: String| {
        let with: &[(&str, &str)] = &[("queue", &queue)];
        Queue {
            waiting: whole(metrics.sum("gateway_queue_depth", with)),
            commits_per_second: stretch.rate("gateway_jobs_total", with),
            entries_per_commit: stretch.mean("gateway_batch_entries", with),
            flush_p50_seconds: stretch.quantile("gateway_flush_seconds", with, 0.5),
            flush_p99_seconds: stretch.quantile("gateway_flush_seconds", with, 0.99),
            queue,
        }
    };
    metrics.words("gateway_jobs_total", "queue").into_iter().map(queue).collect()
}

fn is_in_trouble(one: &Loop) -> bool {
    let is_long = one.running_seconds.is_some_and(|seconds| seconds > LONG_RUN_SECONDS);
    one.consecutive_failures > 0 || (is_long && !is_thread(&one.name))
}

/// A gauge that counts things.
fn whole(value: f64) -> u64 {
    if value > 0.0 { value.round() as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, consecutive_failures: u64, running_seconds: f64) -> Loop {
        Loop {
            name: name.to_owned(),
            consecutive_failures,
            running_seconds: Some(running_seconds),
            last_error: None,
        }
    }

    #[test]
    fn a_thread_is_in_trouble_when_it_missed_a_round_and_not_since_a_round_takes_long() {
        for thread in ["shard-0", "shard-17", "db-writer"] {
            assert!(!is_in_trouble(&one(thread, 0, 9.9)), "{thread}: the round is not over");
            assert!(!is_in_trouble(&one(thread, 0, 60.0)), "{thread}: systemd may ask for long rounds");
            assert!(is_in_trouble(&one(thread, 1, 0.1)), "{thread}");
        }
        assert!(is_in_trouble(&one("updates", 0, 5.1)) && !is_in_trouble(&one("updates", 0, 4.9)));
    }
}
