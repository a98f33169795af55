//! The operations that the model conformance tests make up, and how they are made up.
//!
//! An operation names what it touches by small numbers, so that a shorter sequence is still one: a
//! number beyond what there is wraps around, a command that is not there yet is an unknown one.
//! `Pair` (in `pair`) says what each means.
//!
//! 1. An operation is data: equal sequences mean equal calls, whatever happened before.
//! 2. To add one: a variant here, a line in `operation`, an arm in `Pair::apply`.

use gateway_core::command::CommandState;
use proptest::prelude::*;

use super::certificates::{Certify, certify};
use super::journals::{self, Stretch};
use super::sweeps::{Sweep, sweeps};

/// Nodes that are registered; the number after the last is one that is not.
pub const NODES: u8 = 3;
pub const LANES: u8 = 2;
pub const GATEWAYS: u8 = 2;
pub const SPECS: u8 = 4;
pub const OWNERS: u8 = 3;
/// One more than a node may have.
pub const SECTIONS: u8 = 4;
pub const BODIES: u8 = 3;

#[derive(Debug, Clone)]
pub enum Op {
    /// The database's clock goes on.
    Tick(u32),
    Enqueue {
        node: u8,
        lane: u8,
        key: Option<u8>,
        /// In milliseconds from now.
        not_before: Option<i32>,
        not_after: Option<i32>,
        attempts: u8,
        /// Whether it takes the id of the command before it.
        same_id: bool,
    },
    Cancel {
        command: u8,
        other_node: bool,
        reason: u8,
    },
    Acquire {
        gateway: u8,
        owner: u8,
        /// The owner who is proven dead; the number after the last is an empty proof.
        dead: Option<u8>,
    },
    Renew(Proof),
    Release(Proof),
    Hello {
        proof: Proof,
        hellos: Vec<Hi>,
    },
    Dispatch {
        proof: Proof,
        wants: Vec<Want>,
    },
    ReadLanes {
        proof: Proof,
        lanes: Vec<(u8, u8)>,
    },
    Updates(Vec<Word>),
    Presence {
        gateway: u8,
        entries: Vec<Sign>,
    },
    Cancels {
        gateway: u8,
    },
    SetSpec {
        node: u8,
        spec: u8,
        body: u8,
    },
    LookAtSpecs {
        gateway: u8,
        looks: Vec<Look>,
        /// In sizes of a body.
        room: u8,
    },
    SpecsApplied(Vec<Said>),
    /// Events, some of them with hooks.
    Reports(Vec<ReportRun>),
    Statuses(Vec<StatusWord>),
    Inventory(Vec<Part>),
    /// A crash of the database that loses the marks of the lane's last dispatches.
    LoseMarks {
        node: u8,
        lane: u8,
    },
    Certificates(Certify),
    /// Runs of journals, in one batch.
    Events(Vec<Stretch>),
    /// One after the other, as a leader does.
    Sweeps(Vec<Sweep>),
}

/// The lease as this owner had it last: held, lost, or never had.
#[derive(Debug, Clone, Copy)]
pub struct Proof {
    pub gateway: u8,
    pub owner: u8,
}

/// One Hello.
#[derive(Debug, Clone)]
pub struct Hi {
    pub node: u8,
    /// The capacities of the lanes that it declares, from the first lane on.
    pub capacities: Vec<u8>,
    pub knows: Vec<Knows>,
    /// Sections that it lists, each with the number of its body.
    pub lists: Vec<(u8, u8)>,
    /// Which of the machines that have its certificate it is.
    pub machine: u8,
    /// Its place among `certificates::ROLES`.
    pub role: u8,
}

/// A section that is stored, or looked at.
#[derive(Debug, Clone)]
pub struct Part {
    pub node: u8,
    pub epoch: Epoch,
    pub section: u8,
    pub body: u8,
    pub look: bool,
}

/// A command that a Hello lists.
#[derive(Debug, Clone)]
pub struct Knows {
    pub command: u8,
    pub attempt: Try,
    pub state: CommandState,
}

/// An attempt, relative to the row's.
#[derive(Debug, Clone, Copy)]
pub enum Try {
    Before,
    Current,
    After,
}

/// A lane's wish.
#[derive(Debug, Clone)]
pub struct Want {
    pub node: u8,
    pub lane: u8,
    pub free: u8,
    pub epoch: Epoch,
    /// Whether it knows the lane's cursor; else it asks from the start.
    pub knows_cursor: bool,
}

#[derive(Debug, Clone, Copy)]
pub enum Epoch {
    Current,
    Older,
}

/// One update.
#[derive(Debug, Clone)]
pub struct Word {
    pub command: u8,
    pub other_node: bool,
    pub attempt: Try,
    pub state: CommandState,
    pub progress: Option<u8>,
    pub error: Option<u8>,
    pub retryable: bool,
}

