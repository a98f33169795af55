//! Starting a gateway: what its threads share is built here, once, and handed to them.
//!
//! Order: what can be refused without a trace comes first (relations, pins, limits, files), then the
//! lock, then listeners, then threads; the writer before the shards, since they end when it does.
//!
//! 1. `Gateway::start` returns a gateway whose threads run and whose listeners are bound, or an
//!    error, and whatever had been started by then is asked to end.
//! 2. The lock is held until every thread has ended.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use gateway_control::relay::{RelayConfig, RelayServices, RelayStatus};
use gateway_control::tunnel::TunnelStatus;
use gateway_control::{ControlConfig, ControlHandle, ControlStopper};
use gateway_core::admission::Admission;
use gateway_core::ids::{GatewayId, ShardId};
use gateway_core::limits::Limits;
use gateway_core::mail::Post;
use gateway_core::store::GatewayRow;
use gateway_core::time::Moment;
use gateway_core::writer::{Phase, WriterConfig};
use gateway_db_writer::hooks::Hooks;
use gateway_db_writer::{DbWriterConfig, WriterStatus};
use gateway_shard::tls::TlsMaterial;
use gateway_shard::{ShardConfig, ShardCounters, ShardError, TlsNews};

use super::api::{Api, GatewayDesk};
use super::embedded::Embedded;
use super::files::TlsFiles;
use super::handle::GatewayHandle;
use super::mail::{Mail, RoomMail, Seat, WriterMail};
use super::readings::{Origin, Readings};
use super::running::{RunningGateway, Stopper};
use super::supervision::{End, Event, Supervision, WRITER_THREAD, watch};
use super::tls_watch::{FileSet as _, LookAsked, TlsWatch};
use super::tunnels::TunnelServices;
use super::{files, hooks, limits, relays};
use crate::config::{Config, ConfigError, DatabaseUrl, Durability, Lines};
use crate::error::GatewayError;
use crate::lock_file::LockFile;
use crate::placement::{Machine, Plan, Wishes, plan};

const VERSION: &str = env!("CARGO_PKG_VERSION");
pub(super) const CONTROL_THREAD: &str = "control";
/// Looks at the TLS files that may be asked for at once: by signals, and by callers who wait for them.
const TLS_LOOKS: usize = 8;

/// A gateway to be started; see `start`.
#[derive(Debug)]
pub struct Gateway;

/// What every shard is given alike, and what is its own.
struct Shared {
    started: Instant,
    limits: Arc<Limits>,
    admission: Arc<Admission>,
    tls_files: TlsFiles,
    /// What they held when they were read.
    tls_read: Vec<Vec<u8>>,
    tls: Arc<TlsMaterial>,
    websocket: bool,
    identity: Arc<gateway_shard::IdentityRules>,
    spin: Duration,
    doze: Duration,
    hooks: Arc<Hooks>,
    api: Option<Api>,
}

impl Gateway {
    /// Starts all threads of a gateway in this process. An embedder starts its own log, and may have hooks and
    /// services of its own: see `start_with`.
    ///
    /// Nodes are refused until the lease is held: `wait_until_serving` waits for it. The database may
    /// be away; it is waited for. A schema that does not fit ends the gateway: `join` says so.
    pub fn start(config: &Config) -> Result<RunningGateway, GatewayError> {
        Self::start_with(config, Embedded::default())
    }

    /// The same, with hooks that are written in Rust beside those of the configuration, or services in their
    /// place: see [`crate::hooks`] and [`crate::relays`].
    pub fn start_with(
        config: &Config,
        embedded: impl Into<Embedded>,
    ) -> Result<RunningGateway, GatewayError> {
        let Embedded { hooks, relays, tunnels, database } = embedded.into();
        let problems = config.check(&Lines::default());
        if !problems.is_empty() {
            return Err(ConfigError { file: None, problems }.into());
        }
        let hooks = Arc::new(hooks::hooks(config, hooks)?);
        let machine = Machine::look()
            .map_err(|error| GatewayError::Machine(format!("the cpus can't be seen: {error}")))?;
        let plan = plan(&Wishes::of(config), &machine)?;
        limits::prepare(config, plan.shards.len())?;
        let started = Instant::now();
        let tunnels = TunnelServices::of(config, tunnels)?;
        let limits = tunnels.limits(config);
        let tls_files = TlsFiles::of(config);
        let tls_read = tls_files.read()?;
        tls_files.warn_if_open();
        let shared = Shared {
            started,
            admission: Arc::new(Admission::new(&limits, Moment::on_clock(started, started))),
            limits,
            tls: Arc::new(tls_files.material(&tls_read)?),
            websocket: config.listen.websocket,
            tls_files,
            tls_read,
            identity: files::identity_rules(config)?,
            spin: plan.spin,
            doze: config.shards.doze.0,
            hooks,
            api: Api::prepare(config)?,
        };
        let urls = DatabaseUrls::read(config, database)?;
        let relays = relays::services(config, relays, &urls.database)?;
        let lock = LockFile::take(&config.gateway.state_dir, &config.gateway.id)?;
        let (listeners, address) =
            limits::bind_listeners(config.listen.address, config.listen.backlog, plan.shards.len())?;
        tracing::info!(%plan, %address, database = %urls.database, "starting gateway {} {VERSION}", config.gateway.id);
        Threads::start(config, &plan, shared, (relays, tunnels), urls, lock, listeners, address)
    }
}

