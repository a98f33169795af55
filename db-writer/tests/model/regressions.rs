//! Sequences on which the two stores once differed, each shrunk, with what was wrong.
//!
//! To add one, paste the operations that a failing seed printed.

use gateway_core::command::CommandState::*;

use super::journals::Stretch;
use super::operations::Epoch::*;
use super::operations::Op::{self, *};
use super::operations::*;
use super::sweeps::{Dead, Sweep};

const OWNER: Proof = Proof { gateway: 0, owner: 0 };

fn enqueue(attempts: u8) -> Op {
    Enqueue { node: 0, lane: 0, key: None, not_before: None, not_after: None, attempts, same_id: false }
}

fn word(attempt: Try, state: gateway_core::command::CommandState, progress: Option<u8>) -> Word {
    Word { command: 0, other_node: false, attempt, state, progress, error: None, retryable: true }
}

/// A run of the first journal that begins so far from its cursor, of a boot.
fn stretch(start: i8, length: u8, boot: u8) -> Stretch {
    Stretch { node: 0, journal: 0, start, length, boot, refused: None, signed: None }
}

/// Each with the story of its fault.
pub fn all() -> Vec<(&'static str, Vec<Op>)> {
    vec![
        (
            "an empty prefix proves no owner dead: the model took the lease from a living one",
            vec![
                Acquire { gateway: 0, owner: 0, dead: None },
                Acquire { gateway: 0, owner: 1, dead: Some(OWNERS) },
            ],
        ),
        (
            "a report of a later attempt is news: PostgreSQL took its number with a progress alone, the model never",
            vec![
                enqueue(1),
                Updates(vec![word(Try::Current, Running, None)]),
                Updates(vec![word(Try::After, Running, Some(0))]),
                Updates(vec![word(Try::After, Accepted, None)]),
            ],
        ),
        (
            "an attempt to come has no dispatch: the model marked a refused row that had lost its mark",
            vec![enqueue(2), Updates(vec![word(Try::Current, Refused, None)])],
        ),
        (
            "a Hello that adopts all that was pending may still say that something is pending",
            vec![
                Acquire { gateway: 0, owner: 0, dead: None },
                enqueue(1),
                Hello {
                    proof: OWNER,
                    hellos: vec![Hi {
                        node: 0,
                        capacities: vec![1],
                        knows: vec![Knows { command: 0, attempt: Try::Current, state: Dispatched }],
                        lists: Vec::new(),
                        machine: 0,
                        role: 1,
                    }],
                },
                Dispatch {
                    proof: OWNER,
                    wants: vec![Want { node: 0, lane: 0, free: 1, epoch: Current, knows_cursor: true }],
                },
            ],
        ),
        (
            "the delay of a refused command grows to 300 s: the model stopped at 256 s",
            std::iter::once(enqueue(12))
                .chain((0..10).flat_map(|_| [Updates(vec![word(Try::Current, Refused, None)]), Tick(1_000)]))
                .collect(),
        ),
        (
            "of an event that two runs of a batch hold, the first run's is stored: the model kept the one that joined on",
            vec![Events(vec![stretch(2, 1, 1), stretch(1, 2, 0)])],
        ),
        (
            "an empty prefix proves no leader dead: the model took the lead of the sweeps from a living one",
            vec![Sweeps(vec![
                Sweep::Lead { owner: 0, dead: None },
                Sweep::Lead { owner: 1, dead: Some(OWNERS) },
            ])],
        ),
        (
            "nothing is noted of a gateway that never was: the model noted how far it was looked through",
            vec![
                Sweeps(vec![
                    Sweep::Lead { owner: 0, dead: None },
                    Sweep::Reap {
                        owner: 0,
                        dead: Dead::MadeUp { gateway: 0, older: false, expired: false },
                        goes_on: false,
                        skipped: false,
                        at_most: 100,
                    },
                ]),
                Acquire { gateway: 0, owner: 0, dead: None },
            ],
        ),
        (
            "whoever gives a lead back that has run out ends it now: in the model it had ended before",
            vec![
                Sweeps(vec![Sweep::Lead { owner: 0, dead: None }]),
                Tick(10_001),
                Sweeps(vec![Sweep::Resign { owner: 0 }]),
            ],
        ),
    ]
}
