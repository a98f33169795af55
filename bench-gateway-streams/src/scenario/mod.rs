//! The scenarios, one module each.
//!
//! `steady` measures a fleet that is connected, `bloat` the same while nothing is vacuumed; `fanout` reaches all
//! at once; `throughput` takes what goes through; `storm` and `multi` measure a fleet that has to connect again;
//! `chaos` does to the processes what can be done to them, `chaos::soak` for hours; `hostile` sends peers that
//! break every rule; `growth` repeats a measure along an axis; `demo` shows a small fleet to a person. What
//! scenarios share (the fleet, the report, the machine) lies beside this folder; how they end is in `verdict`,
//! a fleet that stands in `ground`, what `storm` and `multi` share in `upheaval`.

pub(crate) mod bloat;
pub(crate) mod chaos;
pub(crate) mod demo;
pub(crate) mod fanout;
mod ground;
pub(crate) mod growth;
pub(crate) mod hostile;
pub(crate) mod multi;
pub(crate) mod steady;
pub(crate) mod storm;
pub(crate) mod throughput;
mod upheaval;
mod verdict;
