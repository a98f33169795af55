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
    use bytes::Bytes;

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
    fn nothing_is_lost_or_turned_around_whatever_the_grants() {
        let bytes: Vec<u8> = (0..50_000u32).map(|at| at as u8).collect();
        for granted in [1_000, 4_096, 10_000] {
            let mut flow = TunnelFlow::new(8 << 10);
            let (mut waits, mut arrived) = (Some(TunnelFrame::Data(bytes.clone().into())), Vec::new());
            while let Some(frame) = waits {
                let (part, rest) = flow.take(frame);
                assert!(flow.on_its_way() <= 8 << 10);
                if let Some(TunnelFrame::Data(part)) = part {
                    arrived.extend_from_slice(&part);
                }
                waits = rest;
                flow.handle_grant(granted.min(flow.on_its_way()));
            }
            assert!(arrived == bytes);
        }
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
}
