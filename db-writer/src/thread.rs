//! The writer's thread: how it is started, stopped and awaited.
//!
//! 1. One thread, pinned where that is asked for, with a runtime of its own that no other uses.
//! 2. It begins when the schema is one that it serves and has the functions that hooks name. A database
//!    that is away is waited for; one that can't be used ends the thread with the reason.
//! 3. A stop is asked for once, from any thread, and ends the thread when all is written. A crash ends it at once,
//!    and nothing is written after it was asked for.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gateway_core::drain::DrainPlan;
use gateway_core::mail::{Inbox, Post};
use gateway_core::seam::{ToShard, ToWriter};
use gateway_core::store::StoreError;
use gateway_core::writer::{Phase, Writer, WriterConfig};
use rustix::thread::{CpuSet, sched_setaffinity};
use sqlx::postgres::PgConnectOptions;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::desk::DeskInbox;
use crate::hooks::{Hooks, HooksError, check_hooks};
use crate::listener;
use crate::log_lines::LogLines;
use crate::loops::{LoopEnded, Loops, panic_text};
use crate::outbox::Outbox;
use crate::queues::{Clock, Queues};
use crate::schema::{SchemaError, schema_version};
use crate::status::WriterStatus;
use crate::turn::Loop;

const LONGEST_SCHEMA_BACK_OFF: Duration = Duration::from_secs(2);

/// What the thread is made of.
#[derive(Debug)]
pub struct DbWriterConfig {
    /// `postgres://…`, also of a unix socket (`?host=/folder`). A direct connection: a pooler in
    /// transaction mode takes prepared statements and notifications away.
    pub database_url: String,
    /// Where to listen for notifications, if not there.
    pub listen_url: Option<String>,
    pub writer: WriterConfig,
    /// The cpu that the thread is pinned to.
    pub cpu: Option<usize>,
    /// What the shards post.
    pub inbox: Inbox<ToWriter>,
    /// The way to each shard, in order of shard id.
    pub shards: Vec<Post<ToShard>>,
    /// What the control API asks.
    pub desk: DeskInbox,
    /// The start of the process's clock, the same for all its threads.
    pub started: Instant,
    /// Whether a dispatch waits for the disk.
    pub synchronous_dispatch: bool,
    /// Whether notifications are listened for.
    pub listen: bool,
    pub status: Arc<WriterStatus>,
    /// What runs for what is stored; `writer.hooked` says how many of which kind.
    pub hooks: Arc<Hooks>,
    /// Kinds of commands that go to no machine that its tenant controls.
    pub destructive_kinds: Arc<[String]>,
}

