//! The scenarios, one module each.
//!
//! `steady` measures a fleet that is connected; `storm` and `multi` one that has to connect again; `chaos`
//! does to the processes what can be done to them; `hostile` sends peers that break every rule; `demo`
//! shows a small fleet to a person. What scenarios share (the fleet, the report, the machine) lies beside
//! this folder; how they end is in `verdict`, what `storm` and `multi` share in `upheaval`.

pub(crate) mod chaos;
pub(crate) mod demo;
pub(crate) mod hostile;
pub(crate) mod multi;
pub(crate) mod steady;
pub(crate) mod storm;
mod upheaval;
mod verdict;
