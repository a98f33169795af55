//! The scenario of hostile peers, in its short form.
//!
//! It works, every peer came to its end, and what they made the gateway hold is bounded. How fast anything is,
//! is not asked here.

#![allow(clippy::unwrap_used)]

mod program;

use program::{build_gateway, harness, nothing_is_left_in, open_folder, text};
use serde_json::Value;

/// Attacks, and the ends that their peers must see.
const ATTACKS: [(&str, &[&str]); 5] = [
    ("ping", &["GOAWAY", "cut"]),
    ("rapid-reset", &["GOAWAY", "cut"]),
    ("header-bomb", &["GOAWAY", "cut"]),
    ("garbage", &["status 3"]),
    ("reset-anywhere", &["reset by us"]),
];

#[test]
fn hostile_peers_are_ended_and_bounded_beside_healthy_sessions() {
    build_gateway();
    let (folder, reports) = (open_folder(), tempfile::tempdir().unwrap());
    let report = reports.path().join("report.json");
    let attacks = ATTACKS.map(|(name, _)| name).join(",");
    let output = harness(folder.path())
        .args(["hostile", "--sessions", "20", "--stretch", "3s", "--rounds", "1", "--duration", "1s"])
        .args(["--attacks", &attacks, "--report"])
        .arg(&report)
        .output()
        .unwrap();
    // Exit code 1 is a missed gate, which noise can bring about.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output));
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["verify"]["ok"], true, "{:#}\n{}", report["verify"], text(&output));
    assert_eq!((&report["drops"], &report["commands"]["lost"]), (&0.into(), &0.into()), "{}", text(&output));
    let rows = report["hostile"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), ATTACKS.len());
    for (row, (attack, ends)) in rows.iter().zip(ATTACKS) {
        assert_eq!(row["attack"], attack);
        let ended = row["ended"].as_str().unwrap();
        assert!(row["attempts"].as_u64().unwrap() > 0, "{attack}: {ended}");
        assert!(
            ends.iter().any(|end| ended.contains(end)) && !ended.contains("not cut"),
            "{attack}: {ended}"
        );
        assert!(row["memory_bytes"].as_u64().unwrap() < 256 << 20, "{row:#}");
        for stretch in ["quiet_ms", "beside_ms", "disturbed_ms"] {
            assert!(row[stretch]["p99"].as_f64().unwrap() > 0.0, "{stretch} of {row:#}");
        }
    }
    let admission = report["hostile"]["admission"].as_object().unwrap();
    assert_eq!(admission.len(), 4);
    for (figure, value) in admission {
        assert!(value.as_f64().unwrap() > 1.0, "{figure} is {value}\n{}", text(&output));
    }
    nothing_is_left_in(folder.path());
}
