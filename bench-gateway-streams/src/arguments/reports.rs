//! The command lines of what reads reports instead of making one: `compare` and `table`.
//!
//! They start nothing. A report that can't be read is a failed run, exit code 2, like a run that fails.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    /// The report that is the measure
    pub(crate) before: PathBuf,
    /// The report that is held against it
    pub(crate) after: PathBuf,
    /// Exit code 1 where a figure is worse by more than this factor, such as 1.2
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    pub(crate) fail_over: Option<f64>,
}

#[derive(Debug, Args)]
pub(crate) struct TableArguments {
    /// Folder with the reports, each named as its plan: steady.json for configs/bench/steady.toml
    pub(crate) folder: PathBuf,
    /// Where the page is written, in Markdown
    #[arg(long)]
    pub(crate) markdown: Option<PathBuf>,
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor.is_finite() && factor >= 1.0 => Ok(factor),
        _ => Err("a factor is a number of at least 1".to_owned()),
    }
}
