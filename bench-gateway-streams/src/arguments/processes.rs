//! The command lines of the processes that the harness starts of itself: yardsticks, and load.
//!
//! Nobody types them; they are no part of what the harness promises. Each process ends when its standard
//! input is closed, or when it has told what it measured.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::NodeTransport;

#[derive(Debug, Args)]
pub(crate) struct BareServerArguments {
    #[arg(long)]
    pub(crate) listen: SocketAddr,
    #[arg(long)]
    pub(crate) certificate: PathBuf,
    #[arg(long)]
    pub(crate) key: PathBuf,
    #[arg(long)]
    pub(crate) node_ca: PathBuf,
    /// Pushes a frame with that many bytes of payload to every client at each line of standard input
    #[arg(long)]
    pub(crate) push: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct LoadProcessArguments {
    /// Where the nodes dial, in turn
    #[arg(long = "address", required = true)]
    pub(crate) addresses: Vec<SocketAddr>,
    /// Folder of the authority that their certificates come from
    #[arg(long)]
    pub(crate) pki: PathBuf,
    /// File with the nodes' names, one a line
    #[arg(long)]
    pub(crate) names: PathBuf,
    /// Their execution log
    #[arg(long)]
    pub(crate) log: PathBuf,
    /// Sessions opened a second
    #[arg(long)]
    pub(crate) per_second: f64,
    /// The first bound of their back-off, and the last
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) redial_first: std::time::Duration,
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) redial_max: std::time::Duration,
    /// How long a command takes; without it, it is over at once
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) execution: Option<std::time::Duration>,
    /// Addresses that they dial from in turn
    #[arg(long, default_value_t = 1)]
    pub(crate) source_addresses: u16,
    /// What they speak
    #[arg(long)]
    pub(crate) transport: NodeTransport,
    /// The number of the first of them among all nodes
    #[arg(long, default_value_t = 0)]
    pub(crate) first: usize,
}

#[derive(Debug, Args)]
pub(crate) struct WriterAloneArguments {
    #[arg(long)]
    pub(crate) database_url: String,
    /// Sessions that feed the writer, each with one frame on its way
    #[arg(long)]
    pub(crate) nodes: u32,
    /// Entries of a batch of the bare SQL
    #[arg(long)]
    pub(crate) batch: usize,
    /// Rounds that count; one before them warms both sides up
    #[arg(long)]
    pub(crate) rounds: usize,
    /// Commands, and events, of each node in a round
    #[arg(long)]
    pub(crate) each: usize,
}
