//! What a test, a benchmark or a demonstration needs around a gateway: a private PostgreSQL
//! cluster, a throw-away PKI, the gateway as its own process, simulated nodes over real TLS and
//! HTTP/2, and the check that compares the nodes' own logs with the database.
//!
//! It drives a gateway from outside and knows none of its parts but the wire.
//!
//! 1. What it starts ends with it, also after a panic or a SIGKILL of the test.
//! 2. It waits for signals (readiness, exits, events), not for times.
//! 3. It is the only crate here that may sign a certificate.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod authority;
pub mod balancer;
pub mod bare;
pub mod clock;
pub mod cluster;
pub mod database;
pub mod gateway_process;
pub mod ledger;
pub mod node;
pub mod pki;
pub mod process;
pub mod raw;
pub mod tickets;
