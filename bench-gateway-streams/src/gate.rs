//! The gates: bounds that a run must keep, and the figures that missed them.
//!
//! 1. A gate without its figure is missed, not passed.
//! 2. Lost or doubled commands, and an injected stall that does not show, miss every gate.

use crate::report::{HostileShare, Report, StormShare};

/// Bounds of one run; `None`: not asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GateBounds {
    /// From the fault until every node is back.
    pub(crate) storm_all_ms: Option<f64>,
    /// The same, to the bare handshakes of the same clients.
    pub(crate) storm_all_to_bare: Option<f64>,
    pub(crate) rehome_p99_ms: Option<f64>,
    pub(crate) dispatch_p50_ms: Option<f64>,
    pub(crate) dispatch_p99_ms: Option<f64>,
    /// Dispatch p99 to the p99 of the bare floor.
    pub(crate) dispatch_p99_to_floor: Option<f64>,
    /// Of a run that drops sessions on purpose: not asked for.
    pub(crate) drops: Option<u64>,
    pub(crate) rss_bytes: u64,
    pub(crate) rss_per_session_bytes: Option<u64>,
    pub(crate) rss_growth_ratio: Option<f64>,
    /// CPU time of the gateway over the run, 100 for one core.
    pub(crate) cpu_percent: Option<f64>,
    /// Heartbeats' p99 with hostile peers to that with the same peers at another gateway, of the worst attack.
    pub(crate) hostile_p99_ratio: Option<f64>,
    /// What the gateway may hold more for an attack.
    pub(crate) hostile_memory_bytes: Option<u64>,
}

impl GateBounds {
    /// What is promised of a run in which nothing fails.
    pub(crate) fn contract() -> Self {
        Self {
            storm_all_ms: None,
            storm_all_to_bare: None,
            rehome_p99_ms: None,
            dispatch_p50_ms: None,
            dispatch_p99_ms: Some(500.0),
            dispatch_p99_to_floor: None,
            drops: Some(0),
            rss_bytes: 2 << 30,
            rss_per_session_bytes: None,
            rss_growth_ratio: None,
            cpu_percent: None,
            hostile_p99_ratio: None,
            hostile_memory_bytes: None,
        }
    }

    /// What is promised of a run with a fault in it: sessions end, and latencies span the fault.
    pub(crate) fn of_a_fault() -> Self {
        Self { dispatch_p99_ms: None, drops: None, ..Self::contract() }
    }

    /// The figures of `report` that miss, as sentences.
    pub(crate) fn missed(&self, report: &Report) -> Vec<String> {
        let mut missed = Vec::new();
        let mut hold = |what: &str, figure: Option<f64>, bound: Option<f64>| {
            let Some(bound) = bound else { return };
            match figure {
                None => missed.push(format!("{what} was not measured")),
                Some(figure) if figure > bound => {
                    missed.push(format!("{what} {figure:.3} is over {bound:.3}"))
                }
                Some(_) => {}
            }
        };
        let dispatch = report.dispatch_ms.as_ref();
        hold("dispatch p50 ms", dispatch.map(|ms| ms.p50), self.dispatch_p50_ms);
        hold("dispatch p99 ms", dispatch.map(|ms| ms.p99), self.dispatch_p99_ms);
        hold("dispatch p99 to the floor's", report.dispatch_p99_to_floor(), self.dispatch_p99_to_floor);
        hold("drops", Some(report.drops as f64), self.drops.map(|drops| drops as f64));
        let (storm, multi) = (report.storm.as_ref(), report.multi.as_ref());
        hold("storm, until all are back, ms", storm.and_then(|storm| storm.all_ms), self.storm_all_ms);
        hold(
            "storm, to the bare handshakes",
            storm.and_then(StormShare::all_to_bare),
            self.storm_all_to_bare,
        );
        hold(
            "re-homing p99 ms",
            multi.and_then(|multi| multi.rehome_ms).map(|ms| ms.p99),
            self.rehome_p99_ms,
        );
        if let Some(multi) = multi {
            hold("sessions lost on gateways that live", Some(multi.lost_elsewhere as f64), Some(0.0));
            let cut = multi.exit_ms.map(|_| multi.cut as f64);
            hold("sessions cut by a drain", cut, cut.map(|_| 0.0));
        }
        let hostile = report.hostile.as_ref();
        hold(
            "heartbeat p99 with hostile peers to that with them elsewhere",
            hostile.and_then(HostileShare::worst_p99_ratio),
            self.hostile_p99_ratio,
        );
        hold(
            "bytes that hostile peers made the gateway hold",
            hostile.map(|hostile| hostile.most_memory() as f64),
            self.hostile_memory_bytes.map(|bytes| bytes as f64),
        );
        let gateway = &report.gateway;
        hold(
            "gateway RSS bytes",
            gateway.rss_bytes_max.map(|bytes| bytes as f64),
            Some(self.rss_bytes as f64),
        );
        hold(
            "gateway RSS bytes a session",
            gateway.rss_per_session_bytes,
            self.rss_per_session_bytes.map(|bytes| bytes as f64),
        );
        hold("gateway RSS growth", gateway.rss_growth_ratio, self.rss_growth_ratio);
        hold("gateway CPU % of a core", gateway.cpu_percent, self.cpu_percent);
        hold("commands lost", Some(report.commands.lost as f64), Some(0.0));
        hold("commands doubled", Some(report.commands.duplicated as f64), Some(0.0));
        hold("violations", Some(report.verify.violations.len() as f64), Some(0.0));
        if let Some(stall_ms) = report.injected_stall_ms {
            let longest = report.dispatch_ms.as_ref().map_or(0.0, |ms| ms.max);
            // A command need not come at the stall's very first moment.
            if longest < 0.7 * stall_ms {
                missed
                    .push(format!("a stall of {stall_ms} ms does not show: dispatch max is {longest:.3} ms"));
            }
        }
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Percentiles;

    fn sound() -> Report {
        let ms = Percentiles { p50: 1.0, p90: 2.0, p99: 4.0, p999: 5.0, max: 6.0 };
        let mut report = Report { dispatch_ms: Some(ms), ..Report::default() };
        report.gateway.rss_bytes_max = Some(1 << 20);
        report
    }

    #[test]
    fn a_sound_run_misses_nothing() {
        assert_eq!(GateBounds::contract().missed(&sound()), Vec::<String>::new());
    }

    #[test]
    fn each_miss_is_named_with_its_figure() {
        let mut report = sound();
        report.drops = 2;
        report.commands.lost = 1;
        report.injected_stall_ms = Some(100.0);
        report.gateway.rss_bytes_max = None;
        let missed = GateBounds { dispatch_p50_ms: Some(0.5), ..GateBounds::contract() }.missed(&report);
        for what in
            ["dispatch p50 ms 1.000", "drops 2", "RSS bytes was not measured", "lost 1", "does not show"]
        {
            assert!(missed.iter().any(|sentence| sentence.contains(what)), "{what} in {missed:?}");
        }
        assert_eq!(missed.len(), 5);
    }
}
