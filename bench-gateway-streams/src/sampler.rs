//! Samples gateway and load once a second: memory, CPU, sessions, latency over time.
//!
//! 1. The load's own CPU and lateness stand beside the gateway's figures, so that nobody mistakes
//!    its limits for the gateway's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway_testbed::process::{Usage, usage};
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::fleet::FleetCounts;
use crate::latency::Latencies;
use crate::tracker::Tracker;

const EVERY: Duration = Duration::from_secs(1);
const LAG_EVERY: Duration = Duration::from_millis(20);

/// One second.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sample {
    pub(crate) at_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_percent: Option<f64>,
    pub(crate) load_cpu_percent: f64,
    pub(crate) connected: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dispatch_p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dispatch_p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dispatch_max_ms: Option<f64>,
}

/// All samples of a phase.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    pub(crate) series: Vec<Sample>,
    /// How late the nodes' own runtime was.
    pub(crate) loop_lag: Latencies,
}

/// A running sampler.
#[derive(Debug)]
pub(crate) struct Sampler {
    stop: watch::Sender<bool>,
    task: JoinHandle<Samples>,
}

impl Sampler {
    /// Samples until it is stopped; `gateway` is a process id.
    pub(crate) fn start(gateway: Option<u32>, counts: Arc<FleetCounts>, tracker: Arc<Tracker>) -> Self {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(sample(gateway, counts, tracker, stopped));
        Self { stop, task }
    }

    /// Stops, and gives what was sampled.
    pub(crate) async fn stop(self) -> anyhow::Result<Samples> {
        let _ = self.stop.send(true);
        Ok(self.task.await?)
    }
}

async fn sample(
    gateway: Option<u32>,
    counts: Arc<FleetCounts>,
    tracker: Arc<Tracker>,
    mut stopped: watch::Receiver<bool>,
) -> Samples {
    let started = Instant::now();
    let read = |pid: Option<u32>| pid.and_then(|pid| usage(pid).ok());
    let mut before = (read(gateway), read(Some(std::process::id())), Instant::now());
    let mut samples = Samples { series: Vec::new(), loop_lag: Latencies::new() };
    loop {
        let second = Instant::now();
        while second.elapsed() < EVERY {
            let due = Instant::now() + LAG_EVERY;
            tokio::select! {
                () = tokio::time::sleep_until(due.into()) => {}
                _ = stopped.changed() => return samples,
            }
            samples.loop_lag.record_ns(u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        let now = (read(gateway), read(Some(std::process::id())), Instant::now());
        let elapsed = now.2 - before.2;
        let recent = tracker.take_recent().percentiles();
        samples.series.push(Sample {
            at_s: started.elapsed().as_secs_f64(),
            rss_bytes: now.0.map(|usage| usage.rss_bytes),
            cpu_percent: now.0.zip(before.0).map(|(now, before)| cpu_percent(before, now, elapsed)),
            load_cpu_percent: now
                .1
                .zip(before.1)
                .map_or(0.0, |(now, before)| cpu_percent(before, now, elapsed)),
            connected: counts.connected(),
            dispatch_p50_ms: recent.map(|ms| ms.p50),
            dispatch_p99_ms: recent.map(|ms| ms.p99),
            dispatch_max_ms: recent.map(|ms| ms.max),
        });
        before = now;
    }
}

/// CPU between two readings, 100 for one core.
pub(crate) fn cpu_percent(before: Usage, now: Usage, elapsed: Duration) -> f64 {
    let used = now.cpu.saturating_sub(before.cpu).as_secs_f64();
    100.0 * used / elapsed.as_secs_f64().max(1e-9)
}
