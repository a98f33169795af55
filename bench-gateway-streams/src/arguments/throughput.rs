//! The command line of `throughput`, and its plan.
//!
//! A flag wins over the plan's file, the file over the default. Each part (commands, events, sections, the
//! writer alone) is measured for the same time, one after the other; `--only` leaves parts out.

use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::load::{LoadArguments, LoadFile, LoadPlan, plan_file};
use super::{GateFile, GatewayArguments};
use crate::gate::GateBounds;

/// What goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    /// Commands from enqueue to the durable result, over sockets.
    Commands,
    /// Events of nodes' journals, over sockets.
    Events,
    /// Sections of inventories, over sockets.
    Sections,
    /// The writer's thread fed from memory, beside bare SQL.
    Writer,
}

const ALL_PARTS: [Part; 4] = [Part::Commands, Part::Events, Part::Sections, Part::Writer];

#[derive(Debug, Args)]
pub(crate) struct ThroughputArguments {
    #[command(flatten)]
    pub(crate) load: LoadArguments,
    /// Commands that are under way at once [default: 4000]
    #[arg(long)]
    pub(crate) window: Option<usize>,
    /// Commands that one transaction enqueues [default: 500]
    #[arg(long)]
    pub(crate) enqueue_batch: Option<usize>,
    /// Connections that enqueue [default: 2]
    #[arg(long)]
    pub(crate) enqueuers: Option<usize>,
    /// Events that a node has written and not seen acked, at the most [default: 20]
    #[arg(long)]
    pub(crate) events_ahead: Option<usize>,
    /// Sessions that feed the writer from memory [default: 1500]
    #[arg(long)]
    pub(crate) writer_nodes: Option<u32>,
    /// Only these parts, with commas between them [default: all]
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<Part>,
    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
}

/// What `throughput` does, all settled.
#[derive(Debug)]
pub(crate) struct ThroughputPlan {
    pub(crate) load: LoadPlan,
    pub(crate) window: usize,
    pub(crate) enqueue_batch: usize,
    pub(crate) enqueuers: usize,
    pub(crate) events_ahead: usize,
    pub(crate) writer_nodes: u32,
    pub(crate) parts: Vec<Part>,
    pub(crate) gate: GateBounds,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PlanFile {
    load: LoadFile,
    throughput: ThroughputFile,
    gate: GateFile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ThroughputFile {
    window: Option<usize>,
    enqueue_batch: Option<usize>,
    enqueuers: Option<usize>,
    events_ahead: Option<usize>,
    writer_nodes: Option<u32>,
    only: Vec<Part>,
}

impl ThroughputArguments {
    /// Settles flags, file and defaults.
    pub(crate) fn plan(&self) -> anyhow::Result<ThroughputPlan> {
        let file: PlanFile = plan_file(self.load.config.as_deref())?;
        let named = if self.only.is_empty() { file.throughput.only } else { self.only.clone() };
        let gate = GateBounds { dispatch_p99_ms: None, ..GateBounds::contract() };
        let default = LoadPlan { duration: std::time::Duration::from_secs(20), ..LoadPlan::of(1000, 1.0) };
        let plan = ThroughputPlan {
            load: self.load.plan(file.load, default)?,
            window: self.window.or(file.throughput.window).unwrap_or(4000),
            enqueue_batch: self.enqueue_batch.or(file.throughput.enqueue_batch).unwrap_or(500),
            enqueuers: self.enqueuers.or(file.throughput.enqueuers).unwrap_or(2),
            events_ahead: self.events_ahead.or(file.throughput.events_ahead).unwrap_or(20),
            writer_nodes: self.writer_nodes.or(file.throughput.writer_nodes).unwrap_or(1500),
            parts: if named.is_empty() { ALL_PARTS.to_vec() } else { named },
            gate: file.gate.over(gate),
        };
        anyhow::ensure!(
            plan.window > 0 && plan.enqueue_batch > 0,
            "--window and --enqueue-batch must be above 0"
        );
        anyhow::ensure!((1..=32).contains(&plan.enqueuers), "--enqueuers must be 1 to 32");
        anyhow::ensure!(plan.events_ahead > 0, "--events-ahead must be above 0");
        anyhow::ensure!(plan.writer_nodes > 0, "--writer-nodes must be above 0");
        anyhow::ensure!(plan.load.duration.as_millis() >= 500, "--duration must be at least 500ms");
        Ok(plan)
    }
}

impl ThroughputPlan {
    /// Whether that part is measured.
    pub(crate) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}
