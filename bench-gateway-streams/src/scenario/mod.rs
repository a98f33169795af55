//! The scenarios, one module each.

pub(crate) mod demo;
pub(crate) mod steady;