/// A liveness or disconnect write.
#[derive(Debug, Clone)]
pub struct Sign {
    pub node: u8,
    pub epoch: Epoch,
    pub gone: bool,
}

/// A look at a session's specs.
#[derive(Debug, Clone)]
pub struct Look {
    pub node: u8,
    pub epoch: Epoch,
    /// The generations of the first specs that the node has; 0: none.
    pub has: Vec<u8>,
    pub answered_too: bool,
    /// In sizes of a body.
    pub room: u8,
}

/// What a node says of a spec.
#[derive(Debug, Clone)]
pub struct Said {
    pub node: u8,
    pub spec: u8,
    pub generation: u8,
    pub error: Option<u8>,
}
/// A run of a node's journal of reports, from behind its cursor on.
#[derive(Debug, Clone)]
pub struct ReportRun {
    pub node: u8,
    /// How many of the events before the cursor come again.
    pub again: u8,
    pub count: u8,
}

/// A status.
#[derive(Debug, Clone)]
pub struct StatusWord {
    pub node: u8,
    pub id: u8,
    pub kind: u8,
}

/// Kinds of events and statuses: one without a hook, one with a hook that works, one with two of which the
/// second fails, one whose only hook fails.
pub const KINDS: [&str; 4] = ["plain", "worked", "both", "failed"];

/// A sequence of up to `longest` operations.
pub fn sequences(longest: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(operation(), 1..=longest)
}

fn operation() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => tick().prop_map(Op::Tick),
        8 => enqueue(),
        2 => (any_command(), rarely(), 0..2u8)
            .prop_map(|(command, other_node, reason)| Op::Cancel { command, other_node, reason }),
        4 => (0..GATEWAYS, 0..OWNERS, prop::option::weighted(0.2, 0..=OWNERS))
            .prop_map(|(gateway, owner, dead)| Op::Acquire { gateway, owner, dead }),
        1 => proof().prop_map(Op::Renew),
        1 => proof().prop_map(Op::Release),
        4 => (proof(), prop::collection::vec(hi(), 1..3))
            .prop_map(|(proof, hellos)| Op::Hello { proof, hellos }),
        8 => (proof(), prop::collection::vec(want(), 1..4))
            .prop_map(|(proof, wants)| Op::Dispatch { proof, wants }),
        1 => (proof(), prop::collection::vec((0..NODES, 0..LANES), 1..4))
            .prop_map(|(proof, lanes)| Op::ReadLanes { proof, lanes }),
        8 => prop::collection::vec(word(), 1..5).prop_map(Op::Updates),
        2 => (0..GATEWAYS, prop::collection::vec(sign(), 1..4))
            .prop_map(|(gateway, entries)| Op::Presence { gateway, entries }),
        1 => (0..GATEWAYS).prop_map(|gateway| Op::Cancels { gateway }),
        4 => (0..=NODES, 0..SPECS, 0..3u8).prop_map(|(node, spec, body)| Op::SetSpec { node, spec, body }),
        3 => (0..GATEWAYS, prop::collection::vec(look(), 1..4), 1..12u8)
            .prop_map(|(gateway, looks, room)| Op::LookAtSpecs { gateway, looks, room }),
        3 => prop::collection::vec(said(), 1..5).prop_map(Op::SpecsApplied),
        3 => prop::collection::vec(part(), 1..6).prop_map(Op::Inventory),
        2 => (0..NODES, 0..LANES).prop_map(|(node, lane)| Op::LoseMarks { node, lane }),
        4 => prop::collection::vec(report_run(), 1..4).prop_map(Op::Reports),
        4 => prop::collection::vec(status_word(), 1..4).prop_map(Op::Statuses),
        6 => journals::batch().prop_map(Op::Events),
        6 => certify().prop_map(Op::Certificates),
        8 => sweeps().prop_map(Op::Sweeps),
    ]
}

fn tick() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..900u32, 2 => 900..5_000u32, 2 => 5_000..30_000u32]
}

/// One in ten.
fn rarely() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.1)
}

/// Mostly one of the latest; see `Pair::command`.
fn any_command() -> impl Strategy<Value = u8> {
    prop_oneof![4 => 0..6u8, 1 => 0..30u8]
}

/// Mostly the first owner of the first gateway, so that most routing has a lease.
fn proof() -> impl Strategy<Value = Proof> {
    let least = |most: u8| prop_oneof![4 => Just(0u8), 1 => 0..most];
    (least(GATEWAYS), least(OWNERS)).prop_map(|(gateway, owner)| Proof { gateway, owner })
}

