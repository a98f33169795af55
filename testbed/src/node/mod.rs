//! A simulated node: what the protocol asks of a node daemon, over real TCP, TLS and HTTP/2 or WebSocket.
//!
//! It dials, says Hello, beats, executes commands (or pretends to, see `Behaviour`), reports each
//! until it was acked, and dials again by the rules. It keeps what a daemon keeps over sessions;
//! what it did goes to an append-only log. Thousands of them live in one process: one task each.
//!
//! 1. One session at a time, but for the moment in which a drained one is replaced; see `Behaviour::drains`.
//! 2. Executions go on while there is no session.
//! 3. A dropped `Node` cuts its connection, as a dead machine does.

mod alert;
mod call;
mod end;
mod enrolment;
mod events;
mod inventory;
mod journal;
mod memory;
mod observer;
mod redial;
mod session;
mod specs;
mod statuses;
mod task;
mod tunnel;
mod unary;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gateway_proto::v1::{NodeFrame, RefusalReason, SignedEnvelope};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use uuid::Uuid;

use self::task::renewing::renew_for_ever;

pub use self::call::{Arrival, Call, LocalCall, LocalGateway, Sent, Target, Transport};
pub use self::end::{End, EndKind};
pub use self::enrolment::{Credential, Enrolment};
pub use self::inventory::hash_of;
pub use self::journal::{ExecutionLog, LogEvent, LogLine};
pub use self::memory::{Memory, Settled, Verdict, is_terminal, state_name};
pub use self::observer::{NoObserver, NodeEvent, NodeEvents, NotSeen, Observed, Observer, ReceivedCommand};
pub use self::redial::{Redial, RedialBounds, Redialer};
pub use self::tunnel::TunnelTaker;
pub use self::unary::unary;

/// How commands are executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Execution {
    /// Accepted and finished in one go.
    Instantly,
    /// Finished that much later.
    After(Duration),
    /// Accepted; finished when `Node::release` says so.
    Held,
    /// Refused.
    Refused { reason: RefusalReason, retryable: bool },
    /// Fails at once with this error.
    Failing(String),
}

/// How a node behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behaviour {
    pub execution: Execution,
    /// Whether `running` is reported between accepted and finished.
    pub reports_running: bool,
    /// Whether updates are sent at all; what was withheld is sent when this is turned on.
    pub reports: bool,
    /// Whether it beats.
    pub heartbeats: bool,
    /// Whether its heartbeats list its sections.
    pub lists_inventory: bool,
    /// Whether a section that changes is sent unasked; else the list of a heartbeat must tell.
    pub sends_changes: bool,
    /// Whether it reads its stream.
    pub reads: bool,
    /// Whether it leaves when it is told to.
    pub drains: bool,
    /// The result of each command; `None`: the command's payload.
    pub result: Option<Bytes>,
    /// Why it can't apply a spec; `None`: it applies them all.
    pub spec_error: Option<String>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            execution: Execution::Instantly,
            reports_running: false,
            reports: true,
            heartbeats: true,
            lists_inventory: false,
            sends_changes: true,
            reads: true,
            drains: true,
            result: None,
            spec_error: None,
        }
    }
}

/// What a node is.
#[derive(Clone)]
pub struct NodeOptions {
    /// The node id of its certificate.
    pub name: String,
    pub target: Target,
    /// A gateway in this process, with which it has its sessions in place of `target`'s; its other calls dial
    /// that.
    pub within: Option<Arc<dyn LocalGateway>>,
    /// Where its certificates come from; `None`: the targets show the one that it has for good.
    pub enrolment: Option<Arc<Enrolment>>,
    /// Where it dials in turn with `target`, after each end of a session and each `Drain`.
    pub elsewhere: Vec<Target>,
    /// Name and capacity.
    pub lanes: Vec<(String, u32)>,
    pub behaviour: Behaviour,
    pub boot_id: String,
    /// The id of its journal of events.
    pub journal: String,
    /// Sections of its inventory: name and body.
    pub sections: Vec<(String, Bytes)>,
    /// How it takes tunnels; `None`: it says that it takes none.
    pub tunnels: Option<TunnelTaker>,
    pub machine: String,
    pub role: String,
    /// Instead of the interval that `Welcome` gives.
    pub heartbeat: Option<Duration>,
    pub redial: RedialBounds,
    pub observer: Arc<dyn Observer>,
    pub log: Option<Arc<ExecutionLog>>,
    /// For its back-off and the phase of its heartbeats.
    pub seed: u64,
}

impl std::fmt::Debug for NodeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeOptions").field("name", &self.name).finish_non_exhaustive()
    }
}

