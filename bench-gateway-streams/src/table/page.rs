//! The page that `scripts/bench` leaves: the table with machine, commit, settings and commands, what an operation costs as
//! its axis grows, and the plots that a person would look at.
//!
//! 1. It shows what reports hold and measures nothing.
//! 2. Its plots are copies in a folder beside it, so that it shows the same wherever it is read.

use std::fmt::Write as _;
use std::path::Path;
use std::time::SystemTime;

use anyhow::Context;
use serde_json::Value;

use super::{Judged, Reports, Word};

/// Beside the page.
const PLOTS_FOLDER: &str = "benchmarks";
/// Of each plan's plots the one that tells most: plan, plot, words.
const SHOWN: [(&str, &str, &str); 7] = [
    ("growth-sessions", "growth", "the gateway's CPU for a heartbeat as sessions grow"),
    ("growth-rate", "growth", "the gateway's CPU for a command as the rate grows"),
    ("growth-backlog", "growth", "the gateway's CPU for a command as nodes with a backlog grow"),
    ("growth-table", "growth", "buffers for a command as the table of finished commands grows"),
    ("sessions-15000", "latency", "dispatch latency at 15,000 sessions"),
    ("steady-30min", "rss", "memory over 30 minutes at 5,000 sessions"),
    ("bloat", "latency", "dispatch latency while nothing can be vacuumed"),
];

/// A plot that the page shows.
#[derive(Debug)]
pub(super) struct Plot {
    file: String,
    words: &'static str,
}

/// Copies the plots of `reports` that the page shows beside it.
pub(super) fn copy_plots(folder: &Path, page: &Path, reports: &Reports) -> anyhow::Result<Vec<Plot>> {
    let beside = page.with_file_name(PLOTS_FOLDER);
    let mut plots = Vec::new();
    for (plan, plot, words) in SHOWN {
        let file = format!("{plan}-{plot}.svg");
        if !reports.contains_key(plan) || !folder.join(&file).is_file() {
            continue;
        }
        std::fs::create_dir_all(&beside).with_context(|| format!("making {}", beside.display()))?;
        let copied = std::fs::copy(folder.join(&file), beside.join(&file));
        copied.with_context(|| format!("copying {file} to {}", beside.display()))?;
        plots.push(Plot { file, words });
    }
    Ok(plots)
}

/// The points of an axis; nothing where the report has none.
fn growth(name: &str, growth: &Value) -> String {
    let (mut text, mut head) = (String::new(), String::new());
    let (Some(points), Some(axis)) = (growth["points"].as_array(), growth["axis"].as_str()) else {
        return text;
    };
    let (mut line, mut cost, mut p99) = (String::new(), String::new(), String::new());
    for point in points {
        let of =
            |name: &str| point[name].as_f64().map_or_else(|| "-".to_owned(), |figure| format!("{figure:.1}"));
        let note = if point["is_saturated"] == true { " (not reached)" } else { "" };
        let _ = write!(head, " {}{note} |", point["asked"]);
        line.push_str("---|");
        let _ = write!(cost, " {} |", of("y"));
        let _ = write!(p99, " {} |", of("p99_ms"));
    }
    let measure = growth["measure"].as_str().unwrap_or_default();
    let _ =
        writeln!(text, "| `{name}`: {axis} |{head}\n|---|{line}\n| {measure} |{cost}\n| p99, ms |{p99}\n");
    text
}

/// All of it.
pub(super) fn page(rows: &[Judged], reports: &Reports, unsound: &[String], plots: &[Plot]) -> String {
    let mut page =
        String::from("# Benchmarks\n\nWritten by `scripts/bench`; how to read it is in the README.\n\n");
    let any = reports.values().find(|report| report.get("database").is_some()).unwrap_or(&Value::Null);
    let (machine, text) = (&any["machine"], |value: &Value| value.as_str().unwrap_or("unknown").to_owned());
    let gib = machine["memory_bytes"].as_f64().unwrap_or_default() / f64::from(1 << 30);
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let _ = writeln!(
        page,
        "- Date: {}\n- Machine: {} x {}, {gib:.0} GiB, Linux {}; gateway, PostgreSQL and load share it\n- Commit: {}",
        date.split('T').next().unwrap_or_default(),
        machine["cpus"],
        text(&machine["model"]),
        text(&machine["kernel"]),
        text(&any["commit"]),
    );
    let settings: Vec<String> = any["database"]["settings"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|pair| format!("{}={}", text(&pair[0]), text(&pair[1])))
        .collect();
    let _ = writeln!(page, "- PostgreSQL: {}\n", settings.join(" "));
    page.push_str("| gate | contract | goal | measured | to the yardstick |\n|---|---|---|---|---|\n");
    for Judged { gate, contract, goal, measured, ratio } in rows {
        let bound = |words: &str, word: &Word| match word {
            Word::None => words.to_owned(),
            word => format!("{words}: **{}**", word.word()),
        };
        let (contract, goal) = (bound(gate.contract_words, contract), bound(gate.goal_words, goal));
        let _ = writeln!(page, "| {} | {contract} | {goal} | {measured} | {ratio} |", gate.name);
    }
    page.push('\n');
    for line in unsound {
        let _ = writeln!(page, "**{}**\n", line.trim());
    }
    for (name, report) in reports {
        page.push_str(&growth(name, &report["growth"]));
    }
    for Plot { file, words } in plots {
        let _ = writeln!(page, "![{words}]({PLOTS_FOLDER}/{file})\n");
    }
    page.push_str("Each figure is of one run of its plan, so that it can be repeated:\n\n```\n");
    for (name, report) in reports {
        let scenario = text(&report["scenario"]);
        let _ = match scenario.as_str() {
            "micro" => writeln!(page, "bench-gateway-streams micro --baseline configs/bench/micro.json"),
            _ => writeln!(page, "bench-gateway-streams {scenario} --config configs/bench/{name}.toml"),
        };
    }
    page.push_str("```\n");
    page
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plot_is_copied_beside_the_page_and_the_points_of_its_axis_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let reports = folder.path().join("reports");
        std::fs::create_dir(&reports).unwrap();
        std::fs::write(reports.join("growth-rate-growth.svg"), "<svg/>").unwrap();
        std::fs::write(reports.join("bloat-latency.svg"), "<svg/>").unwrap();
        let points = json!([{"asked": 10, "y": 33.34, "p99_ms": 2.0}, {"asked": 10_000, "y": 30.0, "is_saturated": true}]);
        let report = json!({"growth": {"axis": "rate", "measure": "us", "points": points}});
        let read: Reports = [("growth-rate".to_owned(), report)].into();
        let page_file = folder.path().join("page.md");
        let plots = copy_plots(&reports, &page_file, &read).unwrap();
        assert!(folder.path().join("benchmarks/growth-rate-growth.svg").is_file());
        assert_eq!(plots.len(), 1, "a plot without its report is of another run: {plots:?}");
        let text = page(&[], &read, &[], &plots);
        assert!(text.contains("(benchmarks/growth-rate-growth.svg)"), "{text}");
        assert!(text.contains("| `growth-rate`: rate | 10 | 10000 (not reached) |"), "{text}");
        assert!(text.contains("| us | 33.3 | 30.0 |") && text.contains("| p99, ms | 2.0 | - |"), "{text}");
    }
}
