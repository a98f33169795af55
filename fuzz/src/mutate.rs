//! Inputs out of a corpus, by a seed: changes that know how the bytes are built.
//!
//! Flipped bits alone die in the first check. So lengths are set to what lies at edges, fields of protobuf
//! and DER are repeated, dropped and nested, frames of HTTP/2 and gRPC swapped and cut, words of the
//! target's dictionary put in, and entries of the corpus spliced.
//!
//! 1. The same corpus, seed and number give the same input.
//! 2. An input is never longer than asked for.

use gateway_core::splitmix::{SplitMix, finalized};

/// How the bytes of a target are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Tag, then varint, or length and bytes.
    Protobuf,
    /// A flag, four bytes of length, a message.
    Grpc,
    /// Three bytes of length, kind, flags, stream, payload.
    Http2,
    /// Opcode, length, mask, payload.
    WebSocket,
    /// Tag, length, value; nested.
    Der,
    /// Lines of words.
    Text,
}

/// Integers at which parsers go wrong.
const EDGES: [u64; 20] = [
    0,
    1,
    2,
    16,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    16_383,
    16_384,
    65_535,
    65_536,
    0x7fff_ffff,
    u64::MAX,
];
const MOST_CHANGES: usize = 6;

/// Makes the inputs of one hunt.
#[derive(Debug)]
pub struct Mutator<'a> {
    corpus: &'a [(String, Vec<u8>)],
    words: &'a [&'a str],
    shape: Shape,
    longest: usize,
    seed: u64,
}

/// The chance of one input.
struct Dice(SplitMix);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.0.next() % bound.max(1) as u64).unwrap_or(0)
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn edge(&mut self) -> u64 {
        EDGES[self.below(EDGES.len())]
    }

    /// A part of `length` bytes, short ones more often.
    fn part(&mut self, length: usize) -> std::ops::Range<usize> {
        let from = self.below(length + 1);
        let most = if self.one_in(3) { length } else { 16 };
        from..(from + self.below(most + 1)).min(length)
    }
}