impl NodeOptions {
    /// A well-behaved node with one lane, `default`, of capacity 16.
    pub fn new(name: &str, target: Target) -> Self {
        Self {
            name: name.to_owned(),
            target,
            within: None,
            enrolment: None,
            elsewhere: Vec::new(),
            lanes: vec![("default".to_owned(), 16)],
            behaviour: Behaviour::default(),
            boot_id: Uuid::new_v4().to_string(),
            journal: Uuid::new_v4().to_string(),
            sections: Vec::new(),
            tunnels: None,
            machine: format!("machine-of-{name}"),
            role: String::new(),
            heartbeat: None,
            redial: RedialBounds::default(),
            observer: Arc::new(NoObserver),
            log: None,
            seed: Uuid::new_v4().as_u64_pair().0,
        }
    }
}

/// What a node is told.
#[derive(Debug)]
enum Control {
    Release(Option<Uuid>),
    Behave(Box<Behaviour>),
    Capacity(String, u32),
    Send(Box<NodeFrame>),
    Emit(String, Bytes, Option<SignedEnvelope>),
    Tell(String, String, Bytes),
    Section(String, Bytes),
    /// There is a new certificate.
    Renewed,
    Cut,
    Goodbye,
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    name: Arc<str>,
    control: mpsc::UnboundedSender<Control>,
    task: JoinHandle<Memory>,
}

impl Node {
    /// Starts it on the present tokio runtime; it dials at once.
    pub fn start(options: NodeOptions) -> Self {
        let (control, orders) = mpsc::unbounded_channel();
        let name: Arc<str> = Arc::from(options.name.as_str());
        let renewing = options.enrolment.clone().map(|enrolment| {
            let (target, observer) = (options.target.clone(), Arc::clone(&options.observer));
            renew_for_ever(Arc::clone(&name), enrolment, target, observer, control.downgrade())
        });
        let running = task::NodeTask::new(Arc::clone(&name), options, orders).run();
        let task = tokio::spawn(async move {
            let Some(renewing) = renewing else { return running.await };
            tokio::select! {
                memory = running => memory,
                never = renewing => match never {},
            }
        });
        Self { name, control, task }
    }

    /// The node id.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Finishes a held command, or all of them.
    pub fn release(&self, id: Option<Uuid>) {
        self.tell(Control::Release(id));
    }

    /// Behaves like this from now on.
    pub fn behave(&self, behaviour: Behaviour) {
        self.tell(Control::Behave(Box::new(behaviour)));
    }

    /// Sets a lane's capacity and tells the gateway (`Credit`).
    pub fn set_capacity(&self, lane: &str, capacity: u32) {
        self.tell(Control::Capacity(lane.to_owned(), capacity));
    }

    /// Sends a frame as it is.
    pub fn send(&self, frame: NodeFrame) {
        self.tell(Control::Send(Box::new(frame)));
    }

    /// Writes an event into the node's journal, which it keeps over sessions and sends until acked. Its
    /// seq is one more than that of the one before; the first is 1.
    pub fn emit(&self, kind: &str, body: Bytes) {
        self.tell(Control::Emit(kind.to_owned(), body, None));
    }

    /// The same with a signed envelope, whatever is in it.
    pub fn emit_signed(&self, kind: &str, body: Bytes, attested: SignedEnvelope) {
        self.tell(Control::Emit(kind.to_owned(), body, Some(attested)));
    }

    /// Sends a status, which the node keeps over sessions and sends until it is answered.
    pub fn tell_status(&self, id: &str, kind: &str, body: Bytes) {
        self.tell(Control::Tell(id.to_owned(), kind.to_owned(), body));
    }

    /// Changes a section of its inventory, or adds it. Whether it is sent unasked, its behaviour says.
    pub fn set_section(&self, section: &str, body: Bytes) {
        self.tell(Control::Section(section.to_owned(), body));
    }

    /// Cuts the connection; the node dials again by the rules.
    pub fn cut(&self) {
        self.tell(Control::Cut);
    }

    /// Says Goodbye, waits for the stream's end and stops; gives what the node still knew.
    pub async fn goodbye(self) -> Memory {
        self.tell(Control::Goodbye);
        self.task.await.unwrap_or_default()
    }

    /// Cuts the connection and stops; gives what the node still knew.
    pub async fn stop(self) -> Memory {
        let Self { control, task, .. } = self;
        drop(control);
        task.await.unwrap_or_default()
    }

    /// Whether the node has stopped by itself (it was not permitted).
    pub fn has_stopped(&self) -> bool {
        self.task.is_finished()
    }

    fn tell(&self, control: Control) {
        // A node that stopped has nothing to do any more.
        let _ = self.control.send(control);
    }
}
