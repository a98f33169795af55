//! What the wire makes of good, odd and hostile messages.
//!
//! Messages of the schema go in, frames of the core or a sentence come out, and the other way round. No
//! bytes may make it panic, and nothing small may keep a large buffer alive. Limits that a session
//! decides on are the core's to test.

use gateway_core::ids::{LaneSeq, SessionEpoch};
use gateway_core::time::UnixMillis;
use gateway_proto::framing::Deframer;
use proptest::prelude::*;
use v1::node_frame::Frame;

use super::*;

const ID: [u8; 16] = [3; 16];

fn decoded(frame: Frame) -> Result<NodeFrame, CloseReason> {
    decode(v1::NodeFrame { frame: Some(frame) }.encode_to_vec().into(), &Limits::default())
}

fn sentence(frame: Frame) -> String {
    match decoded(frame) {
        Err(CloseReason::Protocol(sentence)) => sentence,
        other => panic!("expected a broken protocol, got {other:?}"),
    }
}

fn update() -> v1::CommandUpdate {
    v1::CommandUpdate {
        r#ref: 9,
        command_id: Bytes::copy_from_slice(&ID),
        attempt: 2,
        state: v1::CommandState::Refused as i32,
        refusal: Some(v1::Refusal { reason: v1::RefusalReason::LaneFull as i32, retryable: true }),
        ..v1::CommandUpdate::default()
    }
}

fn listed(section: &str, body: &[u8]) -> v1::SectionHash {
    v1::SectionHash { section: section.into(), hash: Bytes::copy_from_slice(&BodyHash::of(body).0) }
}

/// The arm of a frame for a node, as a node reads it.
fn seen(frame: GatewayFrame) -> v1::gateway_frame::Frame {
    let mut deframer = Deframer::new(1 << 20);
    deframer.push(encode(frame));
    let message = deframer.next().expect("framed").expect("whole");
    v1::GatewayFrame::decode(message).expect("valid").frame.expect("an arm")
}

#[test]
fn a_hello_arrives_as_it_was_sent() {
    let hello = v1::Hello {
        protocol: 1,
        features: vec!["a".into()],
        boot_id: "b".into(),
        machine: "m".into(),
        software_version: "v".into(),
        role: "r".into(),
        lanes: vec![v1::Lane { name: "gpu".into(), capacity: 4 }],
        journal_id: "j".into(),
        known_commands: vec![v1::KnownCommand {
            command_id: Bytes::copy_from_slice(&ID),
            attempt: 1,
            state: v1::CommandState::Running as i32,
        }],
        specs: vec![v1::SpecGeneration { name: "dns".into(), generation: 7 }],
        inventory: vec![listed("cpu", b"1")],
        ..v1::Hello::default()
    };
    let NodeFrame::Hello(seen) = decoded(Frame::Hello(hello)).expect("valid") else { panic!("another arm") };
    let expected = Hello {
        protocol: 1,
        features: vec!["a".into()],
        boot_id: "b".into(),
        machine: "m".into(),
        software_version: "v".into(),
        role: "r".into(),
        lanes: vec![LaneCapacity { lane: LaneName::new("gpu").expect("a name"), capacity: Credits(4) }],
        journal: Some(JournalId::new("j").expect("an id")),
        known_commands: vec![KnownCommand {
            id: CommandId(Uuid::from_bytes(ID)),
            attempt: Attempt(1),
            state: CommandState::Running,
        }],
        specs: vec![SpecGeneration {
            name: SpecName::new("dns").expect("a name"),
            generation: Generation(7),
        }],

        inventory: vec![SectionHash {
            section: SectionName::new("cpu").expect("a name"),
            hash: BodyHash::of(b"1"),
        }],
    };
    assert_eq!(*seen, expected);
}

