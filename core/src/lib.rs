//! Every decision of a gateway, without sockets, clocks, threads or a database.
//!
//! A machine takes inputs with `now` and gives outputs to be carried out: constructors, then
//! `handle_*`, then `poll_*`, then getters. The shard drives `session`, the writer's thread drives
//! `writer`, the simulator drives both. `seam` is what crosses between them, `store` what the
//! writer asks of a database.

pub mod admission;
pub mod certificate;
pub mod close;
pub mod command;
pub mod crowd;
pub mod desk;
pub mod drain;
pub mod duplicate;
pub mod frame;
pub mod histogram;
pub mod hooks;
pub mod ids;
pub mod inventory;
pub mod limits;
pub mod mail;
pub mod relay;
pub mod revocation;
pub mod seam;
pub mod session;
pub mod splitmix;
pub mod store;
pub mod time;
pub mod tunnel;
pub mod writer;
