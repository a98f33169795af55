//! The binary: the allocator and the command line. Everything else is in the library, where an
//! embedder finds it too.
//!
//! 1. mimalloc without transparent huge pages: with them, 5,000 idle sessions take half as much again.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    gateway::cli::run()
}
