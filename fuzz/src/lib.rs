//! Made-up input for everything of a gateway that reads bytes of nodes, or an operator's file.
//!
//! `targets` holds a function for each parser, `fn(&[u8])`, which panics where a property does not hold;
//! `corpus` what the mutations start from; `mutate` makes inputs; `hunt` runs them, with bounds on memory
//! and time; `seeds` writes the corpus by the real encoders.
//!
//! It knows no coverage: it needs a stable compiler alone, and runs in the ordinary tests. A target is a
//! plain function, so that a fuzzer which knows coverage can be put before it.
//!
//! 1. An input follows from target, corpus, seed and number alone: a finding repeats.
//! 2. A finding is written to a file before anything else is done, and its file alone repeats it.

pub mod corpus;
pub mod hunt;
pub mod mutate;
pub mod seeds;
pub mod targets;

/// What is allocated is counted, for the bound on an input's memory.
#[global_allocator]
static ALLOCATOR: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;
