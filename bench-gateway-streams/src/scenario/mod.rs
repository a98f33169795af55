//! The scenarios, one module each.
//!
//! `steady` measures a fleet that is connected; `demo` shows a small one to a person. What scenarios
//! share (the fleet, the report, the machine) lies beside this folder, not in it.

pub(crate) mod demo;
pub(crate) mod steady;
