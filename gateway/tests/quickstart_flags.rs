//! `scripts/quickstart` checks what it is asked before it installs or builds anything.
//!
//! 1. A wrong option ends it with 2 at once, and is named.
//! 2. So do the commands of `conformance/` with `--help`.
//! 3. The script knows every option of the demo that it hands over to.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Runs it to its end; only a refused option ends it early.
fn quickstart(arguments: &[&str]) -> Output {
    Command::new("bash").arg(root().join("scripts/quickstart")).args(arguments).output().unwrap()
}

#[test]
fn a_wrong_option_is_refused_before_anything_is_built() {
    for (arguments, named) in [
        (vec!["--nonsense"], "there is no option \"--nonsense\""),
        (vec!["--keep", "stray"], "there is no option \"stray\""),
        (vec!["--keep=yes"], "--keep takes no value"),
        (vec!["--sessions"], "--sessions needs a value"),
        (vec!["--sessions=many"], "--sessions takes a number of nodes, not \"many\""),
        (vec!["--duration", "20"], "--duration takes a time such as 20s"),
        (vec!["--listen", "here"], "--listen takes an address"),
        (vec!["--gateway-bin", "/nowhere/gateway"], "/nowhere/gateway is no program"),
    ] {
        let output = quickstart(&arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(
            told.contains(named) && told.contains("nothing was installed or built"),
            "{arguments:?}: {told}"
        );
        assert!(!told.contains("building"), "{arguments:?}: {told}");
    }
}

#[test]
fn help_of_the_conformance_commands_is_printed_before_an_environment_is_made() {
    let target = tempfile::tempdir().unwrap();
    for command in ["join", "renew", "secret"] {
        let script = root().join("conformance").join(command);
        let output = Command::new("bash")
            .arg(script)
            .arg("--help")
            .env("CARGO_TARGET_DIR", target.path())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(told.contains(&format!("usage: conformance/{command}")), "{told}");
    }
    assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn the_script_knows_every_option_of_the_demo() {
    let source = std::fs::read_to_string(root().join("bench-gateway-streams/src/arguments.rs")).unwrap();
    let script = std::fs::read_to_string(root().join("scripts/quickstart")).unwrap();
    let known = script.lines().find(|line| line.trim_start().starts_with("--dir |")).unwrap();
    let arguments = source.split("struct DemoArguments {").nth(1).unwrap().split("\n}").next().unwrap();
    let fields =
        arguments.lines().filter_map(|line| line.trim().strip_prefix("pub(crate) ")?.split(':').next());
    let options: Vec<String> = fields.map(|field| format!("--{}", field.replace('_', "-"))).collect();
    assert!(options.len() >= 8, "the demo's options were not found: {options:?}");
    for option in options.iter().filter(|option| *option != "--keep") {
        assert!(
            known.split(['|', ')', ' ']).any(|word| word == option),
            "scripts/quickstart refuses {option}"
        );
    }
}
