//! The command line of `micro`, and the operations that it counts.
//!
//! `--only` with `--turns` is what it starts under valgrind: it does the turns and tells nothing.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MicroOperation {
    /// An update's frame in, mail to the writer out, its answer in, the ack out.
    FrameToMail,
    /// A command of the writer in, its frame out.
    CommandToFrame,
    /// A command's frame made and encoded.
    CommandToBytes,
    /// A round of passes over so many lanes, by lane.
    #[value(name = "plan-500")]
    Plan500,
    #[value(name = "plan-5000")]
    Plan5000,
}

impl MicroOperation {
    pub(crate) const ALL: [Self; 5] =
        [Self::FrameToMail, Self::CommandToFrame, Self::CommandToBytes, Self::Plan500, Self::Plan5000];

    /// Its name, as on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::FrameToMail => "frame-to-mail",
            Self::CommandToFrame => "command-to-frame",
            Self::CommandToBytes => "command-to-bytes",
            Self::Plan500 => "plan-500",
            Self::Plan5000 => "plan-5000",
        }
    }

    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::FrameToMail => "an update's frame, to mail, to ack",
            Self::CommandToFrame => "a command to its frame",
            Self::CommandToBytes => "a command's frame to bytes",
            Self::Plan500 => "planning a lane of 500",
            Self::Plan5000 => "planning a lane of 5,000",
        }
    }

    /// How many turns tell it from nothing.
    pub(crate) const fn turns(self) -> u64 {
        match self {
            Self::FrameToMail | Self::CommandToFrame | Self::CommandToBytes => 2000,
            Self::Plan500 => 50,
            Self::Plan5000 => 5,
        }
    }

    /// What a turn does that many times.
    pub(crate) const fn items(self) -> u64 {
        match self {
            Self::FrameToMail | Self::CommandToFrame | Self::CommandToBytes => 1,
            Self::Plan500 => 500,
            Self::Plan5000 => 5000,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct MicroArguments {
    /// Where the JSON report is written
    #[arg(long)]
    pub(crate) report: Option<PathBuf>,
    /// A report that was kept, such as configs/bench/micro.json: no operation may cost over a tenth more than it did there
    #[arg(long)]
    pub(crate) baseline: Option<PathBuf>,
    #[arg(long, hide = true)]
    pub(crate) only: Option<MicroOperation>,
    #[arg(long, hide = true, default_value_t = 1)]
    pub(crate) turns: u64,
}