#[test]
fn an_update_keeps_what_it_says_and_empty_texts_are_none() {
    let NodeFrame::CommandUpdate(seen) = decoded(Frame::CommandUpdate(update())).expect("valid") else {
        panic!("another arm")
    };
    assert_eq!((seen.frame_ref, seen.attempt, seen.state), (FrameRef(9), Attempt(2), CommandState::Refused));
    assert_eq!(seen.refusal, Some(Refusal { reason: RefusalReason::LaneFull, retryable: true }));
    assert_eq!((seen.progress, seen.error), (None, None));
}

#[test]
fn what_has_a_wrong_form_is_named() {
    let short = v1::CommandUpdate { command_id: Bytes::from_static(&[1; 15]), ..update() };
    assert!(sentence(Frame::CommandUpdate(short)).contains("command_id is 15 bytes long"));
    for state in [0, 99] {
        assert!(sentence(Frame::CommandUpdate(v1::CommandUpdate { state, ..update() })).contains("state"));
    }
    let nameless = v1::Credit { lane: String::new(), capacity: 1 };
    assert_eq!(sentence(Frame::Credit(nameless)), "Credit: a lane name is empty");
    let lanes = vec![v1::Lane { name: "x".repeat(65), capacity: 1 }];
    assert!(sentence(Frame::Hello(v1::Hello { lanes, ..Default::default() })).contains("65 bytes"));
}

#[test]
fn what_is_said_of_specs_arrives_as_it_was_sent() {
    let told = |ok, error: &str| {
        decoded(Frame::SpecApplied(v1::SpecApplied {
            r#ref: 5,
            name: "dns".into(),
            generation: 7,
            ok,
            error: error.into(),
        }))
    };
    let applied = |error: Option<&str>| {
        let (frame_ref, generation) = (FrameRef(5), Generation(7));
        let error = error.map(str::to_owned);
        Ok(NodeFrame::SpecApplied(Box::new(SpecApplied { frame_ref, name: "dns".into(), generation, error })))
    };
    assert_eq!(told(true, ""), applied(None));
    assert_eq!(told(true, "a word beside it"), applied(None));
    assert_eq!(told(false, "no disk"), applied(Some("no disk")));
    assert_eq!(told(false, ""), applied(Some("")), "a failure without a reason is none the less one");
    let listed = |name: &str| v1::SpecGeneration { name: name.into(), generation: 7 };
    let hello = v1::Hello { specs: vec![listed("dns"), listed("ntp")], ..Default::default() };
    let Ok(NodeFrame::Hello(hello)) = decoded(Frame::Hello(hello)) else { panic!("another arm") };
    let names: Vec<&str> = hello.specs.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!((names, hello.specs[1].generation), (vec!["dns", "ntp"], Generation(7)));
    let nameless = v1::Hello { specs: vec![listed("")], ..Default::default() };
    assert_eq!(sentence(Frame::Hello(nameless)), "Hello: a spec name is empty");
}

