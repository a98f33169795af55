//! `gateway-fuzz`: hunts for inputs that a parser of the gateway does not stand, and repeats them.
//!
//! Each hunt runs in a process of its own, which writes down what it does before it does it; so an input
//! that ends the process is found as well.
//!
//! 1. Exit code 0: nothing broke; 1: something did, and its file and the command that repeats it were
//!    printed; 2: the hunt itself failed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use clap::Parser;
use gateway_fuzz::hunt::{self, Finding};
use gateway_fuzz::mutate::Mutator;
use gateway_fuzz::targets::{self, Target};
use gateway_fuzz::{corpus, seeds};

/// Looks for inputs that a parser of the gateway does not stand.
#[derive(Debug, Parser)]
#[command(name = "gateway-fuzz", version)]
struct Arguments {
    /// The target; all of them, one after the other, where none is named
    #[arg(long)]
    target: Option<String>,
    /// Decides the inputs [default: a new one, which is printed]
    #[arg(long)]
    seed: Option<u64>,
    /// How long each target is hunted
    #[arg(long = "for", value_parser = humantime::parse_duration, default_value = "10s")]
    within: Duration,
    /// Runs the input in this file alone
    #[arg(long, requires = "target")]
    input: Option<PathBuf>,
    /// Where findings are written
    #[arg(long, default_value = "fuzz-findings")]
    findings: PathBuf,
    /// Lists the targets
    #[arg(long)]
    list: bool,
    /// Writes the seeds of the corpora anew, by the real encoders
    #[arg(long)]
    write_seeds: bool,
    /// Hunts in this very process, noting each input's number there; what the command does by itself
    #[arg(long, hide = true, requires = "target")]
    noting: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            say(&format!("gateway-fuzz: {error:#}"));
            ExitCode::from(2)
        }
    }
}

#[allow(clippy::print_stdout)]
fn say(line: &str) {
    println!("{line}");
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    if arguments.list {
        targets::ALL.iter().for_each(|target| say(&format!("{:<14} {}", target.name, target.what)));
        return Ok(true);
    }
    if arguments.write_seeds {
        let count = seeds::write(&corpus::folder())?;
        say(&format!("{count} seeds below {}", corpus::folder().display()));
        return Ok(true);
    }
    let chosen = match &arguments.target {
        None => targets::ALL.to_vec(),
        Some(name) => {
            vec![targets::of_name(name).with_context(|| format!("there is no target {name}; see --list"))?]
        }
    };
    if let (Some(file), [target]) = (&arguments.input, &chosen[..]) {
        return repeat(target, file);
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = arguments.seed.unwrap_or(since.as_secs());
    if let (Some(progress), [target]) = (&arguments.noting, &chosen[..]) {
        return hunt_here(target, seed, arguments, progress);
    }
    let mut sound = true;
    for target in &chosen {
        sound &= hunt_in_child(target, seed, arguments)?;
    }
    Ok(sound)
}

fn repeat(target: &Target, file: &Path) -> anyhow::Result<bool> {
    let input = std::fs::read(file).with_context(|| file.display().to_string())?;
    match hunt::run_one(target, &input) {
        Ok(percent) => {
            say(&format!("{}: {} bytes stood, {percent} % of the memory allowed", target.name, input.len()));
            Ok(true)
        }
        Err(what) => {
            say(&format!("{}: {what}", target.name));
            Ok(false)
        }
    }
}

fn hunt_here(target: &Target, seed: u64, arguments: &Arguments, progress: &Path) -> anyhow::Result<bool> {
    let inputs = corpus::read(&corpus::folder(), target.name)?;
    let mutator = Mutator::new(&inputs, target.words, target.shape, target.longest, seed);
    let progress = File::create(progress)?;
    let hunt = hunt::run(target, &mutator, 0, arguments.within, Some(&progress))?;
    match hunt.finding {
        None => {
            let (inputs, percent) = (hunt.inputs, hunt.memory_percent);
            say(&format!(
                "{:<14} seed {seed}: {inputs} inputs stood, at most {percent} % of the memory allowed",
                target.name
            ));
            Ok(true)
        }
        Some(finding) => {
            tell(&finding, seed, arguments)?;
            Ok(false)
        }
    }
}

fn hunt_in_child(target: &Target, seed: u64, arguments: &Arguments) -> anyhow::Result<bool> {
    let progress = std::env::temp_dir().join(format!("gateway-fuzz-{}-{}", std::process::id(), target.name));
    let status = Command::new(std::env::current_exe()?)
        .args(["--target", target.name, "--seed", &seed.to_string()])
        .args(["--for", &humantime::format_duration(arguments.within).to_string()])
        .arg("--findings")
        .arg(&arguments.findings)
        .arg("--noting")
        .arg(&progress)
        .status()?;
    let number = hunt::noted(&progress);
    // Its name holds our process id: nobody else wants it.
    let _ = std::fs::remove_file(&progress);
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        Some(code) => anyhow::bail!("the hunt of {} ended with exit code {code}", target.name),
        None => {
            let number = number.context("the hunt died before its first input")?;
            let inputs = corpus::read(&corpus::folder(), target.name)?;
            let mutator = Mutator::new(&inputs, target.words, target.shape, target.longest, seed);
            let what = format!("input {number} ended the process: {status}");
            tell(&Finding { target: target.name, input: mutator.input(number), what }, seed, arguments)?;
            Ok(false)
        }
    }
}

fn tell(finding: &Finding, seed: u64, arguments: &Arguments) -> anyhow::Result<()> {
    let path = hunt::keep(finding, &arguments.findings)?;
    let Finding { target, input, what } = finding;
    say(&format!("{target}, seed {seed}: an input of {} bytes broke it: {what}", input.len()));
    say(&format!("repeat it by: cargo run -p gateway-fuzz -- --target {target} --input {}", path.display()));
    Ok(())
}
