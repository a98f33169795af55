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

use crate::fleet::{FleetCounts, usage_of};
use crate::latency::{Latencies, Percentiles};
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

/// Longer stretches of a phase, one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowPlan {
    /// What is before warms up, and belongs to no window.
    pub(crate) from: Duration,
    pub(crate) every: Duration,
}

impl Default for WindowPlan {
    fn default() -> Self {
        Self { from: Duration::ZERO, every: Duration::from_secs(60) }
    }
}

/// Dispatch latencies of one window.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Window {
    pub(crate) from_s: f64,
    pub(crate) commands: u64,
    pub(crate) dispatch_ms: Percentiles,
}

/// Gathers seconds into windows.
#[derive(Debug)]
struct Windows {
    plan: WindowPlan,
    windows: Vec<Latencies>,
}

impl Windows {
    fn add(&mut self, at: Duration, recent: &Latencies) {
        let Some(into) = at.checked_sub(self.plan.from) else { return };
        let index = (into.as_secs_f64() / self.plan.every.as_secs_f64()) as usize;
        while self.windows.len() <= index {
            self.windows.push(Latencies::new());
        }
        if let Some(window) = self.windows.get_mut(index) {
            window.add(recent);
        }
    }

    // A last one that was cut short would stand for a whole one: what is in it belongs to the one before.
    fn finish(mut self, ended: Duration) -> Vec<Window> {
        let (from, every) = (self.plan.from.as_secs_f64(), self.plan.every.as_secs_f64());
        let whole = ((ended.as_secs_f64() - from) / every + 0.05) as usize;
        while self.windows.len() > whole.max(1) {
            let rest = self.windows.pop();
            if let (Some(rest), Some(last)) = (rest, self.windows.last_mut()) {
                last.add(&rest);
            }
        }
        let windows = self.windows.iter().enumerate().filter_map(|(index, latencies)| {
            let dispatch_ms = latencies.percentiles()?;
            Some(Window { from_s: from + index as f64 * every, commands: latencies.count(), dispatch_ms })
        });
        windows.collect()
    }
}

/// All samples of a phase.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    pub(crate) series: Vec<Sample>,
    /// How late the nodes' own runtime was.
    pub(crate) loop_lag: Latencies,
    pub(crate) windows: Vec<Window>,
}

/// A running sampler.
#[derive(Debug)]
pub(crate) struct Sampler {
    stop: watch::Sender<bool>,
    task: JoinHandle<Samples>,
}

impl Sampler {
    /// Samples until it is stopped; `gateway` and `load` are process ids.
    pub(crate) fn start(
        gateway: Option<u32>,
        load: Vec<u32>,
        counts: Arc<FleetCounts>,
        tracker: Arc<Tracker>,
        windows: WindowPlan,
    ) -> Self {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(sample(gateway, load, counts, tracker, windows, stopped));
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
    load: Vec<u32>,
    counts: Arc<FleetCounts>,
    tracker: Arc<Tracker>,
    windows: WindowPlan,
    mut stopped: watch::Receiver<bool>,
) -> Samples {
    let started = Instant::now();
    let mut windows = Windows { plan: windows, windows: Vec::new() };
    // What was before is of no window.
    drop(tracker.take_recent());
    let read = |pid: Option<u32>| pid.and_then(|pid| usage(pid).ok());
    let mut before = (read(gateway), usage_of(&load), Instant::now());
    let mut samples = Samples { series: Vec::new(), loop_lag: Latencies::new(), windows: Vec::new() };
    'seconds: loop {
        let second = Instant::now();
        while second.elapsed() < EVERY {
            let due = Instant::now() + LAG_EVERY;
            tokio::select! {
                () = tokio::time::sleep_until(due.into()) => {}
                _ = stopped.changed() => break 'seconds,
            }
            samples.loop_lag.record_ns(u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        let now = (read(gateway), usage_of(&load), Instant::now());
        let elapsed = now.2 - before.2;
        let recent = tracker.take_recent();
        windows.add(second.duration_since(started), &recent);
        let recent = recent.percentiles();
        samples.series.push(Sample {
            at_s: started.elapsed().as_secs_f64(),
            rss_bytes: now.0.map(|usage| usage.rss_bytes),
            cpu_percent: now.0.zip(before.0).map(|(now, before)| cpu_percent(before, now, elapsed)),
            load_cpu_percent: cpu_percent(before.1, now.1, elapsed),
            connected: counts.connected(),
            dispatch_p50_ms: recent.map(|ms| ms.p50),
            dispatch_p99_ms: recent.map(|ms| ms.p99),
            dispatch_max_ms: recent.map(|ms| ms.max),
        });
        before = now;
    }
    let ended = started.elapsed();
    windows.add(ended.saturating_sub(EVERY), &tracker.take_recent());
    samples.windows = windows.finish(ended);
    samples
}

/// CPU between two readings, 100 for one core.
pub(crate) fn cpu_percent(before: Usage, now: Usage, elapsed: Duration) -> f64 {
    let used = now.cpu.saturating_sub(before.cpu).as_secs_f64();
    100.0 * used / elapsed.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_warms_up_and_what_is_cut_short_is_no_window_of_its_own() {
        let plan = WindowPlan { from: Duration::from_secs(10), every: Duration::from_secs(60) };
        let mut windows = Windows { plan, windows: Vec::new() };
        let mut second = Latencies::new();
        second.record_ns(1_000_000);
        for at in 0..200 {
            windows.add(Duration::from_secs(at), &second);
        }
        let windows = windows.finish(Duration::from_secs(200));
        let seen: Vec<(f64, u64)> = windows.iter().map(|window| (window.from_s, window.commands)).collect();
        assert_eq!(seen, [(10.0, 60), (70.0, 60), (130.0, 70)]);
    }

    #[test]
    fn a_phase_that_is_shorter_than_a_window_is_one() {
        let mut windows = Windows { plan: WindowPlan::default(), windows: Vec::new() };
        let mut second = Latencies::new();
        second.record_ns(1_000_000);
        windows.add(Duration::from_secs(1), &second);
        assert_eq!(windows.finish(Duration::from_secs(5)).len(), 1);
    }
}