#[test]
fn a_status_arrives_as_it_was_sent() {
    let sent =
        v1::Status { r#ref: 5, id: "i".into(), kind: "gpu.xid".into(), body: Bytes::from_static(b"body") };
    let NodeFrame::Status(seen) = decoded(Frame::Status(sent)).expect("valid") else { panic!("another arm") };
    let expected = Status {
        frame_ref: FrameRef(5),
        id: "i".into(),
        kind: "gpu.xid".into(),
        body: Bytes::from_static(b"body"),
    };
    assert_eq!(*seen, expected);
}

fn batch(events: Vec<v1::Event>) -> v1::EventBatch {
    v1::EventBatch { r#ref: 5, journal_id: "j".into(), boot_id: "b".into(), events }
}

#[test]
fn events_arrive_as_they_were_sent_and_keep_no_buffer_alive() {
    let attested = v1::SignedEnvelope {
        body: Bytes::from_static(b"signed"),
        kid: "key-1".into(),
        signature: Bytes::from_static(b"sig"),
    };
    let event = v1::Event {
        seq: 7,
        kind: "gpu.xid".into(),
        body: Bytes::from_static(b"body"),
        attested: Some(attested),
    };
    let frame = Frame::EventBatch(batch(vec![event, v1::Event { seq: 8, ..Default::default() }]));
    let message: Bytes = v1::NodeFrame { frame: Some(frame) }.encode_to_vec().into();
    let range = message.as_ptr_range();
    let seen = decode(message.clone(), &Limits::default()).expect("valid");
    let NodeFrame::EventBatch(seen) = seen else { panic!("another arm") };
    let plain = |seq, kind: &str, body: &'static [u8], attested| Event {
        seq: EventSeq(seq),
        kind: kind.into(),
        body: Bytes::from_static(body),
        attested,
        refused: None,
    };
    let attested = Attested {
        body: Bytes::from_static(b"signed"),
        kid: "key-1".into(),
        signature: Bytes::from_static(b"sig"),
    };
    let expected = EventBatch {
        frame_ref: FrameRef(5),
        journal: JournalId::new("j").expect("an id"),
        boot_id: "b".into(),
        events: vec![plain(7, "gpu.xid", b"body", Some(attested)), plain(8, "", b"", None)],
    };
    assert_eq!(*seen, expected);
    assert!(!range.contains(&seen.events[0].body.as_ptr()), "a copy");
}

#[test]
fn a_batch_without_a_journal_or_of_a_million_empty_events_is_refused_before_it_is_built() {
    let nameless = v1::EventBatch { journal_id: String::new(), ..batch(Vec::new()) };
    assert_eq!(sentence(Frame::EventBatch(nameless)), "EventBatch: a journal id is empty");
    let crowd = Frame::EventBatch(batch(vec![v1::Event::default(); 400_000]));
    assert_eq!(sentence(crowd), "EventBatch holds more than 1064 fields and entries");
    // One too many is told with its ref, by the session.
    assert!(decoded(Frame::EventBatch(batch(vec![v1::Event::default(); 1001]))).is_ok());
}

#[test]
fn unknown_arms_and_fields_are_passed_over() {
    let limits = Limits::default();
    // Field 100, length-delimited.
    let unknown = [0xa2, 0x06, 1, 7];
    assert_eq!(decode(Bytes::copy_from_slice(&unknown), &limits), Ok(NodeFrame::Ignored));
    assert_eq!(decode(Bytes::new(), &limits), Ok(NodeFrame::Ignored));
    let refused = v1::TunnelRefused { tunnel_id: Bytes::new(), reason: "no".into() };
    assert_eq!(decoded(Frame::TunnelRefused(refused)), Ok(NodeFrame::Ignored));
    let heartbeat = v1::Heartbeat { sequence: 4, ..Default::default() };
    let mut message = v1::NodeFrame { frame: Some(Frame::Heartbeat(heartbeat)) }.encode_to_vec();
    message.extend(unknown);
    assert_eq!(
        decode(message.into(), &limits),
        Ok(NodeFrame::Heartbeat(Heartbeat { sequence: 4, ..Heartbeat::default() }))
    );
}

#[test]
fn a_section_arrives_as_it_was_sent_however_wrong_it_is() {
    let section = v1::InventorySection {
        r#ref: 5,
        section: "\0".into(),
        hash: Bytes::from_static(b"short"),
        body: Bytes::from_static(b"body"),
    };
    let expected = InventorySection {
        frame_ref: FrameRef(5),
        section: "\0".into(),
        hash: Bytes::from_static(b"short"),
        body: Bytes::from_static(b"body"),
    };
    let seen = decoded(Frame::InventorySection(section));
    assert_eq!(seen, Ok(NodeFrame::InventorySection(Box::new(expected))), "the session says what is wrong");
}

#[test]
fn the_list_of_a_heartbeat_is_read_and_one_that_is_none_is_named() {
    let beat = |inventory| Frame::Heartbeat(v1::Heartbeat { sequence: 4, inventory, ..Default::default() });
    let Ok(NodeFrame::Heartbeat(seen)) = decoded(beat(vec![listed("cpu", b"1")])) else {
        panic!("no heartbeat")
    };
    assert_eq!((seen.inventory[0].section.as_str(), seen.inventory[0].hash), ("cpu", BodyHash::of(b"1")));
    let short = v1::SectionHash { hash: Bytes::from_static(&[1; 31]), ..listed("cpu", b"1") };
    assert_eq!(
        sentence(beat(vec![short])),
        "Heartbeat: the hash of a section is 31 bytes long; it must be the 32 of a SHA-256"
    );
    assert_eq!(sentence(beat(vec![listed("", b"1")])), "Heartbeat: a section name is empty");
    let crowd = beat(vec![v1::SectionHash::default(); 400_000]);
    assert_eq!(sentence(crowd), "Heartbeat holds more than 128 fields and entries", "before it is built");
}

#[test]
fn a_frame_with_two_arms_is_refused() {
    let mut message = v1::NodeFrame { frame: Some(Frame::CommandUpdate(update())) }.encode_to_vec();
    message.extend(v1::NodeFrame { frame: Some(Frame::Status(Default::default())) }.encode_to_vec());
    assert!(matches!(decode(message.into(), &Limits::default()), Err(CloseReason::Protocol(_))));
}

#[test]
fn a_hello_of_a_million_empty_entries_is_refused_before_it_is_built() {
    // Field 10, length 0, over and over: two bytes that would become a known command each.
    let hello = [0x52, 0].repeat(500_000);
    let mut message = vec![0x0a];
    prost::encoding::encode_varint(hello.len() as u64, &mut message);
    message.extend(hello);
    let Err(CloseReason::Protocol(sentence)) = decode(message.into(), &Limits::default()) else {
        panic!("it was taken")
    };
    assert!(sentence.contains("Hello holds more than"), "{sentence}");
}

#[test]
fn a_small_result_does_not_keep_its_buffer_alive() {
    let result = Bytes::from_static(b"done");
    let message: Bytes =
        v1::NodeFrame { frame: Some(Frame::CommandUpdate(v1::CommandUpdate { result, ..update() })) }
            .encode_to_vec()
            .into();
    let range = message.as_ptr_range();
    let NodeFrame::CommandUpdate(seen) = decode(message.clone(), &Limits::default()).expect("valid") else {
        panic!("another arm")
    };
    assert_eq!(&seen.result[..], b"done");
    assert!(!range.contains(&seen.result.as_ptr()), "a copy");
}

#[test]
fn every_frame_for_a_node_arrives_as_it_was_given() {
    use gateway_core::frame::{Ack, CancelCommand, Command, EventAck, Rejected, Spec, Welcome};
    use v1::gateway_frame::Frame as Arm;

    let id = CommandId(Uuid::from_bytes(ID));
    let welcome = Welcome {
        session_epoch: SessionEpoch(3),
        heartbeat_interval_ms: 10_000,
        server_time: UnixMillis(5),
        journal: None,
        journal_acked: EventSeq(0),
        frame_bytes: 1,
        result_bytes: 2,
        events_per_batch: 3,
        inventory_wanted: vec![SectionName::new("cpu").expect("a name")],
        features: vec!["tunnels"],
        tunnel_address: Some("g1:7443".to_owned()),
    };
    let Arm::Welcome(seen_welcome) = seen(GatewayFrame::Welcome(Box::new(welcome))) else { panic!("arm") };
    assert_eq!((seen_welcome.protocol, seen_welcome.session_epoch, seen_welcome.server_unix_ms), (1, 3, 5));
    assert_eq!(
        (seen_welcome.features, seen_welcome.tunnel_addresses),
        (vec!["tunnels".to_owned()], vec!["g1:7443".to_owned()])
    );
    let command = Command {
        id,
        attempt: Attempt(2),
        lane: LaneName::new("gpu").expect("a name"),
        seq: LaneSeq(8),
        kind: "run".into(),
        payload: Bytes::from_static(b"p"),
        not_after: Some(UnixMillis(77)),
        session_epoch: SessionEpoch(3),
    };
    let Arm::Command(command) = seen(GatewayFrame::Command(Box::new(command))) else { panic!("arm") };
    assert_eq!((&command.command_id[..], command.attempt, command.seq), (&ID[..], 2, 8));
    assert_eq!((&*command.lane, &*command.kind, &command.payload[..]), ("gpu", "run", &b"p"[..]));
    assert_eq!((command.not_after_unix_ms, command.session_epoch), (77, 3));
    let cancel = CancelCommand { id, reason: "why".into() };
    let Arm::CancelCommand(cancel) = seen(GatewayFrame::CancelCommand(cancel)) else { panic!("arm") };
    assert_eq!((&cancel.command_id[..], &*cancel.reason), (&ID[..], "why"));
    assert_eq!(seen_welcome.inventory_wanted, ["cpu"]);
    for state in CommandState::ALL.into_iter().map(Some).chain([None]) {
        let ack = Ack { frame_ref: FrameRef(1), state };
        let Arm::Ack(ack) = seen(GatewayFrame::Ack(ack)) else { panic!("arm") };
        assert_eq!(decode_state(ack.state), state);
    }
    let Arm::Ack(ack) = seen(GatewayFrame::Ack(Ack { frame_ref: FrameRef(1), state: None })) else {
        panic!("arm")
    };
    assert_eq!((ack.r#ref, ack.state()), (1, v1::CommandState::Unspecified));
    let spec = Spec {
        name: SpecName::new("dns").expect("a name"),
        generation: Generation(6),
        body: Bytes::from_static(b"body"),
    };
    let Arm::Spec(spec) = seen(GatewayFrame::Spec(Box::new(spec))) else { panic!("arm") };
    assert_eq!((&*spec.name, spec.generation, &spec.body[..]), ("dns", 6, &b"body"[..]));
    let Arm::Ack(ack) = seen(GatewayFrame::Ack(Ack { frame_ref: FrameRef(2), state: None })) else {
        panic!("arm")
    };
    assert_eq!((ack.r#ref, ack.state()), (2, v1::CommandState::Unspecified));
    let wanted = GatewayFrame::InventoryWanted(vec![SectionName::new("disk").expect("a name")]);
    let Arm::InventoryWanted(wanted) = seen(wanted) else { panic!("arm") };
    assert_eq!(wanted.sections, ["disk"]);
    let rejected = Rejected {
        frame_ref: FrameRef(1),
        code: RejectCode::OldAttempt,
        message: "m".into(),
        retryable: true,
    };
    let Arm::Rejected(rejected) = seen(GatewayFrame::Rejected(rejected)) else { panic!("arm") };
    assert_eq!((rejected.code(), rejected.retryable), (v1::RejectCode::OldAttempt, true));
    let acked = EventAck {
        frame_ref: FrameRef(4),
        journal: JournalId::new("j").expect("an id"),
        acked: EventSeq(17),
    };
    let Arm::EventAck(ack) = seen(GatewayFrame::EventAck(acked)) else { panic!("arm") };
    assert_eq!((ack.r#ref, &*ack.journal_id, ack.acked_seq), (4, "j", 17));
    let Arm::Drain(drain) = seen(GatewayFrame::Drain { reconnect_after_ms: 9 }) else { panic!("arm") };
    assert_eq!(drain.reconnect_after_ms, 9);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(bytes.into(), &Limits::default());
    }

    #[test]
    fn no_cut_or_flipped_update_makes_it_panic(cut in 0usize..60, at in 0usize..60, flip: u8) {
        let frame = Frame::CommandUpdate(v1::CommandUpdate { progress: "half".into(), ..update() });
        let mut message = v1::NodeFrame { frame: Some(frame) }.encode_to_vec();
        let length = message.len();
        message[at % length] ^= flip;
        message.truncate(cut.max(1));
        let _ = decode(message.into(), &Limits::default());
    }
}
