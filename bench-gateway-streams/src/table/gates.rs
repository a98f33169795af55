//! The gates of the project: what is promised, what is aimed at, and where in which report the figure is.
//!
//! It holds data alone. A figure counts only with the sessions that its gate is about. A bound here is one that a plan of configs/bench/ asks for too, or the goal beyond it.

/// A bound on one figure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) report: &'static str,
    pub(super) place: &'static str,
    bound: f64,
    is_least: bool,
}

impl Limit {
    pub(super) fn holds(&self, figure: f64) -> bool {
        if self.is_least { figure >= self.bound } else { figure <= self.bound }
    }
}

const fn at_most(report: &'static str, place: &'static str, bound: f64) -> Limit {
    Limit { report, place, bound, is_least: false }
}

const fn at_least(report: &'static str, place: &'static str, bound: f64) -> Limit {
    Limit { report, place, bound, is_least: true }
}

/// A figure as it is shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figure {
    pub(super) report: &'static str,
    pub(super) place: &'static str,
    words: &'static str,
    unit: Unit,
}

#[derive(Debug, Clone, Copy)]
enum Unit {
    Milliseconds,
    Kibibytes,
    Mebibytes,
    /// As it is, without a fraction.
    Count,
    /// Between logarithms: 0 where a cost stays as it is.
    Slope,
    Ratio,
}

impl Figure {
    pub(super) fn shown(&self, figure: f64) -> String {
        let words = self.words;
        match self.unit {
            Unit::Milliseconds if figure < 100.0 => format!("{words} {figure:.2} ms"),
            Unit::Milliseconds => format!("{words} {figure:.0} ms"),
            Unit::Kibibytes => format!("{:.1} KiB {words}", figure / 1024.0),
            Unit::Mebibytes => format!("{:.0} MiB {words}", figure / f64::from(1 << 20)),
            Unit::Count => format!("{figure:.0} {words}"),
            Unit::Slope => format!("{words} {figure:.3}"),
            Unit::Ratio => format!("{words} x {figure:.3}"),
        }
    }
}

const fn shown(report: &'static str, place: &'static str, words: &'static str, unit: Unit) -> Figure {
    Figure { report, place, words, unit }
}

/// One gate.
#[derive(Debug)]
pub(super) struct GateRow {
    pub(super) name: &'static str,
    pub(super) contract_words: &'static str,
    pub(super) contract: &'static [Limit],
    pub(super) goal_words: &'static str,
    pub(super) goal: &'static [Limit],
    pub(super) figures: &'static [Figure],
    /// Ratios to yardsticks: report and place.
    pub(super) ratios: &'static [(&'static str, &'static str)],
}

/// What an operation costs as an axis grows: it stays, or rises linearly at most.
const fn growth(name: &'static str, contract: &'static [Limit], figures: &'static [Figure]) -> GateRow {
    GateRow {
        name,
        contract_words: "slope ≤ 0.05",
        contract,
        goal_words: "–",
        goal: &[],
        figures,
        ratios: &[],
    }
}

const SLOPE: &str = "/growth/slope";
const MOST_SLOPE: f64 = 0.05;
const MIB: f64 = 1_048_576.0;

