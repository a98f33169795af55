//! Clients of a gateway's control API, and a strict reader of what it exposes to Prometheus.
//!
//! 1. The API's address is read where other services find it: in `gateways`.
//! 2. What the reader does not know to be right is wrong: a line that it can't place fails the story.

use std::collections::{BTreeMap, BTreeSet};

use gateway::client::{GatewayClient, InternalFiles};
use gateway_testbed::gateway_process::GatewayProcess;
use gateway_testbed::pki::{ControlFiles, Identity};

use super::World;

/// What a client of this gateway proves itself by.
pub fn client_files(gateway: &GatewayProcess) -> InternalFiles {
    let files = files(gateway);
    InternalFiles {
        ca: files.ca.clone(),
        certificate: files.client_certificate.clone(),
        key: files.client_key.clone(),
    }
}

/// The files of a gateway that was started with an API.
pub fn files(gateway: &GatewayProcess) -> &ControlFiles {
    gateway.options().api.as_deref().expect("the gateway was started with options_with_api")
}

/// A client of this gateway.
pub async fn client(world: &World, gateway: &GatewayProcess) -> GatewayClient {
    client_with(world, gateway, client_files(gateway)).await
}

/// The same as somebody else.
pub async fn client_as(
    world: &World,
    gateway: &GatewayProcess,
    name: &str,
    shown: &Identity,
) -> GatewayClient {
    let (certificate, key) = shown.write(&gateway.options().dir, name).expect("a client's files");
    let ca = files(gateway).ca.clone();
    client_with(world, gateway, InternalFiles { ca, certificate, key }).await
}

async fn client_with(world: &World, gateway: &GatewayProcess, files: InternalFiles) -> GatewayClient {
    let (url,): (String,) = sqlx::query_as("SELECT internal_url FROM gateways WHERE id = $1")
        .bind(&gateway.options().id)
        .fetch_one(&mut world.connect().await)
        .await
        .expect("the gateway's row");
    GatewayClient::new(&url, files).expect("the URL of a control API")
}

/// A metric family of an exposition.
#[derive(Debug, Default, Clone)]
pub struct Exposed {
    pub kind: String,
    pub unit: Option<String>,
    /// By sample name and labels.
    pub samples: BTreeMap<(String, String), f64>,
}

/// Reads an exposition (OpenMetrics 1.0), and fails on whatever is not right about it.
pub fn exposition(text: &str) -> BTreeMap<String, Exposed> {
    let mut families: BTreeMap<String, Exposed> = BTreeMap::new();
    let mut helped = BTreeSet::new();
    let mut current = String::new();
    let mut lines = text.lines();
    let mut ended = false;
    for line in &mut lines {
        assert!(!ended, "a line after # EOF: {line}");
        if line == "# EOF" {
            ended = true;
        } else if let Some(rest) = line.strip_prefix("# ") {
            let (word, rest) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            let (name, said) = rest.split_once(' ').unwrap_or_else(|| panic!("nothing is said: {line}"));
            assert!(is_name(name) && name.starts_with("gateway_"), "{line}");
            match word {
                "HELP" => {
                    assert!(!said.trim().is_empty() && helped.insert(name.to_owned()), "{line}");
                    assert!(!families.contains_key(name), "a family comes twice: {line}");
                    families.insert(name.to_owned(), Exposed::default());
                    current = name.to_owned();
                }
                "TYPE" => {
                    assert_eq!(name, current, "{line}");
                    assert!(["counter", "gauge", "histogram"].contains(&said), "{line}");
                    families.get_mut(name).expect("a family").kind = said.to_owned();
                }
                "UNIT" => {
                    assert_eq!(name, current, "{line}");
                    assert!(
                        ["seconds", "bytes"].contains(&said) && name.ends_with(&format!("_{said}")),
                        "{line}"
                    );
                    families.get_mut(name).expect("a family").unit = Some(said.to_owned());
                }
                _ => panic!("neither HELP nor TYPE nor UNIT: {line}"),
            }
        } else {
            let family =
                families.get_mut(&current).unwrap_or_else(|| panic!("a sample of no family: {line}"));
            let (sample, labels, value) = sample(line);
            let suffix =
                sample.strip_prefix(current.as_str()).unwrap_or_else(|| panic!("not of {current}: {line}"));
            let right: &[&str] = match family.kind.as_str() {
                "counter" => &["_total"],
                "gauge" => &[""],
                "histogram" => &["_sum", "_count", "_bucket"],
                other => panic!("a sample of a family without a type ({other:?}): {line}"),
            };
            assert!(right.contains(&suffix), "{line}");
            assert!(value.is_finite() && (family.kind == "gauge" || value >= 0.0), "{line}");
            assert!(family.samples.insert((sample, labels), value).is_none(), "a sample comes twice: {line}");
        }
    }
    assert!(ended && text.ends_with("# EOF\n"), "it does not end with # EOF");
    families
        .iter()
        .filter(|(_, family)| family.kind == "histogram")
        .for_each(|(name, family)| whole(name, family));
    families
}

