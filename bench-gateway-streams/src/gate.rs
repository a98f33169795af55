//! The gates: bounds that a run must keep, and the figures that missed them.
//!
//! 1. A gate without its figure is missed, not passed.
//! 2. Lost or doubled commands, and an injected stall that does not show, miss every gate.

use serde::Serialize;

use crate::report::{FanoutShare, HostileShare, Report, StormShare, ThroughputShare};

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
    /// Until every node has the command, to the bare push.
    pub(crate) fanout_all_to_bare: Option<f64>,
    /// At least.
    pub(crate) commands_per_s: Option<f64>,
    /// At least.
    pub(crate) writer_commands_to_bare: Option<f64>,
    /// At least.
    pub(crate) writer_events_to_bare: Option<f64>,
    /// Dispatch p99 of the last window to that of the first.
    pub(crate) window_p99_ratio: Option<f64>,
    /// How fast the cost of an operation may rise along an axis, between logarithms.
    pub(crate) growth_slope: Option<f64>,
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
            fanout_all_to_bare: None,
            commands_per_s: None,
            writer_commands_to_bare: None,
            writer_events_to_bare: None,
            window_p99_ratio: None,
            growth_slope: None,
        }
    }

    /// What is promised of a run with a fault in it: sessions end, and latencies span the fault.
    pub(crate) fn of_a_fault() -> Self {
        Self { dispatch_p99_ms: None, drops: None, ..Self::contract() }
    }

    /// Every figure of `report` that has a bound.
    pub(crate) fn checks(&self, report: &Report) -> Vec<Check> {
        let mut checks = Checks::default();
        self.check_latencies(report, &mut checks);
        self.check_faults(report, &mut checks);
        self.check_rates(report, &mut checks);
        self.check_growth(report, &mut checks);
        self.check_gateway(report, &mut checks);
        let commands = &report.commands;
        checks.at_most("commands lost", Some(commands.lost as f64), Some(0.0));
        checks.at_most("commands doubled", Some(commands.duplicated as f64), Some(0.0));
        checks.at_most("violations", Some(report.verify.violations.len() as f64), Some(0.0));
        checks.0
    }

    fn check_latencies(&self, report: &Report, checks: &mut Checks) {
        let dispatch = report.dispatch_ms.as_ref();
        checks.at_most("dispatch p50 ms", dispatch.map(|ms| ms.p50), self.dispatch_p50_ms);
        checks.at_most("dispatch p99 ms", dispatch.map(|ms| ms.p99), self.dispatch_p99_ms);
        checks.at_most(
            "dispatch p99 to the floor's",
            report.dispatch_p99_to_floor(),
            self.dispatch_p99_to_floor,
        );
        checks.at_most(
            "dispatch p99 of the last window to the first's",
            report.window_p99_ratio(),
            self.window_p99_ratio,
        );
        if let Some(stall_ms) = report.injected_stall_ms {
            // A command need not come at the stall's very first moment.
            checks.at_least(
                &format!("a stall of {stall_ms} ms in the longest dispatch, ms"),
                dispatch.map(|ms| ms.max),
                Some(0.7 * stall_ms),
            );
        }
        let fanout = report.fanout.as_ref();
        checks.at_most(
            "fan-out, until all have it, to the bare push",
            fanout.and_then(FanoutShare::all_to_bare),
            self.fanout_all_to_bare,
        );
        if let Some(fanout) = fanout {
            checks.at_most("nodes that a fan-out did not reach", Some(fanout.missing as f64), Some(0.0));
        }
    }

    fn check_faults(&self, report: &Report, checks: &mut Checks) {
        checks.at_most("drops", Some(report.drops as f64), self.drops.map(|drops| drops as f64));
        let (storm, multi) = (report.storm.as_ref(), report.multi.as_ref());
        checks.at_most(
            "storm, until all are back, ms",
            storm.and_then(|storm| storm.all_ms),
            self.storm_all_ms,
        );
        checks.at_most(
            "storm, to the bare handshakes",
            storm.and_then(StormShare::all_to_bare),
            self.storm_all_to_bare,
        );
        checks.at_most(
            "re-homing p99 ms",
            multi.and_then(|multi| multi.rehome_ms).map(|ms| ms.p99),
            self.rehome_p99_ms,
        );
        if let Some(multi) = multi {
            checks.at_most(
                "sessions lost on gateways that live",
                Some(multi.lost_elsewhere as f64),
                Some(0.0),
            );
            let cut = multi.exit_ms.map(|_| multi.cut as f64);
            checks.at_most("sessions cut by a drain", cut, cut.map(|_| 0.0));
        }
        let hostile = report.hostile.as_ref();
        checks.at_most(
            "heartbeat p99 with hostile peers to that with them elsewhere",
            hostile.and_then(HostileShare::worst_p99_ratio),
            self.hostile_p99_ratio,
        );
        checks.at_most(
            "bytes that hostile peers made the gateway hold",
            hostile.map(|hostile| hostile.most_memory() as f64),
            self.hostile_memory_bytes.map(|bytes| bytes as f64),
        );
    }

    fn check_rates(&self, report: &Report, checks: &mut Checks) {
        let throughput = report.throughput.as_ref();
        checks.at_least(
            "commands/s, end to end",
            throughput.and_then(|throughput| throughput.commands_per_s),
            self.commands_per_s,
        );
        checks.at_least(
            "the writer's commands/s to those of bare SQL",
            throughput.and_then(ThroughputShare::writer_commands_to_bare),
            self.writer_commands_to_bare,
        );
        checks.at_least(
            "the writer's events/s to those of bare SQL",
            throughput.and_then(ThroughputShare::writer_events_to_bare),
            self.writer_events_to_bare,
        );
    }

    fn check_growth(&self, report: &Report, checks: &mut Checks) {
        let growth = report.growth.as_ref();
        checks.at_most(
            "slope of the cost of an operation, between logarithms",
            growth.and_then(|growth| growth.slope),
            self.growth_slope,
        );
    }

    fn check_gateway(&self, report: &Report, checks: &mut Checks) {
        let gateway = &report.gateway;
        checks.at_most(
            "gateway RSS bytes",
            gateway.rss_bytes_max.map(|bytes| bytes as f64),
            Some(self.rss_bytes as f64),
        );
        checks.at_most(
            "gateway RSS bytes a session",
            gateway.rss_per_session_bytes,
            self.rss_per_session_bytes.map(|bytes| bytes as f64),
        );
        checks.at_most("gateway RSS growth", gateway.rss_growth_ratio, self.rss_growth_ratio);
        checks.at_most("gateway CPU % of a core", gateway.cpu_percent, self.cpu_percent);
    }
}

