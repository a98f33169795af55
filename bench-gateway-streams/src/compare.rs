//! `compare`: two reports side by side, and which figures are worse.
//!
//! 1. Only what is measured of a gateway is judged. Yardsticks, counts and the load's own figures are shown.
//! 2. A figure that one of the reports does not have is named, never judged.
//! 3. A count that must be 0 and was is worse as soon as it is not.

use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use crate::arguments::CompareArguments;
use crate::progress::print;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
    /// Shown alone.
    Neither,
}

use Better::{Less, More, Neither};

/// Figures by their place in a report. Of latencies, each percentile.
const FIGURES: [(&str, Better); 43] = [
    ("/dispatch_ms/p50", Less),
    ("/dispatch_ms/p90", Less),
    ("/dispatch_ms/p99", Less),
    ("/dispatch_ms/p999", Less),
    ("/dispatch_ms/max", Neither),
    ("/completion_ms/p50", Less),
    ("/completion_ms/p99", Less),
    ("/completion_ms/max", Neither),
    ("/fanout_ms/p50", Less),
    ("/fanout_ms/p99", Less),
    ("/fanout_ms/max", Less),
    ("/heartbeat_ms/p99", Less),
    ("/floor_ms/p99", Neither),
    ("/dispatch_p99_to_floor", Less),
    ("/fanout_all_to_bare", Less),
    ("/storm_all_to_bare", Less),
    ("/window_p99_ratio", Less),
    ("/drops", Less),
    ("/commands/lost", Less),
    ("/commands/duplicated", Less),
    ("/gateway/rss_bytes_max", Less),
    ("/gateway/rss_per_session_bytes", Less),
    ("/gateway/rss_growth_ratio", Less),
    ("/gateway/cpu_percent", Less),
    ("/storm/p50_ms", Less),
    ("/storm/p95_ms", Less),
    ("/storm/all_ms", Less),
    ("/storm/bare_handshakes_ms", Neither),
    ("/storm/bare_streams_ms", Neither),
    ("/throughput/commands_per_s", More),
    ("/throughput/events_per_s", More),
    ("/throughput/writer_commands_per_s", More),
    ("/throughput/writer_events_per_s", More),
    ("/throughput/bare_sql_commands_per_s", Neither),
    ("/throughput/bare_sql_events_per_s", Neither),
    ("/multi/rehome_ms/p99", Less),
    ("/micro/frame-to-mail", Less),
    ("/micro/command-to-frame", Less),
    ("/micro/command-to-bytes", Less),
    ("/micro/plan-500", Less),
    ("/micro/plan-5000", Less),
    ("/load/cpu_percent", Neither),
    ("/load/lag_ms_p99", Neither),
];

/// One figure of both.
#[derive(Debug, Clone, PartialEq)]
struct Compared {
    name: String,
    before: f64,
    after: f64,
    /// By which factor it is worse; below 1 it is better. `None`: not judged.
    worse_by: Option<f64>,
}

/// Prints the ratios; false if one is worse by more than what was asked for.
pub(crate) fn run(arguments: &CompareArguments) -> anyhow::Result<bool> {
    let (before, after) = (read(&arguments.before)?, read(&arguments.after)?);
    if before["scenario"] != after["scenario"] {
        anyhow::bail!(
            "a report of {} can't be held against one of {}",
            before["scenario"],
            after["scenario"]
        );
    }
    for key in ["sessions", "commands_per_second", "heartbeat_s", "machine"] {
        if before[key] != after[key] {
            print(&format!("not the same {key}: {} and {}", before[key], after[key]));
        }
    }
    let (compared, only_one) = compare(&before, &after);
    print(&format!("  {:<40}{:>14}{:>14}{:>10}", "figure", "before", "after", "ratio"));
    let mut worse = Vec::new();
    for one in &compared {
        let ratio = match one.before {
            0.0 => "-".to_owned(),
            before => format!("x {:.3}", one.after / before),
        };
        let is_worse = arguments.fail_over.zip(one.worse_by).is_some_and(|(most, by)| by > most);
        let mark = if is_worse { "  WORSE" } else { "" };
        print(&format!("  {:<40}{:>14.3}{:>14.3}{ratio:>10}{mark}", one.name, one.before, one.after));
        if is_worse {
            worse.push(one.name.as_str());
        }
    }
    for name in only_one {
        print(&format!("  {name:<40} is in one of them alone"));
    }
    if let (Some(most), false) = (arguments.fail_over, worse.is_empty()) {
        print(&format!("worse by more than x {most}: {}", worse.join(", ")));
    }
    Ok(worse.is_empty())
}

/// A report, as it was written.
pub(crate) fn read(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no report", path.display()))
}

fn compare(before: &Value, after: &Value) -> (Vec<Compared>, Vec<String>) {
    let (mut both, mut only_one) = (Vec::new(), Vec::new());
    for (place, better) in FIGURES {
        let name = place.trim_start_matches('/').replace('/', ".");
        let of = |report: &Value| report.pointer(place).and_then(Value::as_f64);
        match (of(before), of(after)) {
            (Some(before), Some(after)) => {
                both.push(Compared { name, before, after, worse_by: worse_by(better, before, after) });
            }
            (None, None) => {}
            _ => only_one.push(name),
        }
    }
    (both, only_one)
}

fn worse_by(better: Better, before: f64, after: f64) -> Option<f64> {
    let (good, bad) = match better {
        Less => (before, after),
        More => (after, before),
        Neither => return None,
    };
    Some(match good {
        0.0 if bad == 0.0 => 1.0,
        0.0 => f64::INFINITY,
        good => bad / good,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_worse_depends_on_what_is_measured() {
        let before =
            json!({"dispatch_ms": {"p99": 4.0}, "throughput": {"commands_per_s": 1000.0}, "drops": 0});
        let after = json!({"dispatch_ms": {"p99": 6.0}, "throughput": {"commands_per_s": 500.0}, "drops": 0,
                           "load": {"cpu_percent": 9.0}});
        let (both, only_one) = compare(&before, &after);
        let by: Vec<(&str, Option<f64>)> = both.iter().map(|one| (one.name.as_str(), one.worse_by)).collect();
        assert_eq!(
            by,
            [("dispatch_ms.p99", Some(1.5)), ("drops", Some(1.0)), ("throughput.commands_per_s", Some(2.0))]
        );
        assert_eq!(only_one, ["load.cpu_percent"]);
        assert_eq!(worse_by(Less, 0.0, 1.0), Some(f64::INFINITY));
        assert_eq!(worse_by(Neither, 1.0, 9.0), None);
    }
}