/// Every counter and every bucket of `before`, none of which may have fallen.
pub fn assert_nothing_fell(before: &BTreeMap<String, Exposed>, after: &BTreeMap<String, Exposed>) {
    for (name, family) in before.iter().filter(|(_, family)| family.kind != "gauge") {
        let now = after.get(name).unwrap_or_else(|| panic!("{name} is gone"));
        for (sample, value) in &family.samples {
            let then = now.samples.get(sample).unwrap_or_else(|| panic!("{sample:?} is gone"));
            assert!(then >= value, "{sample:?} fell from {value} to {then}");
        }
    }
}

/// A sample's name, its labels as they stand there, and its value.
fn sample(line: &str) -> (String, String, f64) {
    let (name, labels, value) = match line.split_once('{') {
        Some((name, rest)) => {
            let (labels, value) = rest.split_once("} ").unwrap_or_else(|| panic!("{line}"));
            (name, labels, value)
        }
        None => {
            let (name, value) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            (name, "", value)
        }
    };
    assert!(is_name(name), "{line}");
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (label, value) = label.split_once('=').unwrap_or_else(|| panic!("{line}"));
        assert!(LABELS.contains(&label), "the label {label} is none of ours: {line}");
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        let value = value.unwrap_or_else(|| panic!("{line}"));
        let is_ours =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.+eIinf".contains(&byte);
        assert!(!value.is_empty() && value.bytes().all(is_ours), "{value:?} is no word of ours: {line}");
    }
    let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
    (name.to_owned(), labels.to_owned(), value)
}

/// None that could hold a node or a tenant.
const LABELS: [&str; 10] =
    ["shard", "queue", "reason", "phase", "loop", "kind", "call", "outcome", "transport", "le"];

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.bytes().next().is_some_and(|first| first.is_ascii_lowercase()) && name.bytes().all(fits)
}

/// The buckets of every point rise, and the last holds them all.
fn whole(name: &str, family: &Exposed) {
    let mut points: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for ((sample, labels), value) in &family.samples {
        if sample.ends_with("_bucket") {
            let (bounds, rest): (Vec<&str>, Vec<&str>) =
                labels.split(',').partition(|label| label.starts_with("le="));
            let bound = bounds.first().and_then(|bound| bound.strip_prefix("le=\"")?.strip_suffix('"'));
            let bound = bound.unwrap_or_else(|| panic!("a bucket of {name} without a bound: {labels}"));
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect("a bound") };
            points.entry(rest.join(",")).or_default().push((bound, *value));
        }
    }
    assert!(!points.is_empty() || family.samples.is_empty(), "{name} has no buckets");
    for (labels, mut buckets) in points {
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(
            buckets.is_sorted_by(|one, other| one.0 < other.0 && one.1 <= other.1),
            "{name} {labels}: {buckets:?}"
        );
        let last = buckets.last().expect("buckets");
        let of = |suffix: &str| family.samples.get(&(format!("{name}{suffix}"), labels.clone())).copied();
        assert_eq!((last.0, Some(last.1)), (f64::INFINITY, of("_count")), "{name} {labels}");
        assert!(of("_sum").is_some(), "{name} {labels}");
    }
}
