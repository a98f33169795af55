//! Frames of clients, good and bad, however they are cut.
//!
//! Clients are made by hand here, so that they may be wrong; a stock one is in the tests of `gateway`, and a stock
//! reader beside ours in `fuzz`.

use std::time::Duration;

use gateway_proto::{framing, v1};
use prost::Message;

use super::*;

const MASK: [u8; 4] = [0x11, 0xa2, 0x03, 0xf4];

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        short @ 0..126 => bytes.push(MASKED | u8::try_from(short).expect("short")),
        long if long <= 0xffff => {
            bytes.push(MASKED | TWO_MORE);
            bytes.extend(u16::try_from(long).expect("fits").to_be_bytes());
        }
        long => {
            bytes.push(MASKED | EIGHT_MORE);
            bytes.extend((long as u64).to_be_bytes());
        }
    }
    bytes.extend(MASK);
    bytes.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// What comes of bytes that are given at most `step` at a time.
fn read(incoming: &mut Incoming, mut bytes: &[u8], step: usize) -> Result<Vec<Arrived>, Fault> {
    let mut arrived = Vec::new();
    while !bytes.is_empty() && incoming.too_large().is_none() {
        let (now, later) = bytes.split_at(incoming.wanted().min(step).min(bytes.len()));
        assert!(!now.is_empty(), "it wants nothing");
        arrived.extend(incoming.handle_bytes(&mut now.to_vec(), Moment::default)?);
        bytes = later;
    }
    Ok(arrived)
}

fn incoming() -> Incoming {
    Incoming::new(1 << 20, Moment::default())
}

fn binary(payload: &[u8]) -> Arrived {
    Arrived::Message(Bytes::copy_from_slice(payload))
}

#[test]
fn messages_come_whole_however_they_are_cut_and_fragmented() {
    let large: Vec<u8> = (0..70_000u32).map(|n| (n % 251) as u8).collect();
    let mut bytes = frame(FIN | BINARY, b"one");
    bytes.extend(frame(BINARY, b"tw"));
    bytes.extend(frame(FIN | PING, b"are you there"));
    bytes.extend(frame(CONTINUATION, b""));
    bytes.extend(frame(FIN | CONTINUATION, b"o"));
    bytes.extend(frame(FIN | BINARY, &large));
    bytes.extend(frame(FIN | BINARY, &large[..300]));
    bytes.extend(frame(FIN | PONG, b"x"));
    bytes.extend(frame(FIN | BINARY, b""));
    bytes.extend(frame(FIN | CLOSE, b"\x03\xe8bye"));
    let expected = [
        binary(b"one"),
        Arrived::Ping(Bytes::from_static(b"are you there")),
        binary(b"two"),
        binary(&large),
        binary(&large[..300]),
        Arrived::Pong,
        binary(b""),
        Arrived::Close,
    ];
    for step in [1, 2, 3, 7, 13, 1000, 1 << 20] {
        let mut incoming = incoming();
        assert_eq!(read(&mut incoming, &bytes, step).expect("good frames"), expected, "pieces of {step}");
        assert!(!incoming.has_begun() && incoming.unfinished().is_none());
    }
}

#[test]
fn what_is_no_frame_of_a_client_is_a_fault_at_its_head() {
    let unmasked = [FIN | BINARY, 1, b'x'];
    let cases: [(&[u8], Fault); 8] = [
        (&unmasked, Fault::Unmasked),
        (&[FIN | TEXT, MASKED], Fault::Text),
        (&[FIN | BINARY | 0x40, MASKED], Fault::Reserved),
        (&[FIN | 3, MASKED], Fault::Opcode(3)),
        (&[FIN | 15, MASKED], Fault::Opcode(15)),
        (&[PING, MASKED], Fault::LargeControl),
        (&[FIN | CLOSE, MASKED | TWO_MORE], Fault::LargeControl),
        (&[FIN | CONTINUATION, MASKED], Fault::NothingToContinue),
    ];
    for (bytes, fault) in cases {
        assert_eq!(read(&mut incoming(), bytes, 2), Err(fault), "{bytes:?}");
    }
    let mut interleaved = frame(BINARY, b"a");
    interleaved.extend(frame(FIN | BINARY, b"b"));
    assert_eq!(read(&mut incoming(), &interleaved, 64), Err(Fault::Interleaved));
}

