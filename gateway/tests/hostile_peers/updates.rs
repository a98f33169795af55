//! Updates that lie, are too large, or can't be stored: each is rejected alone, in its turn, and the
//! session goes on, until it does nothing else.
//!
//! 1. What another node has is not touched, and not even told apart from what nobody has.

use bytes::Bytes;
use gateway_proto::v1::gateway_frame::Frame as Answer;
use gateway_proto::v1::{
    CommandState, CommandUpdate, Heartbeat, InventorySection, KnownCommand, Lane, Refusal, RejectCode,
    Rejected, SectionHash, SpecApplied, node_frame::Frame,
};
use gateway_testbed::database::{self, NewCommand};
use gateway_testbed::node::{Target, hash_of};
use gateway_testbed::raw::RawCall;
use uuid::Uuid;

use crate::stage::{INVALID_ARGUMENT, OK, Stage, answer, end_of, ends, hello, still_stands, welcomed};

const RESULT_BYTES: usize = 512 << 10;
const BAD_IN_A_ROW: u64 = 32;

pub async fn stories(stage: &Stage) {
    let peer = stage.peer("liar").await;
    stage.story("updates can't be stored", wrong_updates(&peer)).await;
    stage.story("sections can't be stored, or are no list", wrong_sections(&peer)).await;
    stage.story("frames are of kinds that are not stored", not_stored(&peer)).await;
    stage.story("a node does nothing but send what can't be stored", bad_in_a_row(&peer)).await;
    stage.story("a node claims another's commands", claims_of_others(stage, &peer)).await;
    stage.story("a result is as large as it may be", largest_result(stage, &peer)).await;
    stage.story("many small commands come at once", many_small_commands(stage)).await;
    stage.story("a node counts attempts as it likes", highest_attempt(stage, &peer)).await;
}

fn id_bytes(id: Uuid) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

fn succeeded(reference: u64, id: Uuid) -> CommandUpdate {
    CommandUpdate {
        r#ref: reference,
        command_id: id_bytes(id),
        attempt: 1,
        state: CommandState::Succeeded.into(),
        ..CommandUpdate::default()
    }
}

async fn rejected(call: &mut RawCall) -> Rejected {
    match answer(call).await {
        Answer::Rejected(rejected) => rejected,
        other => panic!("{other:?} in the place of a Rejected"),
    }
}

