//! `table`: the project's gates as one table, out of a folder of reports. What `scripts/bench` ends with.
//!
//! 1. A report is named as its plan; one that is missing, or whose figure is, is a gate not measured.
//! 2. It fails where a contract misses or a run was not sound. A goal that misses is told, and fails nothing.
//! 3. A page that it writes says machine, commit, commands and date beside the figures.

mod gates;
mod page;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use self::gates::{GATES, GateRow, Limit};
use crate::arguments::TableArguments;
use crate::progress::{print, say};

type Reports = BTreeMap<String, Value>;

/// Prints the table, and writes the page; true if every contract held.
pub(crate) fn run(arguments: &TableArguments) -> anyhow::Result<bool> {
    let reports = read_all(&arguments.folder)?;
    let rows: Vec<Judged> = GATES.iter().map(|gate| Judged::of(gate, &reports)).collect();
    print(&format!(
        "  {:<62}{:<14}{:<14}{:<60} {}",
        "gate", "contract", "goal", "measured", "to the yardstick"
    ));
    for row in &rows {
        print(&format!(
            "  {:<62}{:<14}{:<14}{:<60} {}",
            row.gate.name,
            row.contract.word(),
            row.goal.word(),
            row.measured,
            row.ratio
        ));
    }
    let unsound = unsound(&reports);
    unsound.iter().for_each(|line| print(line));
    if let Some(path) = &arguments.markdown {
        let plots = page::copy_plots(&arguments.folder, path, &reports)?;
        let page = page::page(&rows, &reports, &unsound, &plots);
        std::fs::write(path, page).with_context(|| format!("writing {}", path.display()))?;
        say(&format!("page: {}", path.display()));
    }
    Ok(unsound.is_empty() && rows.iter().all(|row| row.contract != Word::Missed))
}

fn read_all(folder: &Path) -> anyhow::Result<Reports> {
    let mut reports = Reports::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let report =
            serde_json::from_str(&text).with_context(|| format!("{} is no report", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        reports.insert(name, report);
    }
    anyhow::ensure!(!reports.is_empty(), "there is no report in {}", folder.display());
    Ok(reports)
}

/// How a bound stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// There is none.
    None,
    Held,
    Missed,
    NotMeasured,
}

impl Word {
    const fn word(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::Held => "held",
            Self::Missed => "MISSED",
            Self::NotMeasured => "not measured",
        }
    }

    fn of(limits: &[Limit], reports: &Reports) -> Self {
        let words = limits.iter().map(|limit| match figure(reports, limit.report, limit.place) {
            None => Self::NotMeasured,
            Some(figure) if limit.holds(figure) => Self::Held,
            Some(_) => Self::Missed,
        });
        words.fold(Self::None, |all, word| match (all, word) {
            (Self::Missed, _) | (_, Self::Missed) => Self::Missed,
            (Self::NotMeasured, _) | (_, Self::NotMeasured) => Self::NotMeasured,
            _ => Self::Held,
        })
    }
}

fn figure(reports: &Reports, report: &str, place: &str) -> Option<f64> {
    reports.get(report)?.pointer(place)?.as_f64()
}

/// A gate with its figures.
struct Judged {
    gate: &'static GateRow,
    contract: Word,
    goal: Word,
    measured: String,
    ratio: String,
}

impl Judged {
    fn of(gate: &'static GateRow, reports: &Reports) -> Self {
        let figures = gate.figures.iter().filter_map(|one| {
            let figure = figure(reports, one.report, one.place)?;
            Some(one.shown(figure))
        });
        let measured: Vec<String> = figures.collect();
        let ratios = gate.ratios.iter().filter_map(|(report, place)| figure(reports, report, place));
        let ratios: Vec<String> = ratios.map(|ratio| format!("x {ratio:.2}")).collect();
        let shown = |parts: &[String]| if parts.is_empty() { "-".to_owned() } else { parts.join(", ") };
        Self {
            gate,
            contract: Word::of(gate.contract, reports),
            goal: Word::of(gate.goal, reports),
            measured: shown(&measured),
            ratio: shown(&ratios),
        }
    }
}

/// Runs in which something was lost or broken.
fn unsound(reports: &Reports) -> Vec<String> {
    let broken = reports.iter().filter(|(_, report)| report["verify"]["ok"] == false);
    broken
        .map(|(name, report)| format!("  {name} was not sound: {}", report["verify"]["violations"]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reports() -> Reports {
        let steady = json!({
            "scenario": "steady", "verify": {"ok": true}, "drops": 0, "sessions": 5000,
            "dispatch_ms": {"p50": 1.0, "p99": 4.0}, "dispatch_p99_to_floor": 3.5
        });
        [("steady".to_owned(), steady.clone()), ("steady-goal".to_owned(), steady)].into()
    }

    fn judged<'a>(rows: &'a [Judged], name: &str) -> &'a Judged {
        rows.iter().find(|row| row.gate.name.starts_with(name)).expect(name)
    }

    #[test]
    fn a_goal_that_misses_is_told_beside_a_contract_that_holds() {
        let reports = reports();
        let mut few = reports["steady-goal"].clone();
        few["sessions"] = 50.into();
        let rows: Vec<Judged> = GATES.iter().map(|gate| Judged::of(gate, &reports)).collect();
        let dispatch = judged(&rows, "dispatch");
        assert_eq!((dispatch.contract, dispatch.goal), (Word::Held, Word::Missed), "3.5 floors are over 3");
        assert_eq!(dispatch.ratio, "x 3.50");
        let few = Judged::of(dispatch.gate, &[("steady-goal".to_owned(), few)].into());
        assert_eq!(few.contract, Word::Missed, "fast with fifty sessions is not fast with five thousand");
        assert_eq!(judged(&rows, "bloat").goal, Word::NotMeasured);
        let page = page::page(&rows, &reports, &[], &[]);
        assert!(
            page.contains("p99 < 500 ms: **held**") && page.contains("--config configs/bench/steady.toml"),
            "{page}"
        );
    }

    #[test]
    fn every_gate_reads_a_report_whose_plan_is_committed() {
        let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/bench");
        for gate in GATES {
            let named = gate.figures.iter().map(|one| one.report);
            let named = named.chain(gate.contract.iter().chain(gate.goal).map(|limit| limit.report));
            for report in named {
                assert!(plans.join(format!("{report}.toml")).is_file(), "{}: {report}", gate.name);
            }
        }
    }

    #[test]
    fn a_run_that_was_not_sound_is_named() {
        let mut reports = reports();
        reports.insert("bad".to_owned(), json!({"verify": {"ok": false, "violations": ["lost"]}}));
        assert!(unsound(&reports)[0].contains("bad was not sound"));
    }
}