fn enqueue() -> impl Strategy<Value = Op> {
    let node = prop_oneof![30 => 0..NODES, 1 => Just(NODES)];
    let attempts = prop_oneof![6 => 1..4u8, 1 => 0..20u8];
    let not_before = prop::option::weighted(0.25, -500..3_000i32);
    let not_after = prop::option::weighted(0.35, prop_oneof![-200..900i32, 900..6_000i32]);
    let key = prop::option::weighted(0.2, 0..3u8);
    (node, 0..LANES, key, not_before, not_after, attempts, prop::bool::weighted(0.03)).prop_map(
        |(node, lane, key, not_before, not_after, attempts, same_id)| Op::Enqueue {
            node,
            lane,
            key,
            not_before,
            not_after,
            attempts,
            same_id,
        },
    )
}

fn attempt() -> impl Strategy<Value = Try> {
    prop_oneof![8 => Just(Try::Current), 1 => Just(Try::Before), 1 => Just(Try::After)]
}

fn epoch() -> impl Strategy<Value = Epoch> {
    prop_oneof![6 => Just(Epoch::Current), 1 => Just(Epoch::Older)]
}

fn hi() -> impl Strategy<Value = Hi> {
    let node = prop_oneof![20 => 0..NODES, 1 => Just(NODES)];
    let capacities = prop::collection::vec(0..4u8, 1..=LANES as usize);
    let states = prop::sample::select(vec![
        CommandState::Dispatched,
        CommandState::Accepted,
        CommandState::Running,
        CommandState::Succeeded,
        CommandState::Canceled,
    ]);
    let knows = (any_command(), attempt(), states).prop_map(|(command, attempt, state)| Knows {
        command,
        attempt,
        state,
    });
    let lists = prop::collection::vec((0..SECTIONS, 0..BODIES), 0..4);
    let machine = prop_oneof![6 => Just(0u8), 3 => Just(1u8), 1 => Just(2u8)];
    let role = prop_oneof![12 => Just(0u8), 6 => Just(1u8), 1 => Just(2u8)];
    (node, capacities, prop::collection::vec(knows, 0..4), lists, machine, role).prop_map(
        |(node, capacities, knows, lists, machine, role)| Hi {
            node,
            capacities,
            knows,
            lists,
            machine,
            role,
        },
    )
}

fn part() -> impl Strategy<Value = Part> {
    let node = prop_oneof![12 => 0..NODES, 1 => Just(NODES)];
    (node, epoch(), 0..SECTIONS, 0..BODIES, prop::bool::weighted(0.25))
        .prop_map(|(node, epoch, section, body, look)| Part { node, epoch, section, body, look })
}

fn want() -> impl Strategy<Value = Want> {
    (0..NODES, 0..LANES, 0..4u8, epoch(), any::<bool>())
        .prop_map(|(node, lane, free, epoch, knows_cursor)| Want { node, lane, free, epoch, knows_cursor })
}

fn word() -> impl Strategy<Value = Word> {
    let states = prop::sample::select(vec![
        CommandState::Accepted,
        CommandState::Accepted,
        CommandState::Running,
        CommandState::Running,
        CommandState::Succeeded,
        CommandState::Failed,
        CommandState::Canceled,
        CommandState::Refused,
        CommandState::Refused,
    ]);
    let text = || prop::option::weighted(0.3, 0..3u8);
    (any_command(), rarely(), attempt(), states, text(), text(), prop::bool::weighted(0.7)).prop_map(
        |(command, other_node, attempt, state, progress, error, retryable)| Word {
            command,
            other_node,
            attempt,
            state,
            progress,
            error,
            retryable,
        },
    )
}

fn look() -> impl Strategy<Value = Look> {
    let has = prop::collection::vec(0..4u8, 0..=SPECS as usize);
    (0..=NODES, epoch(), has, any::<bool>(), 1..5u8).prop_map(|(node, epoch, has, answered_too, room)| Look {
        node,
        epoch,
        has,
        answered_too,
        room,
    })
}

fn said() -> impl Strategy<Value = Said> {
    (0..=NODES, 0..SPECS, 1..5u8, prop::option::weighted(0.3, 0..2u8))
        .prop_map(|(node, spec, generation, error)| Said { node, spec, generation, error })
}

fn report_run() -> impl Strategy<Value = ReportRun> {
    (0..NODES, 0..3u8, 1..6u8).prop_map(|(node, again, count)| ReportRun { node, again, count })
}

fn status_word() -> impl Strategy<Value = StatusWord> {
    (0..NODES, 0..6u8, 0..KINDS.len() as u8).prop_map(|(node, id, kind)| StatusWord { node, id, kind })
}

fn sign() -> impl Strategy<Value = Sign> {
    (0..=NODES, epoch(), any::<bool>()).prop_map(|(node, epoch, gone)| Sign { node, epoch, gone })
}
