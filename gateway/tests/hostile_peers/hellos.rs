//! Hellos that ask for too much or hold what can't be stored: the stream ends with a sentence that
//! names the field, and the largest Hello that is allowed is welcomed.
//!
//! 1. One field is wrong in each; the largest that is allowed stands beside what is too large.

use bytes::Bytes;
use gateway_proto::v1::{CommandState, Hello, KnownCommand, Lane, SectionHash, node_frame::Frame};
use gateway_testbed::node::{Target, hash_of};
use uuid::Uuid;

use crate::stage::{INVALID_ARGUMENT, OK, Stage, ends, hello, opened, still_stands, welcomed};

const PERMISSION_DENIED: u32 = 7;

pub async fn stories(stage: &Stage) {
    let peer = stage.peer("greedy").await;
    stage.story("Hellos are wrong", wrong_hellos(&peer)).await;
    stage.story("a Hello is as large as it may be", largest_hello(&peer)).await;
    stage
        .story("a node is not registered", async {
            let identity = stage.world.pki.node("stranger").unwrap();
            let mut call = opened(&stage.world.target("g", &identity)).await;
            call.send(Frame::Hello(hello()));
            let id = stage.world.id("stranger");
            let sentence = format!(
                "node {id} is not registered; an operator registers it in the gateway's database with \
                 SELECT register_node('{id}')"
            );
            ends(&mut call, PERMISSION_DENIED, &sentence).await;
        })
        .await;
}

fn lane(name: &str) -> Lane {
    Lane { name: name.to_owned(), capacity: 1 }
}

fn section(number: u128) -> SectionHash {
    SectionHash { section: format!("{number:064}"), hash: hash_of(&number.to_le_bytes()) }
}

fn known(number: u128) -> KnownCommand {
    KnownCommand {
        command_id: Bytes::copy_from_slice(Uuid::from_u128(number).as_bytes()),
        attempt: 1,
        state: CommandState::Running.into(),
    }
}

fn with(change: impl FnOnce(&mut Hello)) -> Hello {
    let mut changed = hello();
    change(&mut changed);
    changed
}

async fn wrong_hellos(peer: &Target) {
    let id = Uuid::from_u128(7);
    let lanes = |count: usize| (0..count).map(|index| lane(&format!("lane-{index}"))).collect();
    let wrong: Vec<(Hello, String)> = vec![
        (
            with(|hello| hello.protocol = 2),
            "Hello: this gateway speaks protocol 1, the node speaks 2".to_owned(),
        ),
        (
            with(|hello| hello.lanes = lanes(17)),
            "Hello: lanes holds 17 entries; at most 16 are allowed (sessions.lanes_per_node)".to_owned(),
        ),
        (
            with(|hello| hello.lanes = vec![lane("a"), lane("a")]),
            "Hello: lane 1 has the name of an earlier one; name each lane once".to_owned(),
        ),
        (
            with(|hello| hello.lanes = vec![lane(&"x".repeat(65))]),
            "Hello: a lane name is 65 bytes long; at most 64 are allowed".to_owned(),
        ),
        (with(|hello| hello.lanes = vec![lane("")]), "Hello: a lane name is empty".to_owned()),
        (
            with(|hello| hello.lanes = vec![lane("a\0")]),
            "Hello: a lane name holds a control character".to_owned(),
        ),
        (
            with(|hello| hello.known_commands = (0..4097).map(known).collect()),
            "Hello: known_commands holds 4097 entries; at most 4096 are allowed (sessions.known_commands)"
                .to_owned(),
        ),
        (
            with(|hello| hello.known_commands = vec![known(7), known(7)]),
            format!("Hello: command {id} attempt 1 is listed twice; list each attempt once"),
        ),
        (
            with(|hello| {
                hello.known_commands = vec![KnownCommand { command_id: vec![1; 15].into(), ..known(7) }];
            }),
            "Hello: a known command: command_id is 15 bytes long; it must be the 16 of a UUID".to_owned(),
        ),
        (
            with(|hello| hello.known_commands = vec![KnownCommand { state: 99, ..known(7) }]),
            format!("Hello: the state of known command {id} is none of CommandState"),
        ),
        (
            with(|hello| {
                let state = CommandState::Pending.into();
                hello.known_commands = vec![KnownCommand { state, ..known(7) }];
            }),
            format!("Hello: known command {id} is pending; a node knows only what was dispatched to it"),
        ),
        (
            with(|hello| hello.known_commands = vec![KnownCommand { attempt: u32::MAX, ..known(7) }]),
            format!("Hello: known command {id}: attempt is 4294967295; it counts from 1 to 2147483647"),
        ),
        (
            with(|hello| hello.boot_id = "b\0".to_owned()),
            "Hello: boot_id holds a NUL at byte 1; no text may hold one".to_owned(),
        ),
        (
            with(|hello| hello.machine = "m".repeat(4097)),
            "Hello: machine is 4097 bytes long; at most 4096 are allowed".to_owned(),
        ),
        (
            with(|hello| hello.features = vec!["f".to_owned(); 65]),
            "Hello: features holds 65 entries; at most 64 are allowed".to_owned(),
        ),
        (
            with(|hello| hello.journal_id = "\0".to_owned()),
            "Hello: a journal id holds a control character".to_owned(),
        ),
        (
            with(|hello| hello.inventory = (0..65).map(section).collect()),
            "Hello: inventory holds 65 entries; at most 64 are allowed (sessions.sections_per_node)"
                .to_owned(),
        ),
        (
            with(|hello| hello.inventory = vec![section(1), section(2), section(1)]),
            "Hello: inventory names a section twice; name each section once".to_owned(),
        ),
        (
            with(|hello| hello.inventory = vec![SectionHash::default(); 20_000]),
            "Hello holds more than 8464 fields and entries".to_owned(),
        ),
    ];
    for (hello, sentence) in wrong {
        let mut call = opened(peer).await;
        call.send(Frame::Hello(hello));
        ends(&mut call, INVALID_ARGUMENT, &sentence).await;
    }
}

async fn largest_hello(peer: &Target) {
    let largest = with(|hello| {
        hello.lanes =
            (0..16).map(|index| Lane { name: format!("{index:064}"), capacity: u32::MAX }).collect();
        hello.known_commands = (0..4096).map(known).collect();
        hello.machine = "m".repeat(4096);
        hello.features = vec!["f".repeat(64); 64];
        hello.journal_id = "j".repeat(128);
        hello.inventory = (0..64).map(section).collect();
    });
    let (mut call, welcome) = welcomed(peer, largest).await;
    assert_eq!((welcome.journal_id, welcome.journal_acked_seq), ("j".repeat(128), 0));
    assert_eq!(welcome.inventory_wanted.len(), 64, "none of them is stored");
    still_stands(&mut call, 1).await;
    call.half_close();
    ends(&mut call, OK, "").await;
}