impl<'a> Mutator<'a> {
    /// Over `corpus` and the dictionary `words`; inputs have at most `longest` bytes.
    pub fn new(
        corpus: &'a [(String, Vec<u8>)],
        words: &'a [&'a str],
        shape: Shape,
        longest: usize,
        seed: u64,
    ) -> Self {
        Self { corpus, words, shape, longest, seed }
    }

    /// Input `number`. The first are the corpus as it is.
    pub fn input(&self, number: u64) -> Vec<u8> {
        if let Some((_, input)) = usize::try_from(number).ok().and_then(|number| self.corpus.get(number)) {
            return input.iter().copied().take(self.longest).collect();
        }
        let mut dice = Dice(SplitMix::new(finalized(self.seed) ^ finalized(number)));
        let mut input = self.entry(&mut dice).to_vec();
        for _ in 0..=dice.below(MOST_CHANGES) {
            match dice.below(3) {
                0 => self.change_bytes(&mut input, &mut dice),
                1 => self.change_text(&mut input, &mut dice),
                _ => self.change_structure(&mut input, &mut dice),
            }
            input.truncate(self.longest);
        }
        input
    }

    fn entry(&self, dice: &mut Dice) -> &'a [u8] {
        &self.corpus[dice.below(self.corpus.len())].1
    }

    fn change_bytes(&self, input: &mut Vec<u8>, dice: &mut Dice) {
        let length = input.len();
        match dice.below(6) {
            0 if length > 0 => input[dice.below(length)] ^= 1 << dice.below(8),
            1 if length > 0 => input[dice.below(length)] = dice.edge() as u8,
            2 => input.truncate(dice.below(length + 1)),
            3 => drop(input.drain(dice.part(length))),
            4 => {
                let many = dice.edge().to_be_bytes();
                let at = dice.below(length + 1);
                let width = [1, 2, 3, 4, 8][dice.below(5)];
                for (place, byte) in input.iter_mut().skip(at).zip(&many[8 - width..]) {
                    *place = *byte;
                }
            }
            _ => {
                let part = input[dice.part(length)].to_vec();
                let at = dice.below(length + 1);
                let times = if dice.one_in(8) { dice.below(500) } else { 1 };
                let room = self.longest.saturating_sub(length);
                let more: Vec<u8> = part.repeat(times).into_iter().take(room).collect();
                input.splice(at..at, more);
            }
        }
    }

    fn change_text(&self, input: &mut Vec<u8>, dice: &mut Dice) {
        let at = dice.below(input.len() + 1);
        match dice.below(3) {
            0 if !self.words.is_empty() => {
                let word = self.words[dice.below(self.words.len())];
                let over = if dice.one_in(2) { dice.part(input.len()) } else { at..at };
                input.splice(over, word.bytes());
            }
            1 => {
                // A sign of up to four bytes, from all over Unicode.
                let sign = char::from_u32((dice.0.next() % 0x11_0000) as u32).unwrap_or('\u{202e}');
                input.splice(at..at, sign.to_string().bytes());
            }
            _ => {
                let other = self.entry(dice);
                input.truncate(at);
                input.extend_from_slice(&other[dice.below(other.len() + 1)..]);
            }
        }
    }

    fn change_structure(&self, input: &mut Vec<u8>, dice: &mut Dice) {
        let pieces = match self.shape {
            Shape::Protobuf => pieces(input, dice.below(3), protobuf_field),
            Shape::Grpc => pieces(input, 0, grpc_frame),
            Shape::Http2 => pieces(input, 0, http2_frame),
            Shape::WebSocket => pieces(input, 0, websocket_frame),
            Shape::Der => pieces(input, dice.below(8), der_value),
            Shape::Text => pieces(input, 0, line),
        };
        let Some(piece) = pieces.get(dice.below(pieces.len())).cloned() else { return };
        let other = pieces[dice.below(pieces.len())].clone();
        match dice.below(6) {
            0 => drop(input.drain(piece)),
            1 => {
                let bytes = input[piece.clone()].to_vec();
                input.splice(other.start..other.start, bytes);
            }
            2 => {
                let bytes = input[other].to_vec();
                input.splice(piece, bytes);
            }
            3 => {
                let times = [2, 17, 300, 5000][dice.below(4)];
                let room = self.longest.saturating_sub(input.len());
                let bytes = input[piece.clone()].to_vec();
                let more: Vec<u8> =
                    bytes.iter().copied().cycle().take(room.min(bytes.len() * times)).collect();
                input.splice(piece.start..piece.start, more);
            }
            4 => self.nest(input, piece, dice),
            _ => {
                let other = self.entry(dice).to_vec();
                input.splice(piece, other);
            }
        }
    }

    /// Puts a piece into itself, or under lengths that are too large, many times.
    fn nest(&self, input: &mut Vec<u8>, piece: std::ops::Range<usize>, dice: &mut Dice) {
        let depth = [1, 2, 20, 200, 2000][dice.below(5)];
        let mut inner = input[piece.clone()].to_vec();
        for _ in 0..depth {
            if inner.len() + input.len() >= self.longest {
                break;
            }
            inner = match self.shape {
                Shape::Protobuf => {
                    let mut outer = vec![(1 + dice.below(15) as u8) << 3 | 2];
                    put_varint(&mut outer, inner.len() as u64 + u64::from(dice.one_in(50)));
                    outer.append(&mut inner);
                    outer
                }
                Shape::Der => {
                    let mut outer = vec![[0x30, 0x31, 0xa0, 0x04][dice.below(4)], 0x83];
                    outer.extend(&(inner.len() as u32).to_be_bytes()[1..]);
                    outer.append(&mut inner);
                    outer
                }
                Shape::Text => {
                    let (open, close) = [("[", "]"), ("{a=", "}"), ("a.", ""), ("\"", "\"")][dice.below(4)];
                    [open.as_bytes(), &inner, close.as_bytes()].concat()
                }
                Shape::WebSocket => {
                    let length = (inner.len() as u16).to_be_bytes();
                    let first = [0x82, 0x02, 0x00, 0x80, 0x89][dice.below(5)];
                    [&[first, 0xfe][..], &length[..], &[0; 4], &inner].concat()
                }
                Shape::Grpc | Shape::Http2 => {
                    let length = (inner.len() as u32).to_be_bytes();
                    let head = if self.shape == Shape::Grpc { &[0][..] } else { &[][..] };
                    [head, &length[..], &inner].concat()
                }
            };
        }
        input.splice(piece, inner);
    }
}

/// What stands one after the other in `input`, within the first piece of that, and so on `depth` times.
fn pieces(
    input: &[u8],
    depth: usize,
    next: fn(&[u8]) -> Option<(usize, usize)>,
) -> Vec<std::ops::Range<usize>> {
    let mut all = Vec::new();
    let mut within = 0..input.len();
    for _ in 0..=depth {
        let (mut at, mut inner) = (within.start, None);
        while at < within.end
            && let Some((head, length)) = next(&input[at..within.end])
            && length > 0
            && all.len() < 4096
        {
            all.push(at..at + length);
            if length > head + 1 && inner.is_none() {
                inner = Some(at + head..at + length);
            }
            at += length;
        }
        match inner {
            Some(inner) => within = inner,
            None => break,
        }
    }
    all
}

