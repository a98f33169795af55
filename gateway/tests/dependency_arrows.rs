//! Who may depend on whom, and what shard and core may never use: ARCHITECTURE.md's arrows, held.
//!
//! It asks cargo for the resolved graph, and reads the sources of core and shard as text.
//!
//! 1. `core ← shard, db-writer, control ← gateway`; `proto ← shard, control, testbed`; `core ← sim`.
//! 2. Nothing that a gateway links can sign a certificate.
//! 3. Neither shard nor core runs a tokio runtime or shares memory under a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What a gateway's own crates may link of each other, in their normal dependencies.
const ARROWS: [(&str, &[&str]); 6] = [
    ("gateway-core", &[]),
    ("gateway-proto", &[]),
    ("gateway-shard", &["gateway-core", "gateway-proto"]),
    ("gateway-db-writer", &["gateway-core"]),
    ("gateway-control", &["gateway-core", "gateway-proto"]),
    ("gateway", &["gateway-core", "gateway-shard", "gateway-db-writer", "gateway-control"]),
];

/// What a package's whole tree of normal dependencies may not hold, and why.
const BANS: [(&str, &[&str], &str); 5] = [
    (
        "gateway",
        &["rcgen", "gateway-testbed", "gateway-sim"],
        "a gateway can't sign certificates, nor links tests",
    ),
    (
        "gateway-core",
        &["tokio", "async-io", "glommio", "parking_lot", "dashmap", "rand"],
        "core has no I/O, no locks",
    ),
    (
        "gateway-shard",
        &["sqlx", "sqlx-core", "sqlx-postgres", "gateway-db-writer", "dashmap"],
        "shard knows no SQL",
    ),
    ("gateway-db-writer", &["gateway-shard", "gateway-proto", "glommio", "h2"], "the writer knows no wire"),
    ("gateway-control", &["sqlx", "glommio"], "control knows no SQL and no shard"),
];

/// Parts of tokio that need, or are, a runtime.
const RUNTIME_FEATURES: [&str; 8] =
    ["rt", "rt-multi-thread", "net", "time", "fs", "process", "signal", "full"];

/// Words that no line of core and shard may hold outside comments, and what stands in their place.
const BANNED_WORDS: [(&str, &str); 7] = [
    ("Mutex", "a lock: post a message, or use an atomic"),
    ("RwLock", "a lock: post a message, or use an atomic"),
    ("DashMap", "a shared map: each thread owns what it needs"),
    ("tokio::runtime", "a runtime: the shard's is glommio"),
    ("tokio::spawn", "a runtime: the shard's is glommio"),
    ("tokio::time", "a runtime: the shard's is glommio"),
    ("tokio::net", "a runtime: the shard's is glommio"),
];

#[test]
fn crates_depend_only_along_the_arrows() {
    let graph = Graph::load();
    let ours: BTreeSet<&str> = graph.members.iter().map(String::as_str).collect();
    let mut offenders = Vec::new();
    for (package, allowed) in ARROWS {
        for dependency in graph.normal(package).iter().filter(|name| ours.contains(name.as_str())) {
            if !allowed.contains(&dependency.as_str()) {
                offenders
                    .push(format!("{package} depends on {dependency}: its arrows lead to {allowed:?} alone"));
            }
        }
    }
    assert!(offenders.is_empty(), "\n{}\n", offenders.join("\n"));
}

#[test]
fn nothing_that_a_crate_must_not_know_is_in_its_tree() {
    let graph = Graph::load();
    let mut offenders = Vec::new();
    for (package, banned, why) in BANS {
        let tree = graph.tree(package);
        assert!(!tree.is_empty(), "{package} was not found");
        for name in banned.iter().filter(|name| tree.contains_key(**name)) {
            offenders.push(format!("{package} links {name} by {}: {why}", graph.way(&tree, name)));
        }
    }
    assert!(offenders.is_empty(), "\n{}\n", offenders.join("\n"));
}

#[test]
fn the_check_would_see_what_signs_certificates() {
    // The ban above is worth something only if the tree of one who may sign shows it.
    let graph = Graph::load();
    assert!(graph.tree("gateway-testbed").contains_key("rcgen"));
    assert!(graph.tree("gateway-db-writer").contains_key("sqlx-core"));
}

#[test]
fn core_and_shard_ask_for_no_tokio_runtime() {
    let mut offenders = Vec::new();
    for package in ["gateway-core", "gateway-shard"] {
        for (name, features) in direct_dependencies(package) {
            let running: Vec<&String> =
                features.iter().filter(|feature| RUNTIME_FEATURES.contains(&feature.as_str())).collect();
            if name == "tokio" && !running.is_empty() {
                offenders.push(format!("{package} asks tokio for {running:?}"));
            }
        }
    }
    assert!(offenders.is_empty(), "\n{}\n", offenders.join("\n"));
}