struct DatabaseUrls {
    database: DatabaseUrl,
    listen: Option<DatabaseUrl>,
}

impl DatabaseUrls {
    fn read(config: &Config, given: Option<DatabaseUrl>) -> Result<Self, ConfigError> {
        let refused = |problem| ConfigError { file: None, problems: vec![problem] };
        let database = given.map_or_else(|| config.database_url(), Ok).map_err(refused)?;
        let listen = config.listen_url().map_err(refused)?;
        for (key, file) in [
            ("database.url_file", &config.database.url_file),
            ("database.listen_url_file", &config.database.listen_url_file),
        ] {
            if let Some(file) = file {
                files::warn_if_open(key, file);
            }
        }
        Ok(Self { database, listen })
    }
}

/// Watches the TLS files for all shards and the control API.
fn watch_tls(
    config: &Config,
    shared: Shared,
    shards: Vec<Post<TlsNews>>,
    readings: &Readings,
    asked: Receiver<LookAsked>,
) -> Result<(), GatewayError> {
    readings.tls().note_serving(shared.tls.serving());
    let watch = TlsWatch::new(shared.tls_files, shared.tls_read, shards, Arc::clone(readings.tls()));
    let watch = match shared.api {
        None => watch,
        Some(api) => watch.with_api(api.files, api.read, api.listener, Arc::clone(readings.api_tls())),
    };
    watch.start(config.tls.reload_every.0, asked)
}

/// What the writer and the rooms count.
#[derive(Default)]
struct Statuses {
    writer: Arc<WriterStatus>,
    relays: Arc<RelayStatus>,
    tunnels: Arc<TunnelStatus>,
}

/// Starts threads one after the other; what was started ends with it when a later one fails.
struct Threads {
    sender: Sender<Event>,
    supervision: Supervision,
}

impl Threads {
    #[allow(clippy::too_many_arguments, reason = "each is one thing of one gateway, named once")]
    fn start(
        config: &Config,
        plan: &Plan,
        shared: Shared,
        (relays, tunnels): (RelayServices, TunnelServices),
        urls: DatabaseUrls,
        lock: LockFile,
        listeners: Vec<std::net::TcpListener>,
        address: SocketAddr,
    ) -> Result<RunningGateway, GatewayError> {
        let (sender, events) = crossbeam_channel::unbounded();
        let mut threads = Self { sender, supervision: Supervision::default() };
        let mail = Mail::new(&shared.limits, plan.shards.len());
        let counters: Vec<Arc<ShardCounters>> = plan.shards.iter().map(|_| Arc::default()).collect();
        let statuses = Statuses::default();
        let readings = statuses.readings(config, plan, &shared, &counters);
        let (reload, look_asked) = crossbeam_channel::bounded(TLS_LOOKS);
        // First of the threads: its address stands in the gateway's row.
        let (services, desk) = ((relays, tunnels), mail.rooms.desk.clone());
        let seen = (&statuses, &readings);
        let control =
            start_control(config, plan.control, &shared, services, mail.rooms, seen, reload.clone())?;
        let (control_address, api_address) = (control.address(), control.api_address());
        let control_stopper = control.stopper();
        let mut given_up = GivenUp::new(control_stopper.clone());
        threads.watch(CONTROL_THREAD, move || control.join().into())?;

        let internal_url = internal_url(config, control_address, api_address);
        let writer = writer_config(config, &lock, &shared, plan.shards.len(), &internal_url)?;
        let status = Arc::clone(&statuses.writer);
        let writer = writer_thread(config, plan.writer, writer, &shared, urls, mail.writer, status);
        let writer = gateway_db_writer::spawn(writer).map_err(|error| not_started(WRITER_THREAD, &error))?;
        let stopper = Stopper(writer.stop_handle());
        given_up.writer = Some(stopper.clone());
        threads.watch(WRITER_THREAD, move || writer.join().into())?;

        let seats = plan.shards.iter().zip(listeners).zip(mail.seats).zip(&counters);
        for (index, (((cpu, listener), seat), counters)) in seats.enumerate() {
            threads.start_shard(index, *cpu, listener, seat, counters, &shared)?;
        }
        watch_tls(config, shared, mail.tls_posts, &readings, look_asked)?;
        announce_phases(&statuses.writer, &threads.sender)?;
        given_up.is_complete = true;
        let handle = GatewayHandle::new(Arc::clone(&readings), desk, mail.visitors, stopper.clone());
        Ok(RunningGateway {
            handle,
            address,
            control_address,
            api_address,
            readings,
            stopper,
            control: control_stopper,
            sender: threads.sender,
            events,
            supervision: threads.supervision,
            bells: mail.bells,
            reload,
            _lock: lock,
        })
    }

