//! Stories of inventories: sections beside the durable frames, lists that are looked at, what is wanted.
//!
//! What is stored and compared is the store's; here stands what a session hands on, when, and what it says.

use super::*;
use crate::frame::InventorySection;
use crate::ids::SectionName;
use crate::inventory::{BodyHash, SectionHash};
use crate::limits::MAX_SECTIONS_WITH_WRITER;

pub(in crate::session) fn section(frame_ref: u64, name: &str, body: &str) -> InventorySection {
    InventorySection {
        frame_ref: FrameRef(frame_ref),
        section: name.to_owned(),
        hash: Bytes::copy_from_slice(&BodyHash::of(body.as_bytes()).0),
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

pub(in crate::session) fn name(text: &str) -> SectionName {
    SectionName::new(text).expect("a section name")
}

pub(in crate::session) fn list(pairs: &[(&str, &str)]) -> Vec<SectionHash> {
    let entry =
        |(of, body): &(&str, &str)| SectionHash { section: name(of), hash: BodyHash::of(body.as_bytes()) };
    pairs.iter().map(entry).collect()
}

fn send(session: &mut Session, section: InventorySection) {
    let bytes = section.body.len() + 100;
    session.handle_frame(NodeFrame::InventorySection(Box::new(section)), bytes, at(1));
}

fn beat(session: &mut Session, pairs: &[(&str, &str)]) {
    let heartbeat = Heartbeat { sequence: 1, inventory: list(pairs).into() };
    session.handle_frame(NodeFrame::Heartbeat(heartbeat), 10, at(1));
    assert!(matches!(session.poll_frame(), Some(GatewayFrame::HeartbeatAck { .. })));
}

/// What is posted next, as one line.
fn posted(session: &mut Session) -> String {
    match session.poll_to_writer() {
        None => String::new(),
        Some(ToWriter::Section(request)) => {
            assert_eq!((request.epoch, request.hash), (SessionEpoch(4), BodyHash::of(&request.body)));
            format!("{} {}", request.frame_ref, request.section)
        }
        Some(ToWriter::InventoryLook(request)) => {
            let names: Vec<&str> = request.list.iter().map(|entry| entry.section.as_str()).collect();
            format!("look at {}", names.join(" "))
        }
        Some(ToWriter::Update(request)) => format!("update {}", request.update.frame_ref),
        Some(other) => panic!("{other:?}"),
    }
}

fn tell_stored(session: &mut Session, frame_ref: u64) {
    session.handle_news(SessionNews::SectionStored { frame_ref: FrameRef(frame_ref) }, at(2));
}

fn section_ack(frame_ref: u64) -> GatewayFrame {
    GatewayFrame::Ack(Ack { frame_ref: FrameRef(frame_ref), state: None })
}

/// A live session whose Hello listed these, of which that is wanted.
fn live_listing(pairs: &[(&str, &str)], wanted: &[&str]) -> Session {
    let mut session = opened();
    let mut hello = hello(&["default"]);
    hello.inventory = list(pairs);
    session.handle_frame(NodeFrame::Hello(Box::new(hello)), 100, at(0));
    assert!(matches!(session.poll_to_writer(), Some(ToWriter::Hello(_))));
    let SessionNews::Granted(mut granted) = granted() else { panic!("no grant") };
    granted.inventory_wanted = wanted.iter().map(|of| name(of)).collect();
    let told = granted.inventory_wanted.clone();
    session.handle_news(SessionNews::Granted(granted), at(0));
    let Some(GatewayFrame::Welcome(welcome)) = session.poll_frame() else { panic!("no Welcome") };
    assert_eq!(welcome.inventory_wanted, told);
    session
}

#[test]
fn a_section_waits_for_no_durable_frame_and_none_waits_for_it() {
    let mut session = live();
    send_update(&mut session, 1, at(1));
    send_update(&mut session, 2, at(1));
    send(&mut session, section(3, "cpu", "a"));
    send(&mut session, section(4, "disk", "b"));
    assert_eq!(posted(&mut session), "3 cpu");
    assert_eq!(posted(&mut session), "4 disk");
    assert_eq!(posted(&mut session), "update 1");
    assert_eq!(posted(&mut session), "", "the second update waits for the first, the sections did not");
    assert_eq!(session.poll_frame(), None, "no ack before durable");
    tell_stored(&mut session, 4);
    session.handle_news(stored(), at(2));
    assert_eq!(posted(&mut session), "update 2");
    tell_stored(&mut session, 3);
    assert_eq!(frames(&mut session), [section_ack(4), ack(1), section_ack(3)], "as they become known");
    assert!(!session.inventory.holds_memory(), "nothing is kept of what is done");
}

#[test]
fn a_bad_section_is_rejected_alone() {
    let cases: Vec<(&str, InventorySection)> = vec![
        ("a section name is empty", section(9, "", "a")),
        ("a section name is 65 bytes long", section(9, &"x".repeat(65), "a")),
        ("a section name holds a control character", section(9, "a\u{1}", "a")),
        (
            "hash is 0 bytes long; it must be the 32",
            InventorySection { hash: Bytes::new(), ..section(9, "s", "a") },
        ),
        ("not the SHA-256 of the body", InventorySection { body: "b".into(), ..section(9, "s", "a") }),
    ];
    let mut session = live();
    for (expected, bad) in cases {
        send(&mut session, bad);
        assert_eq!(posted(&mut session), "", "{expected}");
        let [GatewayFrame::Rejected(rejected)] = &frames(&mut session)[..] else { panic!("{expected}") };
        assert_eq!((rejected.frame_ref, rejected.code), (FrameRef(9), RejectCode::Invalid));
        assert!(rejected.message.contains(expected), "{}", rejected.message);
    }
    send(&mut session, section(10, &"x".repeat(64), ""));
    assert!(posted(&mut session).starts_with("10 xx"), "the stream goes on");
    session.handle_news(
        SessionNews::SectionNotStored { frame_ref: FrameRef(10), message: "no".to_owned() },
        at(2),
    );
    let [GatewayFrame::Rejected(rejected)] = &frames(&mut session)[..] else { panic!("no Rejected") };
    assert_eq!((rejected.frame_ref, rejected.code), (FrameRef(10), RejectCode::NotStorable));
}

#[test]
fn what_is_on_its_way_is_bounded_in_number_and_in_bytes() {
    let mut session = live();
    for frame_ref in 0..MAX_SECTIONS_WITH_WRITER as u64 + 3 {
        send(&mut session, section(frame_ref, "s", "a"));
    }
    for frame_ref in 0..MAX_SECTIONS_WITH_WRITER {
        assert_eq!(posted(&mut session), format!("{frame_ref} s"));
    }
    assert_eq!(posted(&mut session), "", "no more at once");
    tell_stored(&mut session, 0);
    assert_eq!(posted(&mut session), "16 s");

    let mut session = live();
    let large = "x".repeat(600 << 10);
    send(&mut session, section(1, "s", &large));
    assert_eq!(posted(&mut session), "1 s");
    assert!(session.wants_read(), "one large section holds nobody up");
    send(&mut session, section(2, "t", &large));
    assert_eq!(posted(&mut session), "", "two are more than a frame may hold");
    assert!(!session.wants_read());
    tell_stored(&mut session, 1);
    assert_eq!(posted(&mut session), "2 t");
    assert!(session.wants_read());
}

#[test]
fn a_half_close_waits_for_sections_and_an_end_forgets_them() {
    let mut session = live();
    send(&mut session, section(1, "s", "a"));
    session.handle_half_close(at(1));
    assert_eq!(posted(&mut session), "1 s");
    assert_eq!(session.poll_end(), None);
    tell_stored(&mut session, 1);
    assert_eq!(frames(&mut session), [section_ack(1)]);
    assert!(is_closed(session.poll_to_writer()));
    assert_eq!(session.poll_end(), Some(CloseReason::Finished));

    let mut session = live();
    send(&mut session, section(1, "s", "a"));
    assert_eq!(posted(&mut session), "1 s");
    send(&mut session, section(2, "s", "b"));
    session.handle_close(CloseReason::Fenced, at(1));
    assert!(is_closed(session.poll_to_writer()) && session.poll_to_writer().is_none());
    tell_stored(&mut session, 1);
    assert_eq!(session.poll_frame(), None);
    assert!(!session.inventory.holds_memory());
}

#[test]
fn sections_before_welcome_wait_for_it_and_a_bad_one_is_told_behind_it() {
    let mut session = opened();
    session.handle_frame(NodeFrame::Hello(Box::new(hello(&["default"]))), 100, at(0));
    send(&mut session, section(1, "s", "a"));
    send(&mut session, InventorySection { hash: Bytes::new(), ..section(2, "s", "a") });
    assert!(matches!(session.poll_to_writer(), Some(ToWriter::Hello(_))));
    assert!(session.poll_to_writer().is_none() && session.poll_frame().is_none());
    session.handle_news(granted(), at(1));
    let told = frames(&mut session);
    assert!(matches!(told[..], [GatewayFrame::Welcome(_), GatewayFrame::Rejected(_)]), "{told:?}");
    assert_eq!(posted(&mut session), "1 s");
}

#[test]
fn a_list_is_looked_at_once_and_again_when_it_is_another() {
    let mut session = live();
    beat(&mut session, &[]);
    assert_eq!(posted(&mut session), "", "a heartbeat without a list asks for nothing");
    beat(&mut session, &[("cpu", "1"), ("disk", "2")]);
    beat(&mut session, &[("cpu", "1"), ("disk", "2")]);
    assert_eq!(posted(&mut session), "look at cpu disk");
    beat(&mut session, &[("cpu", "9")]);
    assert_eq!(posted(&mut session), "", "one look at a time");
    session.handle_news(SessionNews::InventoryWanted(Vec::new()), at(2));
    assert_eq!(session.poll_frame(), None, "nothing is wanted");
    assert!(!session.inventory.holds_memory());
    beat(&mut session, &[("disk", "2"), ("cpu", "1")]);
    assert_eq!(posted(&mut session), "", "it is known to be stored");
    beat(&mut session, &[("cpu", "3"), ("disk", "2")]);
    assert_eq!(posted(&mut session), "look at cpu disk");
}

#[test]
fn what_is_wanted_is_asked_for_with_each_heartbeat_until_it_is_stored() {
    let mut session = live();
    for _ in 0..2 {
        beat(&mut session, &[("cpu", "1")]);
        assert_eq!(posted(&mut session), "look at cpu");
        session.handle_news(SessionNews::InventoryWanted(vec![name("cpu")]), at(2));
        assert_eq!(frames(&mut session), [GatewayFrame::InventoryWanted(vec![name("cpu")])]);
    }
    send(&mut session, section(1, "cpu", "1"));
    beat(&mut session, &[("cpu", "1")]);
    assert_eq!(posted(&mut session), "1 cpu");
    assert_eq!(posted(&mut session), "", "no look while it is on its way");
    tell_stored(&mut session, 1);
    assert_eq!(frames(&mut session), [section_ack(1)]);
    beat(&mut session, &[("cpu", "1")]);
    assert_eq!(posted(&mut session), "look at cpu");
    session.handle_news(SessionNews::InventoryNotLooked, at(3));
    beat(&mut session, &[("cpu", "1")]);
    assert_eq!(posted(&mut session), "look at cpu", "a look that failed says nothing");
    session.handle_news(SessionNews::InventoryWanted(Vec::new()), at(3));
    beat(&mut session, &[("cpu", "1")]);
    assert_eq!(posted(&mut session), "");
}

#[test]
fn a_section_that_came_makes_the_known_list_unknown() {
    // The node goes to another state and back, and says the second change by its list alone.
    for late in [false, true] {
        let mut session = live();
        beat(&mut session, &[("cpu", "1")]);
        assert_eq!(posted(&mut session), "look at cpu");
        if !late {
            session.handle_news(SessionNews::InventoryWanted(Vec::new()), at(2));
        }
        send(&mut session, section(1, "cpu", "2"));
        assert_eq!(posted(&mut session), "1 cpu");
        if late {
            session.handle_news(SessionNews::InventoryWanted(Vec::new()), at(2));
        }
        tell_stored(&mut session, 1);
        frames(&mut session);
        beat(&mut session, &[("cpu", "1")]);
        assert_eq!(posted(&mut session), "look at cpu");
    }
}

#[test]
fn the_list_of_the_hello_is_known_from_the_grant_on() {
    let mut session = live_listing(&[("cpu", "1")], &[]);
    beat(&mut session, &[("cpu", "1")]);
    assert_eq!(posted(&mut session), "", "it was compared with the Hello");
    let mut session = live_listing(&[("cpu", "1")], &["cpu"]);
    beat(&mut session, &[("cpu", "1")]);
    assert_eq!(posted(&mut session), "look at cpu");
}

#[test]
fn a_list_that_is_none_ends_the_stream() {
    let mut session = opened();
    let mut twice = hello(&["default"]);
    twice.inventory = list(&[("cpu", "1"), ("disk", "1"), ("cpu", "2")]);
    session.handle_frame(NodeFrame::Hello(Box::new(twice)), 100, at(0));
    assert_eq!(protocol_end(&mut session), "Hello: inventory names a section twice; name each section once");
    let mut session = live_with(Limits { sections_per_node: 1, ..Limits::default() });
    let inventory = list(&[("cpu", "1"), ("disk", "1")]).into();
    session.handle_frame(NodeFrame::Heartbeat(Heartbeat { sequence: 1, inventory }), 10, at(1));
    assert_eq!(
        protocol_end(&mut session),
        "Heartbeat: inventory holds 2 entries; at most 1 are allowed (sessions.sections_per_node)"
    );
}
