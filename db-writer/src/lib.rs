//! The writer's thread: the one that speaks with PostgreSQL.
//!
//! `schema` brings the database up to date, `QueueRunner` carries out the jobs of one queue, and
//! `spawn` starts the thread that drives `gateway_core::writer::Writer` over all of them. What is
//! decided is decided in the core or, under a row's lock, in `queries/*.sql`. Beside it `certificates` reads
//! single rows for the relays, on their thread.

mod certificates;
mod connection;
mod desk;
mod failure;
pub mod hooks;
mod jobs;
mod listener;
mod log_lines;
mod loop_status;
mod loops;
mod outbox;
mod queues;
mod schema;
mod status;
mod thread;
mod turn;

pub use certificates::{CertificateReader, CertificatesAway};
pub use desk::{DeskError, DeskInbox, DeskPost, desk};
pub use jobs::QueueRunner;
pub use loop_status::{LoopReading, LoopStatus};
pub use loops::LoopEnded;
pub use schema::{
    MIGRATIONS, MigrationReport, OLDEST_SERVED, SchemaError, migrate, newest_version, schema_version,
};
pub use status::{QueueStatus, WriterStatus};
pub use thread::{DbWriterConfig, DbWriterError, DbWriterHandle, StopHandle, check_url, spawn};