    fn start_shard(
        &mut self,
        index: usize,
        cpu: Option<usize>,
        listener: std::net::TcpListener,
        seat: Seat,
        counters: &Arc<ShardCounters>,
        shared: &Shared,
    ) -> Result<(), GatewayError> {
        let shard = ShardId(u16::try_from(index).expect("placement allows a few hundred shards"));
        let name = format!("shard-{shard}");
        let handle = gateway_shard::spawn(ShardConfig {
            shard,
            cpu,
            started: shared.started,
            limits: Arc::clone(&shared.limits),
            admission: Arc::clone(&shared.admission),
            tls: Arc::clone(&shared.tls),
            websocket: shared.websocket,
            identity: Arc::clone(&shared.identity),
            tls_news: seat.tls_news,
            visitors: seat.visitors,
            listener,
            writer: seat.to_writer,
            inbox: seat.inbox,
            relays: seat.to_relays,
            tunnels: seat.to_tunnels,
            counters: Arc::clone(counters),
            spin: shared.spin,
            doze: shared.doze,
        })
        .map_err(|error| not_started(&name, &error))?;
        self.watch(&name, move || match handle.join() {
            Err(ShardError::WriterGone { .. }) => End::Orphaned,
            outcome => outcome.into(),
        })
    }

    fn watch(
        &mut self,
        thread: &str,
        join: impl FnOnce() -> End + Send + 'static,
    ) -> Result<(), GatewayError> {
        watch(thread.to_owned(), &self.sender, join)?;
        self.supervision.handle_started(thread.to_owned());
        Ok(())
    }
}

/// Stops what was started when a later thread can't be.
struct GivenUp {
    control: ControlStopper,
    writer: Option<Stopper>,
    is_complete: bool,
}

impl GivenUp {
    const fn new(control: ControlStopper) -> Self {
        Self { control, writer: None, is_complete: false }
    }
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        if !self.is_complete {
            self.control.stop();
            if let Some(writer) = &self.writer {
                writer.stop();
            }
        }
    }
}

/// The thread of the relays, the tunnels, and the control API.
fn start_control(
    config: &Config,
    cpu: Option<usize>,
    shared: &Shared,
    (relays, tunnels): (RelayServices, TunnelServices),
    mail: RoomMail,
    (statuses, readings): (&Statuses, &Arc<Readings>),
    looks: Sender<LookAsked>,
) -> Result<ControlHandle, GatewayError> {
    let (listen, started) = (config.control.listen, shared.started);
    let relays = RelayConfig {
        inbox: mail.relay_inbox,
        to_shards: mail.relays_to_shards,
        limits: Arc::clone(&shared.limits),
        started,
        services: relays,
        status: Arc::clone(&statuses.relays),
    };
    let tunnel_status = Arc::clone(&statuses.tunnels);
    let (inbox, to_shards) = (mail.tunnel_inbox, mail.tunnels_to_shards);
    let tunnels = tunnels.room(config, &shared.limits, inbox, to_shards, started, tunnel_status);
    let desk = GatewayDesk { writer: mail.desk, looks };
    let api = shared.api.as_ref();
    let api = api.and_then(|api| api.config(config, desk, mail.control_to_shards, started));
    let status: Arc<dyn gateway_control::Status> = Arc::<Readings>::clone(readings);
    let (relays, tunnels) = (Some(relays), Some(tunnels));
    gateway_control::spawn(ControlConfig { listen, cpu, status, api, relays, tunnels }).map_err(|error| {
        let key = if error.address == listen { "control.listen" } else { "control.api_listen" };
        GatewayError::Machine(format!("can't listen on {error} ({key})"))
    })
}

