//! One direction of a tunnel at the end that sends: how much is on its way, and whether it is over.
//!
//! Frames are counted when they are sent and given back when the other end of the gateway has let go of
//! them. Whoever has a frame that does not fit reads no further, which holds its peer back.
//!
//! 1. What is on its way is at most the window, or one frame.
//! 2. After its half-close a direction carries nothing but an exit status.

use super::{TunnelClose, TunnelFrame};

/// What each frame counts for besides its data, so that tiny ones are bounded too.
const FRAME_HEAD_BYTES: usize = 128;

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

    /// The frame leaves.
    pub fn handle_sent(&mut self, frame: &TunnelFrame) {
        self.on_its_way += cost_bytes(frame);
    }

    /// The other end has let go of frames that cost so much.
    pub fn handle_grant(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.on_its_way, "flow 1: more is given back than was sent");
        self.on_its_way = self.on_its_way.saturating_sub(bytes);
    }

    /// Whether the frame may leave now.
    pub fn fits(&self, frame: &TunnelFrame) -> bool {
        self.on_its_way == 0 || self.on_its_way + cost_bytes(frame) <= self.window
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
    fn a_frame_that_does_not_fit_waits_and_one_alone_always_leaves() {
        let mut flow = TunnelFlow::new(1000);
        assert!(flow.fits(&data(5000)), "alone");
        flow.handle_sent(&data(800));
        assert!(!flow.fits(&data(200)));
        assert!(flow.fits(&TunnelFrame::Window { columns: 80, rows: 24 }) == (800 + 256 <= 1000));
        flow.handle_grant(cost_bytes(&data(800)));
        assert!(flow.fits(&data(200)) && flow.on_its_way() == 0);
    }

    #[test]
    fn tiny_frames_are_bounded_too() {
        let mut flow = TunnelFlow::new(64 << 10);
        let mut frames = 0;
        while flow.fits(&data(1)) {
            flow.handle_sent(&data(1));
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
