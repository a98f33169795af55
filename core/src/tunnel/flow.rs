//! One direction of a tunnel at the end that sends: how much is on its way, and whether it is over.
//!
//! Frames are counted when they are sent and given back when the other end of the gateway has let go of
//! them. Whoever has a frame that does not fit reads no further, which holds its peer back. Data may leave in parts:
//! whole frames of half a window would go one at a time, each after the answer to the one before.
//!
//! 1. What is on its way is at most the window, or one frame that is not data.
//! 2. Parts are of some size, and in order; nothing of a frame is lost.
//! 3. After its half-close a direction carries nothing but an exit status.

use super::{TunnelClose, TunnelFrame};

/// What each frame counts for besides its data, so that tiny ones are bounded too.
const FRAME_HEAD_BYTES: usize = 128;
/// Data does not leave in smaller parts than this.
const SMALLEST_PART: usize = 2 << 10;

/// One direction.
#[derive(Debug)]
pub struct TunnelFlow {
    window: usize,
    on_its_way: usize,
    is_over: bool,
}

impl TunnelFlow {
    pub const fn new(window_bytes: usize) -> Self {
        Self { window: window_bytes, on_its_way: 0, is_over: false }
    }

    /// A frame that its peer has sent is to be sent on, now or when it fits.
    pub fn handle_frame(&mut self, frame: &TunnelFrame) -> Result<(), TunnelClose> {
        let late = self.is_over && !matches!(frame, TunnelFrame::Exit { .. });
        if late {
            return Err(TunnelClose::Protocol("a frame of the tunnel came after its half-close".to_owned()));
        }
        self.is_over |= matches!(frame, TunnelFrame::HalfClose);
        Ok(())
    }

    /// What of the frame leaves now, and what must wait for room.
    pub fn take(&mut self, mut frame: TunnelFrame) -> (Option<TunnelFrame>, Option<TunnelFrame>) {
        let room = self.window.saturating_sub(self.on_its_way);
        let is_data = matches!(frame, TunnelFrame::Data(_));
        if cost_bytes(&frame) <= room || (self.on_its_way == 0 && !is_data) {
            self.on_its_way += cost_bytes(&frame);
            return (Some(frame), None);
        }
        let TunnelFrame::Data(data) = &mut frame else { return (None, Some(frame)) };
        if room < FRAME_HEAD_BYTES + SMALLEST_PART {
            return (None, Some(frame));
        }
        let part = TunnelFrame::Data(data.split_to(room - FRAME_HEAD_BYTES));
        self.on_its_way = self.window;
        (Some(part), Some(frame))
    }

    /// The other end has let go of frames that cost so much.
    pub fn handle_grant(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.on_its_way, "flow 1: more is given back than was sent");
        self.on_its_way = self.on_its_way.saturating_sub(bytes);
    }

    /// Whether the direction was half-closed.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// What is on its way.
    pub const fn on_its_way(&self) -> usize {
        self.on_its_way
    }
}