impl Statuses {
    fn readings(
        &self,
        config: &Config,
        plan: &Plan,
        shared: &Shared,
        counters: &[Arc<ShardCounters>],
    ) -> Arc<Readings> {
        Arc::new(Readings::new(
            origin(config, shared),
            Arc::clone(&shared.admission),
            Arc::clone(&self.writer),
            Arc::clone(&self.relays),
            Arc::clone(&self.tunnels),
            plan.shards.iter().copied().zip(counters.iter().cloned()).collect(),
        ))
    }
}

fn origin(config: &Config, shared: &Shared) -> Origin {
    Origin {
        gateway: config.gateway.id.clone(),
        version: VERSION,
        started: shared.started,
        limits: Arc::clone(&shared.limits),
        lease_ttl: config.lease.ttl.0,
    }
}

/// Where others reach the control API, or, where there is none, health and metrics.
fn internal_url(config: &Config, control: SocketAddr, api: Option<SocketAddr>) -> String {
    config.gateway.internal_url.clone().unwrap_or_else(|| match api {
        Some(api) => format!("https://{api}"),
        None => format!("http://{control}"),
    })
}

fn writer_config(
    config: &Config,
    lock: &LockFile,
    shared: &Shared,
    shards: usize,
    internal_url: &str,
) -> Result<WriterConfig, GatewayError> {
    let gateway = GatewayId::new(&config.gateway.id)
        .map_err(|error| GatewayError::Machine(format!("gateway.id: {error}")))?;
    Ok(WriterConfig {
        gateway,
        owner: lock.owner().to_owned(),
        dead_owner_prefix: Some(lock.dead_owner_prefix().to_owned()),
        row: GatewayRow {
            region: config.gateway.region.clone(),
            internal_url: internal_url.to_owned(),
            version: VERSION.to_owned(),
            max_streams: u32::try_from(shared.limits.streams).unwrap_or(u32::MAX),
        },
        shards: u16::try_from(shards).expect("placement allows a few hundred shards"),
        limits: Arc::clone(&shared.limits),
        lease_ttl: config.lease.ttl.0,
        lease_renew_every: config.lease.renew_every.0,
        poll_every: config.dispatch.poll_every.0,
        sweep_every: config.sweeps.every.0,
        spec_sweep_every: config.specs.sweep_every.0,
        revocation_poll: config.identity.revocation_poll.0,
        revocation_scan: config.identity.revocation_scan.0,
        hooked: shared.hooks.kinds(),
    })
}

fn writer_thread(
    config: &Config,
    cpu: Option<usize>,
    writer: WriterConfig,
    shared: &Shared,
    urls: DatabaseUrls,
    mail: WriterMail,
    status: Arc<WriterStatus>,
) -> DbWriterConfig {
    DbWriterConfig {
        database_url: urls.database.reveal().to_owned(),
        listen_url: urls.listen.map(|url| url.reveal().to_owned()),
        writer,
        cpu,
        inbox: mail.inbox,
        desk: mail.desk,
        shards: mail.to_shards,
        started: shared.started,
        synchronous_dispatch: config.dispatch.durability == Durability::Synchronous,
        listen: config.database.notify,
        status,
        hooks: Arc::clone(&shared.hooks),
        destructive_kinds: config.identity.destructive_kinds.clone().into(),
    }
}

fn not_started(thread: &str, error: &std::io::Error) -> GatewayError {
    GatewayError::Machine(format!("the thread {thread} can't be started: {error}"))
}

/// A thread that says each phase of the writer, until the last.
fn announce_phases(status: &Arc<WriterStatus>, sender: &Sender<Event>) -> Result<(), GatewayError> {
    /// How long one wait may be; longer than any life of a process.
    const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let (status, sender) = (Arc::clone(status), sender.clone());
    let announce = move || {
        let mut phase = Phase::Waiting;
        while phase != Phase::Stopped {
            phase = status.wait_for_phase_change(phase, Instant::now() + FAR);
            if sender.send(Event::Phase(phase)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("phases".to_owned())
        .spawn(announce)
        .map(drop)
        .map_err(|error| not_started("phases", &error))
}