async fn wrong_updates(peer: &Target) {
    let (mut call, _) = welcomed(peer, hello()).await;
    let id = Uuid::from_u128(1);
    let long = "e".repeat(4097);
    let wrong: [(CommandUpdate, &str); 8] = [
        (
            CommandUpdate { error: "a\0b".to_owned(), ..succeeded(0, id) },
            "error holds a NUL at byte 1; no text may hold one",
        ),
        (
            CommandUpdate { progress: "\0".to_owned(), ..succeeded(0, id) },
            "progress holds a NUL at byte 0; no text may hold one",
        ),
        (
            CommandUpdate { error: long, ..succeeded(0, id) },
            "error is 4097 bytes long; at most 4096 are allowed",
        ),
        (
            CommandUpdate { result: vec![7; RESULT_BYTES + 1].into(), ..succeeded(0, id) },
            "result is 524289 bytes long; at most 524288 are allowed (sessions.result_bytes)",
        ),
        (CommandUpdate { attempt: 0, ..succeeded(0, id) }, "attempt is 0; it counts from 1 to 2147483647"),
        (
            CommandUpdate { attempt: u32::MAX, ..succeeded(0, id) },
            "attempt is 4294967295; it counts from 1 to 2147483647",
        ),
        (
            CommandUpdate { state: CommandState::Pending.into(), ..succeeded(0, id) },
            "a node can't report the state pending",
        ),
        (
            CommandUpdate { state: CommandState::Expired.into(), ..succeeded(0, id) },
            "a node can't report the state expired",
        ),
    ];
    for (reference, (update, sentence)) in (10..).zip(wrong) {
        call.send(Frame::CommandUpdate(CommandUpdate { r#ref: reference, ..update }));
        let answer = rejected(&mut call).await;
        assert_eq!((answer.r#ref, answer.code()), (reference, RejectCode::Invalid), "{answer:?}");
        assert_eq!((answer.message.as_str(), answer.retryable), (sentence, false));
        still_stands(&mut call, reference).await;
    }
    // What is no id, or no state, is no frame of this protocol.
    call.send(Frame::CommandUpdate(CommandUpdate { command_id: vec![1; 17].into(), ..succeeded(1, id) }));
    let no_id = "CommandUpdate: command_id is 17 bytes long; it must be the 16 of a UUID";
    ends(&mut call, INVALID_ARGUMENT, no_id).await;
    let (mut call, _) = welcomed(peer, hello()).await;
    call.send(Frame::CommandUpdate(CommandUpdate { state: 99, ..succeeded(1, id) }));
    let no_state = format!("CommandUpdate: the state of command {id} is none of CommandState");
    ends(&mut call, INVALID_ARGUMENT, &no_state).await;
}

async fn wrong_sections(peer: &Target) {
    let section = |name: &str, body: &'static [u8]| InventorySection {
        section: name.to_owned(),
        hash: hash_of(body),
        body: Bytes::from_static(body),
        ..InventorySection::default()
    };
    let wrong = [
        (InventorySection::default(), "a section name is empty"),
        (section(&"n".repeat(65), b"x"), "a section name is 65 bytes long; at most 64 are allowed"),
        (section("a\0", b"x"), "a section name holds a control character"),
        (
            InventorySection { hash: Bytes::from_static(&[1; 33]), ..section("s", b"x") },
            "hash is 33 bytes long; it must be the 32 of the body's SHA-256",
        ),
        (
            InventorySection { body: Bytes::from_static(b"y"), ..section("s", b"x") },
            "hash is not the SHA-256 of the body; one of the two is corrupt",
        ),
    ];
    let (mut call, _) = welcomed(peer, hello()).await;
    for (reference, (section, sentence)) in (10..).zip(wrong) {
        call.send(Frame::InventorySection(InventorySection { r#ref: reference, ..section }));
        let answer = rejected(&mut call).await;
        assert_eq!((answer.r#ref, answer.code()), (reference, RejectCode::Invalid), "{answer:?}");
        assert_eq!((answer.message.as_str(), answer.retryable), (sentence, false));
        still_stands(&mut call, reference).await;
    }
    // In a list it is no frame of this protocol.
    let list = |inventory| Frame::Heartbeat(Heartbeat { sequence: 1, inventory, ..Heartbeat::default() });
    let entry = |name: &str, hash: Bytes| SectionHash { section: name.to_owned(), hash };
    let no_hash = list(vec![entry("s", Bytes::new())]);
    let twice = list(vec![entry("s", hash_of(b"x")), entry("s", hash_of(b"y"))]);
    let many = list((0..65).map(|number| entry(&number.to_string(), hash_of(b"x"))).collect());
    for (heartbeat, sentence) in [
        (no_hash, "Heartbeat: the hash of a section is 0 bytes long; it must be the 32 of a SHA-256"),
        (twice, "Heartbeat: inventory names a section twice; name each section once"),
        (many, "Heartbeat: inventory holds 65 entries; at most 64 are allowed (sessions.sections_per_node)"),
        (list(vec![SectionHash::default(); 20_000]), "Heartbeat holds more than 128 fields and entries"),
    ] {
        call.send(heartbeat);
        ends(&mut call, INVALID_ARGUMENT, sentence).await;
        (call, _) = welcomed(peer, hello()).await;
    }
    call.half_close();
    ends(&mut call, OK, "").await;
}

async fn not_stored(peer: &Target) {
    let (mut call, _) = welcomed(peer, hello()).await;
    for (reference, name, generation, code, message) in [
        (4, "", 1, RejectCode::Invalid, "a spec name is empty"),
        (5, "dns", 0, RejectCode::Invalid, "generation is 0; it counts from 1 to 9223372036854775807"),
        (6, "dns", 1, RejectCode::UnknownSpec, "this node has no spec of that name"),
    ] {
        let name = name.to_owned();
        call.send(Frame::SpecApplied(SpecApplied {
            r#ref: reference,
            name,
            generation,
            ..SpecApplied::default()
        }));
        let answer = rejected(&mut call).await;
        assert_eq!((answer.r#ref, answer.code(), &*answer.message), (reference, code, message));
    }
    still_stands(&mut call, 1).await;
    call.half_close();
    ends(&mut call, OK, "").await;
}

async fn bad_in_a_row(peer: &Target) {
    let bad = |reference| CommandUpdate { attempt: 0, ..succeeded(reference, Uuid::from_u128(1)) };
    let (mut call, _) = welcomed(peer, hello()).await;
    for reference in 0..=BAD_IN_A_ROW {
        call.send(Frame::CommandUpdate(bad(reference)));
    }
    for reference in 0..BAD_IN_A_ROW - 1 {
        let answer = rejected(&mut call).await;
        assert_eq!((answer.r#ref, answer.code()), (reference, RejectCode::Invalid));
    }
    let end = end_of(&mut call).await;
    assert_eq!(end.status(), Some(INVALID_ARGUMENT), "{end:?}");
    assert_eq!(end.message, "32 frames in a row could not be stored; see their Rejected");
}

async fn claims_of_others(stage: &Stage, peer: &Target) {
    stage.peer("victim").await;
    let victim = stage.world.id("victim");
    let mut database = stage.world.connect().await;
    let command = database::enqueue(&mut database, &NewCommand::new(&victim, b"theirs")).await.unwrap();
    let before = database::command(&mut database, &victim, command).await.unwrap();
    assert_eq!((before.state.as_str(), before.attempt), ("pending", 1));

    // It lists it, and it reports every state of it: nothing of that touches the row.
    let mut listing = hello();
    let state = CommandState::Running.into();
    listing.known_commands = vec![KnownCommand { command_id: id_bytes(command), attempt: 1, state }];
    let (mut call, _) = welcomed(peer, listing).await;
    for (reference, state) in (1..).zip([
        CommandState::Accepted,
        CommandState::Running,
        CommandState::Succeeded,
        CommandState::Failed,
        CommandState::Canceled,
        CommandState::Refused,
    ]) {
        let state = state.into();
        call.send(Frame::CommandUpdate(CommandUpdate { state, ..succeeded(reference, command) }));
        let answer = rejected(&mut call).await;
        assert_eq!((answer.r#ref, answer.code()), (reference, RejectCode::UnknownCommand), "{answer:?}");
        assert!(!answer.retryable && !answer.message.is_empty(), "{answer:?}");
    }
    // One that nobody has is answered in the same words: no oracle of what others have.
    let theirs = {
        call.send(Frame::CommandUpdate(succeeded(7, command)));
        rejected(&mut call).await.message.replace(&command.to_string(), "")
    };
    let nobodys = Uuid::from_u128(1);
    call.send(Frame::CommandUpdate(succeeded(8, nobodys)));
    assert_eq!(rejected(&mut call).await.message.replace(&nobodys.to_string(), ""), theirs);
    still_stands(&mut call, 1).await;
    let after = database::command(&mut database, &victim, command).await.unwrap();
    assert_eq!(after, before);
    call.half_close();
    ends(&mut call, OK, "").await;
}

/// Welcomes the node with one free credit and gives it a command.
async fn with_command(stage: &Stage, peer: &Target) -> (RawCall, Uuid) {
    let lane = Lane { name: "default".to_owned(), capacity: 1 };
    let greeting = gateway_proto::v1::Hello { lanes: vec![lane], ..hello() };
    let (mut call, _) = welcomed(peer, greeting).await;
    let node = stage.world.id("liar");
    let mut database = stage.world.connect().await;
    let id = database::enqueue(&mut database, &NewCommand::new(&node, b"mine")).await.unwrap();
    match answer(&mut call).await {
        Answer::Command(command) => assert_eq!(Uuid::from_slice(&command.command_id).unwrap(), id),
        other => panic!("{other:?} in the place of the command"),
    }
    (call, id)
}

async fn acked(call: &mut RawCall, reference: u64, state: CommandState) {
    match answer(call).await {
        Answer::Ack(ack) => assert_eq!((ack.r#ref, ack.state()), (reference, state)),
        other => panic!("{other:?} in the place of the ack of {reference}"),
    }
}

async fn largest_result(stage: &Stage, peer: &Target) {
    let (mut call, id) = with_command(stage, peer).await;
    call.send(Frame::CommandUpdate(CommandUpdate {
        result: vec![7; RESULT_BYTES].into(),
        ..succeeded(1, id)
    }));
    acked(&mut call, 1, CommandState::Succeeded).await;
    let mut database = stage.world.connect().await;
    let row = database::command(&mut database, &stage.world.id("liar"), id).await.unwrap();
    assert_eq!(
        (row.state.as_str(), row.result.map(|result| result.len())),
        ("succeeded", Some(RESULT_BYTES))
    );
    // A good one between bad ones: the count of those in a row starts over.
    let bad = |reference| CommandUpdate { attempt: 0, ..succeeded(reference, id) };
    for round in 0..3 {
        for reference in 0..BAD_IN_A_ROW - 1 {
            call.send(Frame::CommandUpdate(bad(reference)));
            assert_eq!(rejected(&mut call).await.code(), RejectCode::Invalid);
        }
        call.send(Frame::CommandUpdate(succeeded(100 + round, id)));
        acked(&mut call, 100 + round, CommandState::Succeeded).await;
    }
    // Another end after the first is acked with the one that is stored.
    call.send(Frame::CommandUpdate(CommandUpdate {
        state: CommandState::Failed.into(),
        ..succeeded(200, id)
    }));
    acked(&mut call, 200, CommandState::Succeeded).await;
    call.half_close();
    ends(&mut call, OK, "").await;
}

async fn highest_attempt(stage: &Stage, peer: &Target) {
    let highest = i32::MAX as u32;
    let (mut call, id) = with_command(stage, peer).await;
    // It lists its own command with the highest attempt that there is, then wants one more.
    call.half_close();
    ends(&mut call, OK, "").await;
    let mut listing = hello();
    let state = CommandState::Accepted.into();
    listing.known_commands = vec![KnownCommand { command_id: id_bytes(id), attempt: highest, state }];
    let (mut call, _) = welcomed(peer, listing).await;
    call.send(Frame::CommandUpdate(CommandUpdate {
        attempt: highest,
        state: CommandState::Refused.into(),
        refusal: Some(Refusal { reason: 1, retryable: true }),
        ..succeeded(1, id)
    }));
    acked(&mut call, 1, CommandState::Refused).await;
    still_stands(&mut call, 1).await;
    let mut database = stage.world.connect().await;
    let row = database::command(&mut database, &stage.world.id("liar"), id).await.unwrap();
    assert_eq!((row.state.as_str(), row.done), ("refused", true), "{row:?}");
    call.half_close();
    ends(&mut call, OK, "").await;
}

/// More tiny frames than a stock client's HTTP/2 takes unread, as replays and as new commands.
async fn many_small_commands(stage: &Stage) {
    const COMMANDS: usize = 500;
    let peer = stage.peer("collector").await;
    let mut database = stage.world.connect().await;
    let nodes = vec![stage.world.id("collector"); COMMANDS];
    let ids = database::enqueue_many(&mut database, &nodes, b"x").await.unwrap();
    for _ in 0..2 {
        let lane = Lane { name: "default".to_owned(), capacity: 1024 };
        let (mut call, _) = welcomed(&peer, gateway_proto::v1::Hello { lanes: vec![lane], ..hello() }).await;
        for id in &ids {
            match answer(&mut call).await {
                Answer::Command(command) => assert_eq!(Uuid::from_slice(&command.command_id).unwrap(), *id),
                other => panic!("{other:?} in the place of command {id}"),
            }
        }
        call.half_close();
        ends(&mut call, OK, "").await;
    }
}