#[test]
fn a_large_message_is_known_by_its_head_and_over_all_its_fragments() {
    let mut whole = Incoming::new(1000, Moment::default());
    let head = &frame(FIN | BINARY, &[0; 1001])[..8];
    assert_eq!(read(&mut whole, head, 64), Ok(vec![]));
    assert_eq!(whole.too_large(), Some((1001, 1000)));
    let mut endless = Incoming::new(1000, Moment::default());
    for opcode in [BINARY, 0, 0, 0] {
        assert_eq!(read(&mut endless, &frame(opcode, &[0; 250]), 64), Ok(vec![]));
        assert_eq!(endless.too_large(), None);
    }
    assert_eq!(read(&mut endless, &frame(CONTINUATION, &[0; 1])[..6], 64), Ok(vec![]));
    assert_eq!(endless.too_large(), Some((1001, 1000)));
    let mut absurd = incoming();
    let head = [FIN | BINARY, MASKED | EIGHT_MORE, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0];
    assert_eq!(read(&mut absurd, &head, 64), Ok(vec![]));
    assert!(absurd.too_large().is_some());
}

#[test]
fn what_a_message_takes_is_told_before_its_bytes() {
    let mut one = incoming();
    read(&mut one, &frame(FIN | BINARY, &[0; 100_000])[..14], 64).expect("a head");
    assert_eq!(one.unfinished(), Some(100_000));
    // Nobody knows how much more comes in fragments.
    let mut fragmented = incoming();
    read(&mut fragmented, &frame(BINARY, &[0; 100])[..6], 64).expect("a head");
    assert_eq!(fragmented.unfinished(), Some(100));
    let mut fragmented = incoming();
    read(&mut fragmented, &frame(BINARY, &[0; 100_000])[..14], 64).expect("a head");
    assert_eq!(fragmented.unfinished(), Some(1 << 20));
}

#[test]
fn a_flood_of_pings_or_of_tiny_fragments_is_noticed() {
    let mut pings = incoming();
    let ping = frame(FIN | PING, b"");
    let answered = (0..).take_while(|_| read(&mut pings, &ping, 64).is_ok()).count();
    assert_eq!(answered, 1000);
    let mut fragments = incoming();
    read(&mut fragments, &frame(BINARY, b""), 64).expect("a beginning");
    let fragment = frame(CONTINUATION, b"");
    let taken = (0..).take_while(|_| read(&mut fragments, &fragment, 64).is_ok()).count();
    assert_eq!(taken, 999);
    // Time brings some back, and fragments that bring something cost nothing.
    let later = || Moment::default() + Duration::from_secs(1);
    let mut head = fragment.clone();
    assert_eq!(fragments.handle_bytes(&mut head[..2], later), Ok(None));
    let mut incoming = Incoming::new(usize::MAX, Moment::default());
    read(&mut incoming, &frame(BINARY, &[0; TINY_FRAGMENT_BYTES]), 4096).expect("a beginning");
    for _ in 0..2000 {
        read(&mut incoming, &frame(CONTINUATION, &[0; TINY_FRAGMENT_BYTES]), 4096).expect("brings something");
    }
}

#[test]
fn after_the_end_messages_are_read_and_not_kept() {
    let mut incoming = Incoming::new(10, Moment::default());
    incoming.discard();
    let mut bytes = frame(FIN | BINARY, &[1; 100_000]);
    bytes.extend(frame(FIN | CLOSE, b""));
    let arrived = read(&mut incoming, &bytes, 4096).expect("good frames");
    assert_eq!(arrived, [binary(b""), Arrived::Close]);
}

#[test]
fn a_frame_of_ours_takes_the_place_of_its_prefix() {
    for bytes in [0, 1, 110, 125, 126, 200, 65_535, 65_536, 100_000] {
        let message = v1::Goodbye { reason: "a".repeat(bytes) }.encode_to_vec();
        for shared in [false, true] {
            let prefixed = framing::encode(&v1::Goodbye { reason: "a".repeat(bytes) });
            let also = shared.then(|| prefixed.clone());
            let frame = super::message(prefixed);
            let (head, payload) = frame.split_at(frame.len() - message.len());
            let length = message.len();
            let expected: Vec<u8> = match length {
                0..126 => vec![0x82, length as u8],
                126..=65_535 => vec![0x82, 126, (length >> 8) as u8, length as u8],
                _ => [&[0x82, 127][..], &(length as u64).to_be_bytes()].concat(),
            };
            assert_eq!((head, payload), (&expected[..], &message[..]), "{bytes}");
            assert!(
                also.is_none_or(|also| also[0] == 0 && also[5..] == message[..]),
                "it changed what is shared"
            );
        }
    }
}
