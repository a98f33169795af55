//! The scenarios with faults, in their short forms: what they measure is there, what they break comes back,
//! and nothing stays behind.
//!
//! Each story runs the built program as a person would. Behind its three gateways stands HAProxy, from the
//! distribution's package, which `scripts/test` installs. How fast anything is, is not asked here.

#![allow(clippy::unwrap_used)]

mod program;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

use program::{build_gateway, harness, left_in, nothing_is_left_in, open_folder, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn run(arguments: &[&str]) -> (Output, Value) {
    build_gateway();
    let (folder, reports) = (open_folder(), tempfile::tempdir().unwrap());
    let report = reports.path().join("report.json");
    let output = harness(folder.path()).args(arguments).arg("--report").arg(&report).output().unwrap();
    let report: Value =
        serde_json::from_slice(&std::fs::read(&report).unwrap_or_default()).unwrap_or_default();
    // Exit code 1 is a missed gate, which noise can bring about; what is asked is asked below.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output));
    assert_eq!(report["verify"]["ok"], true, "{:#}\n{}", report["verify"], text(&output));
    assert_eq!(report["commands"]["lost"], 0);
    assert_eq!(report["commands"]["duplicated"], 0);
    assert_eq!(report["commands"]["enqueued"], report["commands"]["succeeded"]);
    nothing_is_left_in(folder.path());
    (output, report)
}

#[test]
fn a_killed_gateway_a_zombie_and_cut_connections_lose_nothing() {
    let faults =
        ["chaos", "--faults", "kill,zombie,connections-cut", "--sessions", "60", "--lease-ttl", "3s"];
    let (output, report) = run(&[&faults[..], &["--seed", "7"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let rows = report["chaos"]["rows"].as_array().unwrap();
    let mut seen: Vec<&str> = rows.iter().map(|row| row["fault"].as_str().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, ["connections-cut", "kill", "zombie"]);
    for row in rows {
        assert!(row["commands_per_second"].as_u64().unwrap() >= 200, "{row:#}");
        assert!(row["unacked"].as_u64().unwrap() >= 100, "{row:#}");
        assert!(row["recovery_ms"].as_f64().is_some(), "{row:#}");
        assert_eq!(
            (&row["commands_lost"], &row["violations"]),
            (&0.into(), &Value::Array(Vec::new())),
            "{row:#}"
        );
        let detail = row["detail"].as_str().unwrap();
        match row["fault"].as_str().unwrap() {
            "zombie" => assert!(detail.contains("committed no Hello and no dispatch"), "{detail}"),
            "kill" => {
                assert!(row["sessions_lost"].as_u64().unwrap() > 0, "a gateway without a node: {row:#}")
            }
            _ => {}
        }
    }
    // The seed repeats what is chance: the order, and the zombie's name.
    assert_eq!(report["chaos"]["seed"], 7);
}

#[test]
fn a_soak_tells_each_quiet_stretch_and_how_the_last_stands_to_the_first() {
    let faults =
        ["soak", "--faults", "connections-cut", "--sessions", "60", "--lease-ttl", "3s", "--seed", "7"];
    let (output, report) = run(&[&faults[..], &["--for", "3s", "--calm", "3s"]].concat());
    let (calm, rows) = (&report["soak"]["calm"], &report["chaos"]["rows"]);
    // The time is over after the first stretch.
    assert_eq!((calm.as_array().unwrap().len(), rows.as_array().unwrap().len()), (1, 0), "{}", text(&output));
    let (output, report) = run(&[&faults[..], &["--for", "6s", "--calm", "3s"]].concat());
    let (calm, rows) = (&report["soak"]["calm"], &report["chaos"]["rows"]);
    assert_eq!((calm.as_array().unwrap().len(), rows.as_array().unwrap().len()), (2, 1), "{}", text(&output));
    for stretch in calm.as_array().unwrap() {
        assert!(stretch["commands"].as_u64().unwrap() > 100 && stretch["rss_bytes"].as_u64().unwrap() > 0);
    }
    assert!(report["gateway"]["rss_growth_ratio"].as_f64().unwrap() > 0.0);
    assert!(report["window_p99_ratio"].as_f64().unwrap() > 0.0);
    assert_eq!(report["soak"]["faults"], 1);
}

#[test]
fn a_storm_is_let_in_by_its_delays_and_a_killed_gateway_comes_back() {
    let load = ["--sessions", "60", "--duration", "1s"];
    let (_, report) = run(&[&["storm", "--opens-per-second", "20"], &load[..]].concat());
    let storm = &report["storm"];
    // Sixty with a bucket of twenty, and twenty a second.
    assert!(storm["all_ms"].as_f64().unwrap() >= 1500.0, "{storm:#}");
    assert!(storm["p50_ms"].as_f64().unwrap() <= storm["p95_ms"].as_f64().unwrap(), "{storm:#}");
    assert!(storm["refused"].as_u64().unwrap() >= 20, "{storm:#}");
    assert_eq!(storm["refused"], storm["pushbacks_given"], "{storm:#}");
    assert_eq!(storm["pushbacks_given"], storm["pushbacks_kept"], "{storm:#}");
    assert!(storm["bare_handshakes_ms"].as_f64().unwrap() > 0.0, "{storm:#}");
    assert!(storm["bare_streams_ms"].as_f64().unwrap() > 0.0, "{storm:#}");
    assert_eq!(report["drops"], 0, "a cut of the harness's own is no drop");

    let (_, report) = run(&[&["storm", "--by", "kill", "--no-bare-handshakes"], &load[..]].concat());
    assert!(report["storm"]["all_ms"].as_f64().is_some(), "{:#}", report["storm"]);
    assert!(report["storm"].get("bare_handshakes_ms").is_none(), "it was not measured");
    assert_eq!(report["drops"], 60);
}

#[test]
fn the_nodes_of_a_killed_gateway_are_at_home_elsewhere_and_no_other_is_moved() {
    let (_, report) = run(&["multi", "--sessions", "60", "--duration", "1s", "--seed", "3"]);
    let multi = &report["multi"];
    let rehomed = multi["rehomed"].as_u64().unwrap();
    assert!((10..=30).contains(&rehomed), "three gateways share sixty nodes: {multi:#}");
    assert!(multi["rehome_ms"]["p99"].as_f64().unwrap() > 0.0, "{multi:#}");
    assert_eq!((&multi["lost_elsewhere"], report["drops"].as_u64()), (&0.into(), Some(rehomed)), "{multi:#}");
    let victim = multi["victim"].as_str().unwrap();
    let on_victim = multi["spread"].as_array().unwrap().iter().find(|one| one[0] == victim);
    assert!(on_victim.is_none_or(|one| one[1].as_u64().unwrap() <= rehomed), "{multi:#}");
}

#[test]
fn the_nodes_of_a_drained_gateway_move_and_none_is_cut() {
    let drain = ["multi", "--by", "drain", "--drain", "2s", "--sessions", "60", "--duration", "1s"];
    let (_, report) = run(&[&drain[..], &["--seed", "3"]].concat());
    let multi = &report["multi"];
    let rehomed = multi["rehomed"].as_u64().unwrap();
    assert!((10..=30).contains(&rehomed), "three gateways share sixty nodes: {multi:#}");
    // Spread over two seconds, each at a moment of its own.
    assert!(multi["rehome_ms"]["p50"].as_f64().unwrap() > 200.0, "{multi:#}");
    assert!(multi["exit_ms"].as_f64().unwrap() >= multi["rehome_ms"]["max"].as_f64().unwrap(), "{multi:#}");
    assert_eq!(
        (&multi["cut"], &multi["lost_elsewhere"], &report["drops"]),
        (&0.into(), &0.into(), &0.into())
    );
    let victim = multi["victim"].as_str().unwrap();
    assert!(multi["spread"].as_array().unwrap().iter().all(|one| one[0] != victim), "{multi:#}");
}

#[test]
fn interrupted_in_the_middle_of_a_fault_nothing_stays_behind() {
    build_gateway();
    let folder = open_folder();
    let mut run = harness(folder.path())
        .args(["chaos", "--faults", "database-frozen", "--sessions", "60", "--lease-ttl", "20s"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = Vec::new();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map(Result::unwrap);
    for line in lines.by_ref() {
        let frozen = line.contains("PostgreSQL stands still");
        seen.push(line);
        if frozen {
            break;
        }
    }
    let pids: Vec<u32> = seen
        .iter()
        .filter(|line| line.contains("listens on"))
        .filter_map(|line| line.split(['(', ' ', ')', ',']).find_map(|word| word.parse().ok()))
        .collect();
    assert_eq!(pids.len(), 4, "three gateways and the balancer: {seen:?}");
    kill_process(Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    assert_eq!(run.wait().unwrap().code(), Some(2), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("interrupted")), "{rest:?}");
    for pid in pids {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is left");
    }
    assert_eq!(left_in(folder.path()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn what_kills_gateways_does_not_touch_one_that_it_did_not_start() {
    let folder = open_folder();
    let attach = ["--attach", "127.0.0.1:1", "--database-url", "postgres:///x", "--pki", "/nowhere"];
    for scenario in ["multi", "chaos"] {
        let output = harness(folder.path()).arg(scenario).args(attach).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output).contains("--attach"), "{}", text(&output));
    }
}
