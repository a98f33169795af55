//! A deterministic world around the real machines of `gateway_core`.
//!
//! It links the writer and the sessions that a gateway runs, never twins of them, and puts them
//! between simulated nodes and a reference store in memory, with delays, crashes, lost leases, lost
//! connections and commits whose outcome nobody learns. One seed is one history: a failure is
//! repeated by its seed alone. `rehearsal` is a smaller one, for nodes of one's own.
//!
//! 1. Nothing here reads a clock, a thread or an address; equal seeds give equal digests.
//! 2. What must hold is asserted at every step by the machines, the store, the nodes and the world.

mod answers;
mod check;
mod company;
mod coverage;
mod inventory;
mod journal;
mod node;
mod node_specs;
mod oracle;
mod process;
mod random;
pub mod rehearsal;
mod statuses;
pub mod store;
mod survey;
mod watched;
mod world;

pub use coverage::Coverage;
pub use random::Chance;
pub use survey::{Failure, Survey, survey};
pub use world::{FAULTS, Plan, Story, World};

/// Lives through the world of one seed. Panics where something does not hold.
pub fn live(seed: u64, plan: Plan) -> Story {
    World::new(seed, plan).live()
}