/// What a frame counts for.
pub const fn cost_bytes(frame: &TunnelFrame) -> usize {
    FRAME_HEAD_BYTES
        + match frame {
            TunnelFrame::Data(data) => data.len(),
            TunnelFrame::Exit { message, .. } => message.len(),
            TunnelFrame::Window { .. } | TunnelFrame::HalfClose => 0,
        }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn data(bytes: usize) -> TunnelFrame {
        TunnelFrame::Data(Bytes::from(vec![7; bytes]))
    }

    #[test]
    fn data_leaves_in_parts_that_fit_and_other_frames_whole() {
        let mut flow = TunnelFlow::new(16 << 10);
        let (part, rest) = flow.take(data(20_000));
        let taken = (16 << 10) - FRAME_HEAD_BYTES;
        assert_eq!((part, rest), (Some(data(taken)), Some(data(20_000 - taken))));
        let resize = TunnelFrame::Window { columns: 80, rows: 24 };
        assert_eq!(flow.take(resize.clone()), (None, Some(resize.clone())));
        // Too little for a part.
        flow.handle_grant(SMALLEST_PART);
        assert_eq!(flow.take(data(20_000 - taken)), (None, Some(data(20_000 - taken))));
        flow.handle_grant(SMALLEST_PART);
        assert_eq!(flow.take(resize.clone()), (Some(resize), None));
        let (part, rest) = flow.take(data(10_000));
        let part = part.expect("a part fits");
        assert!(cost_bytes(&part) == 2 * SMALLEST_PART - FRAME_HEAD_BYTES && rest.is_some());
        assert_eq!(flow.on_its_way(), 16 << 10);
    }

    #[test]
    fn tiny_frames_are_bounded_too() {
        let mut flow = TunnelFlow::new(64 << 10);
        let mut frames = 0;
        while flow.take(data(1)).0.is_some() {
            frames += 1;
        }
        assert!(frames <= 512, "{frames}");
    }

    #[test]
    fn after_the_half_close_comes_an_exit_or_nothing() {
        let mut flow = TunnelFlow::new(1000);
        flow.handle_frame(&data(1)).expect("open");
        flow.handle_frame(&TunnelFrame::HalfClose).expect("once");
        assert!(flow.is_over());
        flow.handle_frame(&TunnelFrame::Exit { code: 7, message: String::new() }).expect("may come");
        assert!(flow.handle_frame(&data(1)).is_err());
        assert!(flow.handle_frame(&TunnelFrame::HalfClose).is_err());
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// A frame of the peer; one that waits is tried before it.
        Frame(TunnelFrame),
        /// The other end lets go of so many of what is on its way.
        Granted(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0usize..9_000).prop_map(|bytes| Step::Frame(data(bytes))),
            1 => (1u32..200, 1u32..99)
                .prop_map(|(columns, rows)| Step::Frame(TunnelFrame::Window { columns, rows })),
            1 => (0usize..6_000).prop_map(|bytes| {
                Step::Frame(TunnelFrame::Exit { code: 1, message: "x".repeat(bytes) })
            }),
            4 => (1usize..4).prop_map(Step::Granted),
        ]
    }

    proptest! {
        /// The account has each frame that is on its way, and every byte that is to arrive.
        #[test]
        fn whatever_is_sent_and_granted_the_window_holds_and_all_arrives_in_order(
            window in 2_500usize..20_000,
            steps in prop::collection::vec(step(), 1..100),
        ) {
            let mut flow = TunnelFlow::new(window);
            let (mut waits, mut on_its_way) = (VecDeque::new(), VecDeque::new());
            let (mut sent, mut arrived) = (Vec::new(), Vec::new());
            for (at, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Frame(TunnelFrame::Data(some)) => {
                        // Told apart by where they stand.
                        let some = Bytes::from((0..some.len()).map(|byte| (at + byte) as u8).collect::<Vec<_>>());
                        sent.push(TunnelFrame::Data(some.clone()));
                        waits.push_back(TunnelFrame::Data(some));
                    }
                    Step::Frame(frame) => {
                        sent.push(frame.clone());
                        waits.push_back(frame);
                    }
                    Step::Granted(frames) => {
                        for cost in on_its_way.drain(..frames.min(on_its_way.len())) {
                            flow.handle_grant(cost);
                        }
                    }
                }
                while let Some(frame) = waits.pop_front() {
                    let room = window.saturating_sub(on_its_way.iter().sum::<usize>());
                    let is_data = matches!(frame, TunnelFrame::Data(_));
                    let fits = cost_bytes(&frame) <= room || (on_its_way.is_empty() && !is_data);
                    let is_parted = is_data && room >= FRAME_HEAD_BYTES + SMALLEST_PART;
                    let (part, rest) = flow.take(frame);
                    prop_assert_eq!((part.is_some(), rest.is_none()), (fits || is_parted, fits));
                    if let Some(part) = part {
                        // A part takes all the room that there is.
                        prop_assert!(fits || cost_bytes(&part) == room);
                        on_its_way.push_back(cost_bytes(&part));
                        arrived.push(part);
                    }
                    let total = on_its_way.iter().sum::<usize>();
                    prop_assert_eq!(flow.on_its_way(), total);
                    prop_assert!(total <= window || on_its_way.len() == 1);
                    if let Some(rest) = rest {
                        waits.push_front(rest);
                        break;
                    }
                }
            }
            arrived.extend(waits);
            prop_assert!(joined(arrived) == joined(sent), "something is lost or out of order");
        }
    }

    /// Data that follows data is one.
    fn joined(frames: Vec<TunnelFrame>) -> Vec<TunnelFrame> {
        let mut all: Vec<TunnelFrame> = Vec::new();
        for frame in frames {
            match (all.last_mut(), frame) {
                (Some(TunnelFrame::Data(before)), TunnelFrame::Data(more)) => {
                    *before = [before.as_ref(), more.as_ref()].concat().into();
                }
                (_, frame) => all.push(frame),
            }
        }
        all
    }
}