/// Why the thread ended, other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum DbWriterError {
    #[error("the database can't be served from: {0}")]
    Schema(#[source] SchemaError),
    #[error("the database can't be served from: {0}")]
    Hooks(#[source] HooksError),
    #[error("{key} is not one: {why}")]
    Url { key: &'static str, why: String },
    #[error("{0}")]
    Loop(#[source] LoopEnded),
    #[error("the db-writer thread panicked: {0}")]
    Panicked(String),
}

/// Asks the thread to stop, from any thread.
#[derive(Debug, Clone)]
pub struct StopHandle(Arc<StopSignal>);

impl StopHandle {
    /// Shards are told to close their sessions; what is owed is written; the lease is released.
    pub fn stop(&self) {
        self.0.asked.store(true, Ordering::Release);
        self.0.bell.notify_one();
    }

    /// The thread ends as its process would: nothing more is written, the lease is kept until it runs out, nobody is
    /// told. What was sent to the database before is carried out, or not.
    pub fn crash(&self) {
        self.0.crashed.store(true, Ordering::Release);
        self.0.bell.notify_one();
    }

    /// Whether the stop was asked for.
    pub fn stop_was_asked(&self) -> bool {
        self.0.asked.load(Ordering::Acquire)
    }

    /// Whether a drain was asked for.
    pub fn drain_was_asked(&self) -> bool {
        self.0.drain.get().is_some()
    }

    /// Nodes are told to leave; when they have, or have had long enough, the same as `stop`.
    pub fn drain(&self, plan: DrainPlan) {
        // The first plan stands.
        let _ = self.0.drain.set(plan);
        self.0.bell.notify_one();
    }
}

#[derive(Debug, Default)]
pub(crate) struct StopSignal {
    asked: AtomicBool,
    crashed: AtomicBool,
    drain: OnceLock<DrainPlan>,
    bell: Notify,
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Drain(DrainPlan),
    Stop,
    Crash,
}

impl StopSignal {
    /// Resolves when a drain, the stop or a crash is asked for.
    pub(crate) async fn requested(&self) -> Ask {
        loop {
            self.bell.notified().await;
            if self.is_crashed() {
                return Ask::Crash;
            }
            if self.asked.load(Ordering::Acquire) {
                return Ask::Stop;
            }
            if let Some(plan) = self.drain.get() {
                return Ask::Drain(*plan);
            }
        }
    }

    /// Whether the thread is to end at once.
    pub(crate) fn is_crashed(&self) -> bool {
        self.crashed.load(Ordering::Acquire)
    }

    /// Whether the thread is to end; there is nobody to drain before it serves.
    fn is_requested(&self) -> bool {
        self.asked.load(Ordering::Acquire) || self.is_crashed() || self.drain.get().is_some()
    }
}

/// The running thread.
#[derive(Debug)]
pub struct DbWriterHandle {
    thread: JoinHandle<Result<(), DbWriterError>>,
    stop: StopHandle,
}

impl DbWriterHandle {
    /// A handle that asks it to stop.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Whether it has ended, for whatever reason.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until it has ended. A panic is an error.
    pub fn join(self) -> Result<(), DbWriterError> {
        self.thread.join().unwrap_or_else(|panic| Err(DbWriterError::Panicked(panic_text(panic.as_ref()))))
    }
}

/// Starts the thread `db-writer`. An error is one of the system: no thread, no such cpu.
pub fn spawn(config: DbWriterConfig) -> io::Result<DbWriterHandle> {
    let signal = Arc::new(StopSignal::default());
    let stop = StopHandle(Arc::clone(&signal));
    let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("db-writer".to_owned()).spawn(move || {
        let _ended = EndedMark(Arc::clone(&config.status));
        let Some(runtime) = prepare(config.cpu, &ready) else { return Ok(()) };
        // The listener's connection wants a runtime when it is dropped, with the tasks, at the end.
        let _context = runtime.enter();
        let tasks = LocalSet::new();
        tasks.block_on(&runtime, serve(config, signal))
    })?;
    let prepared =
        is_ready.recv().unwrap_or_else(|_| Err(io::Error::other("the db-writer thread did not start")));
    prepared.map(|()| DbWriterHandle { thread, stop })
}

/// Whoever waits for a phase learns that the thread has ended, by a panic too.
struct EndedMark(Arc<WriterStatus>);

impl Drop for EndedMark {
    fn drop(&mut self) {
        self.0.set_phase(Phase::Stopped);
    }
}

/// Pins the thread and makes its runtime; tells whether that went well.
fn prepare(cpu: Option<usize>, ready: &SyncSender<io::Result<()>>) -> Option<tokio::runtime::Runtime> {
    let pinned = cpu.map_or(Ok(()), |cpu| {
        let mut cpus = CpuSet::new();
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no cpu {cpu}")));
        }
        cpus.set(cpu);
        sched_setaffinity(None, &cpus).map_err(|error| {
            io::Error::new(error.kind(), format!("can't pin the db-writer to cpu {cpu}: {error}"))
        })
    });
    let runtime = pinned.and_then(|()| tokio::runtime::Builder::new_current_thread().enable_all().build());
    let (runtime, answer) = match runtime {
        Ok(runtime) => (Some(runtime), Ok(())),
        Err(error) => (None, Err(error)),
    };
    // The caller waits for it, so it is there.
    let _ = ready.send(answer);
    runtime
}

async fn serve(config: DbWriterConfig, stop: Arc<StopSignal>) -> Result<(), DbWriterError> {
    let options = connect_options("database.url", &config.database_url)?;
    let listen_options = match &config.listen_url {
        Some(url) => connect_options("database.listen_url", url)?,
        None => options.clone(),
    };
    let may_serve = wait_for_database(&options, &config.hooks, &stop, &config.status).await?;
    let clock = Clock::new(config.started);
    let gateway = config.writer.gateway.clone();
    let duplicates = config.writer.limits.duplicates;
    let unknown_serial = config.writer.limits.unknown_serial;
    let mut loops = Loops::default();
    let mut turns = Loop {
        writer: Writer::new(config.writer, clock.now()),
        clock,
        inbox: config.inbox,
        outbox: Outbox::new(config.shards),
        queues: Queues::start(
            &options,
            &gateway,
            config.synchronous_dispatch,
            duplicates,
            unknown_serial,
            &config.destructive_kinds,
            &config.hooks,
            &mut loops,
            &config.status,
        ),
        pokes: listener::start(
            &listen_options,
            &gateway,
            config.listen,
            &mut loops,
            Arc::clone(&config.status),
        ),
        loops,
        desk: config.desk,
        stop,
        status: config.status,
        log: LogLines::new(gateway),
        shards_gone: false,
    };
    if !may_serve {
        // The shards run and must be told; there is nothing to write.
        turns.writer.handle_stop(clock.now());
    }
    turns.run().await.map_err(DbWriterError::Loop)
}

/// Says what is wrong with a URL of a database, without repeating it.
pub fn check_url(url: &str) -> Result<(), String> {
    url.parse::<PgConnectOptions>().map(drop).map_err(|error| match error {
        sqlx::Error::Configuration(why) => why.to_string(),
        other => other.to_string(),
    })
}

fn connect_options(key: &'static str, url: &str) -> Result<PgConnectOptions, DbWriterError> {
    url.parse().map_err(|error: sqlx::Error| DbWriterError::Url { key, why: error.to_string() })
}

/// Whether the database has what is needed; the version of its schema.
async fn look_at_database(
    options: &PgConnectOptions,
    hooks: &Hooks,
) -> Result<i64, (DbWriterError, StoreError)> {
    let version = schema_version(options).await.map_err(|error| {
        let means = error.to_store_error();
        (DbWriterError::Schema(error), means)
    })?;
    check_hooks(options, hooks).await.map_err(|error| {
        let means = error.to_store_error();
        (DbWriterError::Hooks(error), means)
    })?;
    Ok(version)
}

/// Waits until the database is there with a schema that this binary serves and with its hooks. `false` when
/// a stop was asked for meanwhile.
async fn wait_for_database(
    options: &PgConnectOptions,
    hooks: &Hooks,
    stop: &StopSignal,
    status: &WriterStatus,
) -> Result<bool, DbWriterError> {
    let mut back_off = Duration::from_millis(100);
    let mut complained = false;
    while !stop.is_requested() {
        status.ticks.fetch_add(1, Ordering::Relaxed);
        let checked = tokio::select! {
            checked = look_at_database(options, hooks) => checked,
            _ = stop.requested() => return Ok(false),
        };
        match checked {
            Ok(version) => {
                tracing::debug!(version, "schema and hooks checked");
                if complained {
                    tracing::info!("all clear: the database is back");
                }
                return Ok(true);
            }
            Err((error, StoreError::Fatal(_))) => return Err(error),
            Err((error, _)) if !complained => {
                complained = true;
                tracing::warn!(%error, "the database is away; waiting for it");
            }
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(back_off) => {}
            _ = stop.requested() => return Ok(false),
        }
        back_off = (back_off * 2).min(LONGEST_SCHEMA_BACK_OFF);
    }
    Ok(false)
}