/// The length of the head and of all of the field at the front.
fn protobuf_field(bytes: &[u8]) -> Option<(usize, usize)> {
    let (tag, tag_bytes) = varint(bytes)?;
    let rest = bytes.get(tag_bytes..)?;
    let (head, length) = match tag & 7 {
        0 => (tag_bytes, tag_bytes + varint(rest)?.1),
        1 => (tag_bytes, tag_bytes + 8),
        2 => {
            let (length, length_bytes) = varint(rest)?;
            let head = tag_bytes + length_bytes;
            (head, head.checked_add(usize::try_from(length).ok()?)?)
        }
        5 => (tag_bytes, tag_bytes + 4),
        _ => return None,
    };
    (length <= bytes.len()).then_some((head, length))
}

fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index).min(63);
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    None
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn grpc_frame(bytes: &[u8]) -> Option<(usize, usize)> {
    let length = bytes.get(1..5)?.iter().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
    (5 + length <= bytes.len()).then_some((5, 5 + length))
}

fn http2_frame(bytes: &[u8]) -> Option<(usize, usize)> {
    let length = bytes.get(..3)?.iter().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
    (9 + length <= bytes.len()).then_some((9, 9 + length))
}

fn websocket_frame(bytes: &[u8]) -> Option<(usize, usize)> {
    let (more, short) = match *bytes.get(1)? & 0x7f {
        126 => (2, None),
        127 => (8, None),
        short => (0, Some(usize::from(short))),
    };
    let declared = bytes.get(2..2 + more)?.iter().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
    let head = 2 + more + 4;
    let end = head.checked_add(short.unwrap_or(declared))?;
    (end <= bytes.len()).then_some((head, end))
}

fn der_value(bytes: &[u8]) -> Option<(usize, usize)> {
    let short = usize::from(*bytes.get(1)?);
    let (head, length) = match short {
        0..=0x7f => (2, short),
        0x81..=0x83 => {
            let count = short - 0x80;
            let length =
                bytes.get(2..2 + count)?.iter().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
            (2 + count, length)
        }
        _ => return None,
    };
    (head + length <= bytes.len()).then_some((head, head + length))
}

fn line(bytes: &[u8]) -> Option<(usize, usize)> {
    let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
    (end > 0).then_some((0, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_number_give_the_same_input_and_others_another() {
        let corpus = vec![("a".to_owned(), vec![8, 1, 18, 3, 8, 2, 16]), ("b".to_owned(), vec![26, 0])];
        let inputs = |seed| {
            let mutator = Mutator::new(&corpus, &["word"], Shape::Protobuf, 4096, seed);
            (0..500).map(|number| mutator.input(number)).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
        assert_eq!(inputs(1)[1], corpus[1].1, "the corpus goes first, as it is");
        let many: std::collections::BTreeSet<_> = inputs(1).into_iter().collect();
        assert!(many.len() > 300, "{} of 500 differ", many.len());
    }

    #[test]
    fn no_input_is_longer_than_asked_for() {
        let corpus = vec![("a".to_owned(), vec![10; 300])];
        for shape in [Shape::Protobuf, Shape::Grpc, Shape::Http2, Shape::WebSocket, Shape::Der, Shape::Text] {
            let mutator = Mutator::new(&corpus, &["word"], shape, 1000, 7);
            let longest = (0..3000).map(|number| mutator.input(number).len()).max();
            assert!(longest.is_some_and(|longest| (900..=1000).contains(&longest)), "{shape:?}: {longest:?}");
        }
    }

    #[test]
    fn structures_are_found_where_they_are() {
        assert_eq!(pieces(&[8, 1, 18, 2, 8, 5], 1, protobuf_field), [0..2, 2..6, 4..6]);
        assert_eq!(pieces(&[0, 0, 0, 0, 1, 9, 0, 0, 0, 0, 0], 0, grpc_frame), [0..6, 6..11]);
        assert_eq!(pieces(&[0x30, 3, 2, 1, 7], 1, der_value), [0..5, 2..5]);
        assert_eq!(pieces(b"a\nb", 0, line), [0..2, 2..3]);
    }
}