/// A figure and its bound.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Check {
    pub(crate) what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) figure: Option<f64>,
    pub(crate) bound: f64,
    /// Whether the figure must be at least the bound, not at most.
    pub(crate) is_least: bool,
}

impl Check {
    /// Why it misses, as a sentence; `None`: it holds.
    pub(crate) fn miss(&self) -> Option<String> {
        let Self { what, figure, bound, is_least } = self;
        let Some(figure) = *figure else { return Some(format!("{what} was not measured")) };
        // A figure that is no number holds nothing.
        let (holds, side) = match is_least {
            true => (figure >= *bound, "under"),
            false => (figure <= *bound, "over"),
        };
        (!holds).then(|| format!("{what} {figure:.3} is {side} {bound:.3}"))
    }
}

#[derive(Debug, Default)]
struct Checks(Vec<Check>);

impl Checks {
    fn at_most(&mut self, what: &str, figure: Option<f64>, bound: Option<f64>) {
        self.add(what, figure, bound, false);
    }

    fn at_least(&mut self, what: &str, figure: Option<f64>, bound: Option<f64>) {
        self.add(what, figure, bound, true);
    }

    fn add(&mut self, what: &str, figure: Option<f64>, bound: Option<f64>, is_least: bool) {
        let Some(bound) = bound else { return };
        self.0.push(Check { what: what.to_owned(), figure, bound, is_least });
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

    fn missed(bounds: &GateBounds, report: &Report) -> Vec<String> {
        bounds.checks(report).iter().filter_map(Check::miss).collect()
    }

    #[test]
    fn a_sound_run_misses_nothing() {
        assert_eq!(missed(&GateBounds::contract(), &sound()), Vec::<String>::new());
    }

    #[test]
    fn a_rate_must_be_reached_and_a_figure_that_is_no_number_holds_nothing() {
        let check = |figure, is_least| Check { what: "x".to_owned(), figure, bound: 10.0, is_least };
        assert_eq!(check(Some(10.0), true).miss(), None);
        assert!(check(Some(9.0), true).miss().is_some_and(|sentence| sentence.contains("is under 10")));
        assert!(check(Some(11.0), false).miss().is_some_and(|sentence| sentence.contains("is over 10")));
        assert!(
            check(Some(f64::NAN), true).miss().is_some() && check(Some(f64::NAN), false).miss().is_some()
        );
        assert!(check(None, true).miss().is_some_and(|sentence| sentence.contains("not measured")));
    }

    #[test]
    fn each_miss_is_named_with_its_figure() {
        let mut report = sound();
        report.drops = 2;
        report.commands.lost = 1;
        report.injected_stall_ms = Some(100.0);
        report.gateway.rss_bytes_max = None;
        let missed = missed(&GateBounds { dispatch_p50_ms: Some(0.5), ..GateBounds::contract() }, &report);
        for what in
            ["dispatch p50 ms 1.000", "drops 2", "RSS bytes was not measured", "lost 1", "a stall of 100 ms"]
        {
            assert!(missed.iter().any(|sentence| sentence.contains(what)), "{what} in {missed:?}");
        }
        assert_eq!(missed.len(), 5);
    }
}