#[test]
fn core_and_shard_hold_no_lock_and_no_runtime() {
    let mut offenders = Vec::new();
    for folder in ["core/src", "shard/src"] {
        let files = source_files(&root().join(folder));
        assert!(files.len() > 10, "the sources of {folder} were not found");
        for file in files {
            let text = std::fs::read_to_string(&file).expect("a source file");
            for (index, line) in
                text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
            {
                for (word, instead) in BANNED_WORDS.iter().filter(|(word, _)| line.contains(word)) {
                    let place = file.strip_prefix(root()).expect("below the root").display();
                    offenders.push(format!("{place}:{}: {word} is {instead}", index + 1));
                }
            }
        }
    }
    assert!(offenders.is_empty(), "\n{}\n", offenders.join("\n"));
}

#[test]
fn core_reads_no_clock_and_starts_no_thread() {
    let mut offenders = Vec::new();
    for file in source_files(&root().join("core/src")) {
        let text = std::fs::read_to_string(&file).expect("a source file");
        // What follows is the file's tests, which may measure.
        let own = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_of_tests = ["tests.rs", "stories.rs", "properties.rs"].iter().any(|name| file.ends_with(name))
            || file.iter().any(|part| part == "tests");
        for word in ["Instant::now", "SystemTime::now", "thread::spawn", "std::net", "std::fs", "async fn"] {
            if own.contains(word) && !is_of_tests {
                offenders.push(format!(
                    "{}: {word}",
                    file.strip_prefix(root()).expect("below the root").display()
                ));
            }
        }
    }
    assert!(offenders.is_empty(), "\n{}\n", offenders.join("\n"));
}

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("a crate lies in the workspace").to_owned()
}

fn source_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(source_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Of what is linked on this kind of machine alone: the rest need not have been downloaded.
fn metadata() -> Value {
    let compiler = Command::new("rustc").arg("-vV").current_dir(root()).output().expect("rustc runs");
    let version = String::from_utf8_lossy(&compiler.stdout).into_owned();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", host])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text in cargo's metadata").to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list in cargo's metadata")
}

/// The normal dependencies that a package's own manifest names, with the features that it asks for.
fn direct_dependencies(package: &str) -> Vec<(String, Vec<String>)> {
    let metadata = metadata();
    let package = list(&metadata["packages"])
        .iter()
        .find(|found| found["name"] == package)
        .expect("a package of the workspace");
    list(&package["dependencies"])
        .iter()
        .filter(|dependency| dependency["kind"].is_null())
        .map(|dependency| {
            (text(&dependency["name"]), list(&dependency["features"]).iter().map(text).collect())
        })
        .collect()
}

/// The resolved graph of normal dependencies, by package name.
struct Graph {
    members: Vec<String>,
    edges: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn load() -> Self {
        let metadata = metadata();
        let names: BTreeMap<String, String> = list(&metadata["packages"])
            .iter()
            .map(|package| (text(&package["id"]), text(&package["name"])))
            .collect();
        let members =
            list(&metadata["workspace_members"]).iter().map(|id| names[&text(id)].clone()).collect();
        let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in list(&metadata["resolve"]["nodes"]) {
            let from = edges.entry(names[&text(&node["id"])].clone()).or_default();
            for dependency in list(&node["deps"]) {
                if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                    from.insert(names[&text(&dependency["pkg"])].clone());
                }
            }
        }
        Self { members, edges }
    }

    fn normal(&self, package: &str) -> BTreeSet<String> {
        self.edges.get(package).cloned().unwrap_or_else(|| panic!("{package} is no package of the graph"))
    }

    /// Every package that is linked, with the one that first led to it.
    fn tree(&self, package: &str) -> BTreeMap<String, String> {
        let mut tree = BTreeMap::new();
        let mut open = vec![package.to_owned()];
        while let Some(from) = open.pop() {
            for to in self.normal(&from) {
                if !tree.contains_key(&to) {
                    tree.insert(to.clone(), from.clone());
                    open.push(to);
                }
            }
        }
        tree
    }

    /// `a ← b ← c`: how `name` came into the tree.
    fn way(&self, tree: &BTreeMap<String, String>, name: &str) -> String {
        let mut way = name.to_owned();
        let mut at = name;
        while let Some(from) = tree.get(at) {
            way.push_str(" ← ");
            way.push_str(from);
            at = from;
        }
        way
    }
}
