//! Hears the notifications that tell of new commands, changed specs and revoked certificates, on a direct connection of its own.
//!
//! 1. Nothing depends on it: the poll finds what is never heard. So every fault here is a line in
//!    the log and a new try.
//! 2. After each connect the notifications are tested: a probe must come back, or the log says why
//!    it may not (a pooler in transaction mode swallows them).
//! 3. Whoever was not heard while there was no connection is looked for afterwards: all lanes, all specs,
//!    what was revoked.
//! 4. Specs and revocations are told on channels of their own: no kind of poke costs what only another needs.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gateway_core::ids::{GatewayId, NodeId};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::sync::mpsc;

use crate::loops::Loops;
use crate::status::WriterStatus;

const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(10);
/// Begins with a control character, so that it is no node id.
const PROBE: &str = "\u{1}probe";
/// The name of the loop.
/// All gateways hear on it.
const CERTIFICATES_CHANNEL: &str = "gateway_certs";
const LISTENER: &str = "listener";
/// Pokes that wait for the loop; past it, all lanes are looked at instead.
const MAX_WAITING_POKES: usize = 4096;

/// What was heard. `None`: of nodes that are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Poke {
    Commands(Option<NodeId>),
    Specs(Option<NodeId>),
    /// Certificates were revoked, or are no longer.
    Certificates,
}

/// Of which kinds more came than could wait.
#[derive(Debug, Default)]
struct Overflow {
    commands: Cell<bool>,
    specs: Cell<bool>,
    certificates: Cell<bool>,
}

/// The loop's side.
#[derive(Debug)]
pub(crate) struct Pokes {
    pub(crate) heard: mpsc::Receiver<Poke>,
    overflow: Rc<Overflow>,
}

impl Pokes {
    /// Of which kinds more pokes came than could wait, since the last call.
    pub(crate) fn take_overflow(&self) -> impl Iterator<Item = Poke> + use<> {
        let commands = self.overflow.commands.replace(false).then_some(Poke::Commands(None));
        let specs = self.overflow.specs.replace(false).then_some(Poke::Specs(None));
        let certificates = self.overflow.certificates.replace(false).then_some(Poke::Certificates);
        commands.into_iter().chain(specs).chain(certificates)
    }
}

#[derive(Debug)]
struct Ear {
    options: PgConnectOptions,
    channel: String,
    specs_channel: String,
    heard: mpsc::Sender<Poke>,
    overflow: Rc<Overflow>,
    status: Arc<WriterStatus>,
}

/// Starts the listening task, within a `LocalSet`. Without `listen` nothing is ever heard.
pub(crate) fn start(
    options: &PgConnectOptions,
    gateway: &GatewayId,
    listen: bool,
    loops: &mut Loops,
    status: Arc<WriterStatus>,
) -> Pokes {
    let (sender, heard) = mpsc::channel(MAX_WAITING_POKES);
    let overflow = Rc::new(Overflow::default());
    let ear = Ear {
        options: options
            .clone()
            .application_name(&format!("gateway {gateway} listen"))
            .disable_statement_logging(),
        channel: format!("gw:{gateway}"),
        specs_channel: format!("gws:{gateway}"),
        heard: sender,
        overflow: Rc::clone(&overflow),
        status,
    };
    if listen {
        loops.start(LISTENER, ear.listen_for_ever());
    } else {
        // The sender lives on in a task that never ends, so that the receiver never looks closed.
        loops.start(LISTENER, async move {
            let _ear = ear;
            std::future::pending::<()>().await;
        });
    }
    Pokes { heard, overflow }
}

impl Ear {
    async fn listen_for_ever(self) {
        let mut back_off = Duration::from_millis(100);
        let mut complained = false;
        loop {
            self.status.listener.begin();
            match self.connect().await {
                Ok(mut listener) => {
                    back_off = Duration::from_millis(100);
                    complained = false;
                    self.poke(Poke::Commands(None));
                    self.poke(Poke::Specs(None));
                    self.poke(Poke::Certificates);
                    self.hear(&mut listener).await;
                    self.status.listener.end(Some("the connection was lost".to_owned()));
                }
                Err(error) => {
                    self.status.listener.end(Some(error.to_string()));
                    if !std::mem::replace(&mut complained, true) {
                        tracing::warn!(%error, "notifications are not heard, commands wait for the poll; trying again");
                    }
                }
            }
            self.status.listening.store(false, Ordering::Relaxed);
            tokio::time::sleep(back_off).await;
            back_off = (back_off * 2).min(LONGEST_BACK_OFF);
        }
    }

    async fn connect(&self) -> Result<PgListener, sqlx::Error> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(PROBE_TIMEOUT)
            .connect_with(self.options.clone())
            .await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        // A new connection is probed and its gap looked over; so it is made here, not within.
        listener.eager_reconnect(false);
        listener
            .listen_all([self.channel.as_str(), self.specs_channel.as_str(), CERTIFICATES_CHANNEL])
            .await?;
        Ok(listener)
    }

    /// Hears until the connection is lost.
    async fn hear(&self, listener: &mut PgListener) {
        let deadline = tokio::time::Instant::now() + PROBE_TIMEOUT;
        let mut waits_for_probe = self.send_probe().await;
        loop {
            let heard = tokio::select! {
                heard = listener.try_recv() => heard,
                () = tokio::time::sleep_until(deadline), if waits_for_probe => {
                    waits_for_probe = false;
                    tracing::warn!(
                        channel = self.channel,
                        "a notification that was sent to test did not arrive: is there a pooler in transaction \
                         mode between? Commands wait for the poll until database.url is a direct connection"
                    );
                    continue;
                }
            };
            match heard {
                Ok(Some(notification)) if notification.payload() == PROBE => {
                    waits_for_probe = false;
                    self.status.listener.end(None);
                    self.status.listening.store(true, Ordering::Relaxed);
                }
                Ok(Some(notification)) => {
                    self.status.pokes.fetch_add(1, Ordering::Relaxed);
                    let node = NodeId::new(notification.payload()).ok();
                    self.poke(match notification.channel() {
                        CERTIFICATES_CHANNEL => Poke::Certificates,
                        channel if channel == self.specs_channel => Poke::Specs(node),
                        _ => Poke::Commands(node),
                    });
                }
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// From another connection, as an enqueue does. Gives whether it was sent.
    async fn send_probe(&self) -> bool {
        let sent = async {
            let mut sql = PgConnection::connect_with(&self.options).await?;
            sqlx::query("SELECT pg_notify($1, $2)")
                .bind(&self.channel)
                .bind(PROBE)
                .fetch_all(&mut sql)
                .await?;
            sql.close().await
        };
        match sent.await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "notifications could not be tested");
                false
            }
        }
    }

    fn poke(&self, poke: Poke) {
        let overflow = match &poke {
            Poke::Commands(_) => &self.overflow.commands,
            Poke::Specs(_) => &self.overflow.specs,
            Poke::Certificates => &self.overflow.certificates,
        };
        if self.heard.try_send(poke).is_err() {
            overflow.set(true);
        }
    }
}