pub(super) const GATES: [GateRow; 17] = [
    GateRow {
        name: "sessions held by one gateway, 10 s heartbeats",
        contract_words: "5,000, 0 drops",
        contract: &[at_least("steady", "/sessions", 5000.0), at_most("steady", "/drops", 0.0)],
        goal_words: "15,000, 0 drops",
        goal: &[at_least("sessions-15000", "/sessions", 15_000.0), at_most("sessions-15000", "/drops", 0.0)],
        figures: &[
            shown("steady", "/sessions", "held", Unit::Count),
            shown("steady", "/drops", "drops", Unit::Count),
            shown("sessions-15000", "/sessions", "held", Unit::Count),
            shown("sessions-15000", "/drops", "drops", Unit::Count),
        ],
        ratios: &[],
    },
    GateRow {
        name: "dispatch at 5,000 sessions, 50 commands/s",
        contract_words: "p99 < 500 ms",
        contract: &[
            at_least("steady-goal", "/sessions", 5000.0),
            at_most("steady-goal", "/dispatch_ms/p99", 500.0),
        ],
        goal_words: "p50 ≤ 1.2 ms, p99 ≤ 5 ms, ≤ 3 x the floor",
        goal: &[
            at_least("steady-goal", "/sessions", 5000.0),
            at_most("steady-goal", "/dispatch_ms/p50", 1.2),
            at_most("steady-goal", "/dispatch_ms/p99", 5.0),
            at_most("steady-goal", "/dispatch_p99_to_floor", 3.0),
        ],
        figures: &[
            shown("steady-goal", "/dispatch_ms/p50", "p50", Unit::Milliseconds),
            shown("steady-goal", "/dispatch_ms/p99", "p99", Unit::Milliseconds),
        ],
        ratios: &[("steady-goal", "/dispatch_p99_to_floor")],
    },
    GateRow {
        name: "gateway RSS at 5,000 sessions",
        contract_words: "< 2 GiB",
        contract: &[
            at_least("steady-goal", "/sessions", 5000.0),
            at_most("steady-goal", "/gateway/rss_bytes_max", 2048.0 * MIB),
        ],
        goal_words: "under 20 KiB a session",
        goal: &[
            at_least("steady-goal", "/sessions", 5000.0),
            at_most("steady-goal", "/gateway/rss_per_session_bytes", 20.0 * 1024.0),
        ],
        figures: &[
            shown("steady-goal", "/gateway/rss_bytes_max", "at most", Unit::Mebibytes),
            shown("steady-goal", "/gateway/rss_per_session_bytes", "a session", Unit::Kibibytes),
        ],
        ratios: &[],
    },
    GateRow {
        name: "5,000 sessions, minute 5 to minute 30",
        contract_words: "held, 0 drops",
        contract: &[at_least("steady-30min", "/sessions", 5000.0), at_most("steady-30min", "/drops", 0.0)],
        goal_words: "RSS growth ≤ 1 %",
        goal: &[
            at_least("steady-30min", "/duration_s", 1790.0),
            at_most("steady-30min", "/gateway/rss_growth_ratio", 1.01),
        ],
        figures: &[
            shown("steady-30min", "/gateway/rss_growth_ratio", "RSS", Unit::Ratio),
            shown("steady-30min", "/drops", "drops", Unit::Count),
        ],
        ratios: &[],
    },
    GateRow {
        name: "storm of 5,000 by cut, admission wide open",
        contract_words: "39 s",
        contract: &[at_least("storm", "/sessions", 5000.0), at_most("storm", "/storm/all_ms", 39_000.0)],
        goal_words: "≤ 2 x the bare handshakes",
        goal: &[at_least("storm", "/sessions", 5000.0), at_most("storm", "/storm_all_to_bare", 2.0)],
        figures: &[
            shown("storm", "/storm/all_ms", "all back after", Unit::Milliseconds),
            shown("storm", "/storm/bare_handshakes_ms", "bare", Unit::Milliseconds),
            shown("storm", "/storm/bare_streams_ms", "bare with a stream each", Unit::Milliseconds),
        ],
        ratios: &[("storm", "/storm_all_to_bare")],
    },
    GateRow {
        name: "storm of 5,000 at the default 200/s",
        contract_words: "–",
        contract: &[],
        goal_words: "≤ 27 s",
        goal: &[
            at_least("storm-default", "/sessions", 5000.0),
            at_most("storm-default", "/storm/all_ms", 27_000.0),
        ],
        figures: &[shown("storm-default", "/storm/all_ms", "all back after", Unit::Milliseconds)],
        ratios: &[],
    },
    GateRow {
        name: "fan-out of one command to each of 5,000",
        contract_words: "–",
        contract: &[],
        goal_words: "≤ 2 x the bare push",
        goal: &[at_least("fanout", "/sessions", 5000.0), at_most("fanout", "/fanout_all_to_bare", 2.0)],
        figures: &[
            shown("fanout", "/fanout_ms/p50", "p50", Unit::Milliseconds),
            shown("fanout", "/fanout_ms/p99", "p99", Unit::Milliseconds),
            shown("fanout", "/fanout_ms/max", "max", Unit::Milliseconds),
        ],
        ratios: &[("fanout", "/fanout_all_to_bare")],
    },
    GateRow {
        name: "commands/s durable end to end, over sockets",
        contract_words: "–",
        contract: &[],
        goal_words: "≥ 10,000",
        goal: &[at_least("throughput", "/throughput/commands_per_s", 10_000.0)],
        figures: &[
            shown("throughput", "/throughput/commands_per_s", "commands/s", Unit::Count),
            shown("throughput", "/throughput/events_per_s", "events/s", Unit::Count),
            shown("throughput", "/throughput/sections_per_s", "sections/s", Unit::Count),
        ],
        ratios: &[],
    },
    GateRow {
        name: "the writer alone, commands/s",
        contract_words: "–",
        contract: &[],
        goal_words: "≥ 60 % of bare SQL",
        goal: &[at_least("throughput", "/writer_commands_to_bare", 0.6)],
        figures: &[
            shown("throughput", "/throughput/writer_commands_per_s", "by the writer", Unit::Count),
            shown("throughput", "/throughput/bare_sql_commands_per_s", "by bare SQL", Unit::Count),
        ],
        ratios: &[("throughput", "/writer_commands_to_bare")],
    },
    GateRow {
        name: "the writer alone, events/s",
        contract_words: "–",
        contract: &[],
        goal_words: "≥ 60 % of bare SQL",
        goal: &[at_least("throughput", "/writer_events_to_bare", 0.6)],
        figures: &[
            shown("throughput", "/throughput/writer_events_per_s", "by the writer", Unit::Count),
            shown("throughput", "/throughput/bare_sql_events_per_s", "by bare SQL", Unit::Count),
        ],
        ratios: &[("throughput", "/writer_events_to_bare")],
    },
    GateRow {
        name: "bloat: the last minute's p99 to the first's",
        contract_words: "–",
        contract: &[],
        goal_words: "≤ 1.5, 100,000 commands later",
        goal: &[
            at_most("bloat", "/window_p99_ratio", 1.5),
            at_least("bloat", "/commands/succeeded", 100_000.0),
        ],
        figures: &[
            shown("bloat", "/window_p99_ratio", "p99", Unit::Ratio),
            shown("bloat", "/commands/succeeded", "commands", Unit::Count),
            shown("bloat", "/bloat/dead_rows", "dead rows", Unit::Count),
        ],
        ratios: &[],
    },
    GateRow {
        name: "three gateways, one killed, 1,000 nodes",
        contract_words: "re-homed p99 1 s",
        contract: &[at_least("multi", "/sessions", 1000.0), at_most("multi", "/multi/rehome_ms/p99", 1000.0)],
        goal_words: "≤ 1 s",
        goal: &[at_least("multi", "/sessions", 1000.0), at_most("multi", "/multi/rehome_ms/p99", 1000.0)],
        figures: &[shown("multi", "/multi/rehome_ms/p99", "p99", Unit::Milliseconds)],
        ratios: &[],
    },
    GateRow {
        name: "the same with 10,000 nodes",
        contract_words: "–",
        contract: &[],
        goal_words: "≤ 5 s (13.25 s is to beat)",
        goal: &[
            at_least("multi-10000", "/sessions", 10_000.0),
            at_most("multi-10000", "/multi/rehome_ms/p99", 5000.0),
        ],
        figures: &[shown("multi-10000", "/multi/rehome_ms/p99", "p99", Unit::Milliseconds)],
        ratios: &[],
    },
    growth(
        "1,000 to 15,000 sessions: CPU of a heartbeat",
        &[at_most("growth-sessions", SLOPE, MOST_SLOPE)],
        &[shown("growth-sessions", SLOPE, "slope", Unit::Slope)],
    ),
    growth(
        "10 to 10,000 commands/s: CPU of a command",
        &[at_most("growth-rate", SLOPE, MOST_SLOPE)],
        &[shown("growth-rate", SLOPE, "slope", Unit::Slope)],
    ),
    growth(
        "1 to 5,000 nodes with a backlog: CPU of a command",
        &[at_most("growth-backlog", SLOPE, MOST_SLOPE)],
        &[shown("growth-backlog", SLOPE, "slope", Unit::Slope)],
    ),
    growth(
        "10,000 to 10,000,000 finished commands: buffers of a command",
        &[at_most("growth-table", SLOPE, MOST_SLOPE)],
        &[shown("growth-table", SLOPE, "slope", Unit::Slope)],
    ),
];
