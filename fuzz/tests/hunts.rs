//! Short hunts of every target with the ordinary tests, and the hunt itself: it finds what was planted.
//!
//! The seed of the short hunts is fixed, so that a run says of a change what it says of all others; longer
//! ones with new seeds are `cargo run -p gateway-fuzz -- --for 10m`.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use gateway_fuzz::mutate::Mutator;
use gateway_fuzz::{corpus, hunt, seeds, targets};

const WITHIN: Duration = Duration::from_millis(700);

#[test]
fn every_parser_stands_a_short_hunt() {
    // One after the other: memory is counted for the whole process.
    let mut broken = Vec::new();
    for target in targets::ALL {
        let inputs = corpus::read(&corpus::folder(), target.name).unwrap();
        assert!(inputs.len() > 1, "{} has no corpus", target.name);
        let mutator = Mutator::new(&inputs, target.words, target.shape, target.longest, 1);
        let hunt = hunt::run(&target, &mutator, 0, WITHIN, None).unwrap();
        eprintln!("{}: {} inputs, {} % of the memory allowed", target.name, hunt.inputs, hunt.memory_percent);
        if let Some(finding) = hunt.finding {
            let path = hunt::keep(&finding, &std::env::temp_dir().join("fuzz-findings")).unwrap();
            broken.push(format!("{}: {} ({})", target.name, finding.what, path.display()));
        } else {
            assert!(hunt.inputs > inputs.len() as u64, "{} had time for its corpus alone", target.name);
        }
    }
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn the_corpora_are_small_and_their_seeds_come_from_the_encoders() {
    let folder = tempfile::tempdir().unwrap();
    assert!(seeds::write(folder.path()).unwrap() > 40);
    for target in targets::ALL {
        let names = |folder: &Path| -> Vec<String> {
            corpus::read(folder, target.name).unwrap().into_iter().map(|(name, _)| name).collect()
        };
        let (made, kept) = (names(folder.path()), names(&corpus::folder()));
        assert!(made.iter().all(|name| kept.contains(name)), "{}: {made:?}, {kept:?}", target.name);
        let bytes: usize =
            corpus::read(&corpus::folder(), target.name).unwrap().iter().map(|(_, input)| input.len()).sum();
        assert!(bytes < 128 << 10, "the corpus of {} has {bytes} bytes", target.name);
    }
}

fn fuzz(folder: &Path, arguments: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_gateway-fuzz"))
        .args(arguments)
        .arg("--findings")
        .arg(folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[test]
fn what_breaks_a_target_is_kept_and_its_file_repeats_it() {
    for (target, how) in [
        ("planted-panic", "it panicked"),
        ("planted-memory", "bytes of memory"),
        ("planted-death", "ended the process"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (output, text) = fuzz(folder.path(), &["--target", target, "--seed", "7", "--for", "20s"]);
        assert_eq!(output.status.code(), Some(1), "{target}: {text}");
        assert!(text.contains(how) && text.contains("--input"), "{target}: {text}");
        let kept: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(kept.len(), 1, "{kept:?}");
        let (again, _) = fuzz(folder.path(), &["--target", target, "--input", kept[0].to_str().unwrap()]);
        // A death has no exit code.
        assert_ne!(again.status.code(), Some(0), "{target} stood its own finding");
    }
}
