//! The harness by which this project proves its claims, and that an operator runs on their own
//! machines: it provisions a database, certificates and a gateway, opens node sessions over real
//! sockets, and reports what it measured.
//!
//! 1. Load, PostgreSQL and gateway are separate processes.
//! 2. Exit code 0: the run was sound and its gate held; 1: a gate missed; 2: the run failed.
//! 3. What it started is gone when it ends, also on Ctrl-C.

mod arguments;
mod bare;
mod compare;
mod enqueuer;
mod fleet;
mod flood;
mod floor;
mod gate;
mod host;
mod interrupt;
mod latency;
mod micro;
mod plots;
mod progress;
mod report;
mod sampler;
mod scenario;
mod scraper;
mod statistics;
mod table;
mod tracker;
mod world;
mod writer_alone;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Scenario};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if matches!(arguments.scenario, Scenario::Chaos(_) | Scenario::Soak(_))
        && let Err(error) = scenario::chaos::in_namespaces_of_its_own()
    {
        return failed(&error);
    }
    // One thread for all nodes: on a small machine a second one would take the gateway's core.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&anyhow::anyhow!("the runtime does not start: {error}")),
    };
    match runtime.block_on(run(arguments)) {
        Ok(held) if held => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => failed(&error),
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<bool> {
    match arguments.scenario {
        Scenario::Steady(arguments) => {
            interrupt::unless_interrupted(Box::pin(scenario::steady::run(arguments))).await
        }
        Scenario::Storm(arguments) => {
            interrupt::unless_interrupted(Box::pin(scenario::storm::run(arguments))).await
        }
        Scenario::Multi(arguments) => {
            interrupt::unless_interrupted(Box::pin(scenario::multi::run(arguments))).await
        }
        Scenario::Chaos(arguments) => {
            interrupt::unless_interrupted(Box::pin(scenario::chaos::run(arguments))).await
        }
        Scenario::Hostile(arguments) => {
            interrupt::unless_interrupted(Box::pin(scenario::hostile::run(arguments))).await
        }
        Scenario::Fanout(arguments) => {
            interrupt::unless_interrupted(Box::pin(scenario::fanout::run(arguments))).await
        }
        Scenario::Throughput(arguments) => {
            interrupt::unless_interrupted(Box::pin(scenario::throughput::run(arguments))).await
        }
        Scenario::Bloat(arguments) => {
            interrupt::unless_interrupted(Box::pin(scenario::bloat::run(arguments))).await
        }
        Scenario::Soak(arguments) => {
            interrupt::unless_interrupted(Box::pin(scenario::chaos::soak::run(arguments))).await
        }
        Scenario::Growth(arguments) => {
            interrupt::unless_interrupted(Box::pin(scenario::growth::run(arguments))).await
        }
        Scenario::Micro(arguments) => interrupt::unless_interrupted(Box::pin(micro::run(arguments))).await,
        Scenario::Compare(arguments) => compare::run(&arguments),
        Scenario::Table(arguments) => table::run(&arguments),
        Scenario::LoadProcess(arguments) => Box::pin(fleet::serve(*arguments)).await,
        Scenario::WriterAlone(arguments) => Box::pin(writer_alone::serve(arguments)).await,
        Scenario::HostilePeer(arguments) => Box::pin(scenario::hostile::serve(*arguments)).await,
        Scenario::BareServer(arguments) => bare::serve(arguments).await,
        Scenario::Demo(arguments) => Box::pin(scenario::demo::run(arguments)).await,
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    progress::say_error(&format!("{error:#}"));
    ExitCode::from(2)
}
