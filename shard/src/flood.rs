//! What a peer spends of our patience: HTTP/2 frames that ask for work and bring nothing.
//!
//! It reads the headers of frames in the plaintext that goes by, keeps nothing else, and counts.
//! Control frames (PING, SETTINGS, PRIORITY, RST_STREAM, WINDOW_UPDATE, CONTINUATION, unknown ones) have
//! one bucket, requests (HEADERS) another; HTTP/1.1 and WebSocket take of the same buckets. What h2 bounds itself (resets before accept, header
//! lists, empty and tiny DATA) is left to it.
//!
//! 1. A stock client stays far below: its keep-alive PINGs are seconds apart, and its bandwidth probes
//!    and window updates answer data of ours, each of whose frames allows some; and a tunnel that its node is
//!    offered allows the stream that the node opens for it, however many callers open them.
//! 2. An empty bucket ends the connection, and only that.

use gateway_core::time::Moment;

/// Control frames in a row, and those allowed a second beyond.
const CONTROL: Rate = Rate { burst: 1000, per_second: 100, work: 512 };
/// Requests in a row, and those allowed a second beyond.
const REQUESTS: Rate = Rate { burst: 200, per_second: 50, work: 4 << 10 };
/// What a peer may say to one DATA frame of ours: it updates two windows, and may probe.
const CONTROL_FOR_DATA: u32 = 8;
/// What a node may say to a tunnel that it was offered, beside its one request: windows, probes, a reset.
const CONTROL_FOR_TUNNEL: u32 = 8;
/// Requests that a node may still owe for tunnels, beyond a burst: while it stands still, callers go on.
const OWED_REQUESTS: u32 = 4096;
/// As `Rate::work` has it, of a DATA frame.
const DATA_WORK: usize = 64;

const PREFACE_BYTES: usize = 24;
const HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;

#[derive(Debug)]
struct Rate {
    burst: u32,
    per_second: u32,
    /// What one costs beside its bytes, in bytes of data that cost as much.
    work: usize,
}

/// What a peer may spend of one kind.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: &'static Rate,
    left: u32,
    filled_at: Moment,
}

/// The peer sent more frames of a kind than any use has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flood;

#[derive(Debug)]
pub(crate) struct FrameMeter {
    /// Bytes to pass over: the connection preface, then payloads.
    skip: usize,
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    control: Bucket,
    requests: Bucket,
}

impl FrameMeter {
    /// For a connection of which nothing was read yet.
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            skip: PREFACE_BYTES,
            header: [0; HEADER_BYTES],
            header_bytes: 0,
            control: Bucket::control(now),
            requests: Bucket::requests(now),
        }
    }

    /// Takes the next plaintext; what its frames cost beside their bytes, in bytes. The clock is read only where
    /// a bucket is empty.
    pub(crate) fn handle_bytes(
        &mut self,
        mut bytes: &[u8],
        now: impl Fn() -> Moment,
    ) -> Result<usize, Flood> {
        let mut work = 0;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let taken = bytes.len().min(HEADER_BYTES - self.header_bytes);
            self.header[self.header_bytes..self.header_bytes + taken].copy_from_slice(&bytes[..taken]);
            self.header_bytes += taken;
            bytes = &bytes[taken..];
            if self.header_bytes == HEADER_BYTES {
                self.header_bytes = 0;
                let [a, b, c, kind, ..] = self.header;
                self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                work += self.count(kind, &now)?;
            }
        }
        Ok(work)
    }

    /// How much of a DATA frame's payload comes next.
    pub(crate) fn data_left(&self) -> usize {
        let [_, _, _, kind, ..] = self.header;
        if kind == DATA && self.header_bytes == 0 { self.skip } else { 0 }
    }

    /// So many DATA frames were sent to the peer, which may answer them with probes and window updates.
    pub(crate) fn handle_data_sent(&mut self, frames: u32) {
        self.control.allow(frames.saturating_mul(CONTROL_FOR_DATA), CONTROL.burst);
    }

    /// The peer was asked for so many tunnels, each of which is a request of its.
    pub(crate) fn handle_tunnels_asked(&mut self, tunnels: u32) {
        self.requests.allow(tunnels, REQUESTS.burst + OWED_REQUESTS);
        self.control.allow(tunnels.saturating_mul(CONTROL_FOR_TUNNEL), CONTROL.burst);
    }

    fn count(&mut self, kind: u8, now: &impl Fn() -> Moment) -> Result<usize, Flood> {
        match kind {
            DATA => Ok(DATA_WORK),
            HEADERS => self.requests.take(now),
            _ => self.control.take(now),
        }
    }
}

impl Bucket {
    /// For frames that bring nothing.
    pub(crate) fn control(now: Moment) -> Self {
        Self { rate: &CONTROL, left: CONTROL.burst, filled_at: now }
    }

    /// For requests.
    pub(crate) fn requests(now: Moment) -> Self {
        Self { rate: &REQUESTS, left: REQUESTS.burst, filled_at: now }
    }

    /// Allows some more, up to so many in a row.
    fn allow(&mut self, more: u32, most: u32) {
        self.left = self.left.max(self.left.saturating_add(more).min(most));
    }

    /// Takes one; what it costs beside its bytes. The clock is read only where it is empty.
    pub(crate) fn take(&mut self, now: impl Fn() -> Moment) -> Result<usize, Flood> {
        if self.left == 0 {
            let now = now();
            let due = now.since(self.filled_at).as_millis() * u128::from(self.rate.per_second) / 1000;
            self.left = u32::try_from(due).unwrap_or(u32::MAX).min(self.rate.burst);
            self.filled_at = now;
        }
        self.left = self.left.checked_sub(1).ok_or(Flood)?;
        Ok(self.rate.work)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).expect("short").to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, 0, 0, 0, 0, 0];
        frame.resize(HEADER_BYTES + payload, 6);
        frame
    }

    fn meter() -> FrameMeter {
        let mut meter = FrameMeter::new(Moment::default());
        meter.handle_bytes(&[b'P'; PREFACE_BYTES], Moment::default).expect("the preface");
        meter
    }

    #[test]
    fn a_flood_of_pings_is_noticed_however_it_is_cut() {
        for step in [1, 7, 9, 17, 4096] {
            let mut meter = meter();
            let pings: Vec<u8> = (0..=CONTROL.burst).flat_map(|_| frame(6, 8)).collect();
            let (good, last) = pings.split_at(pings.len() - 17);
            for chunk in good.chunks(step) {
                meter.handle_bytes(chunk, Moment::default).expect("within the burst");
            }
            assert_eq!(meter.handle_bytes(last, Moment::default), Err(Flood), "chunks of {step}");
        }
    }

    #[test]
    fn probes_that_answer_our_data_are_no_flood() {
        let mut meter = meter();
        for _ in 0..10 * CONTROL.burst {
            meter.handle_data_sent(1);
            meter.handle_bytes(&frame(6, 8), Moment::default).expect("answers data");
        }
    }

    #[test]
    fn streams_for_tunnels_that_were_asked_for_are_no_flood_even_if_they_come_together() {
        let mut meter = meter();
        let stream = [frame(HEADERS, 0), frame(3, 4)].concat();
        for _ in 0..10 * REQUESTS.burst {
            meter.handle_tunnels_asked(1);
            meter.handle_bytes(&stream, Moment::default).expect("one for each");
        }
        for _ in 0..OWED_REQUESTS {
            meter.handle_tunnels_asked(1);
        }
        for _ in 0..OWED_REQUESTS {
            meter.handle_bytes(&frame(HEADERS, 0), Moment::default).expect("its node stood still");
        }
        let more = (0..=REQUESTS.burst).map(|_| meter.handle_bytes(&frame(HEADERS, 0), Moment::default));
        assert_eq!(more.last(), Some(Err(Flood)), "what nobody asked for is counted as ever");
    }

    #[test]
    fn who_asks_for_an_answer_now_and_then_may_not_flood_between() {
        let mut meter = meter();
        let floods = (0..10).any(|_| {
            meter.handle_data_sent(1);
            (0..CONTROL.burst / 2).any(|_| meter.handle_bytes(&frame(6, 8), Moment::default) == Err(Flood))
        });
        assert!(floods);
    }

    #[test]
    fn a_frame_that_makes_work_costs_more_than_its_bytes() {
        let mut meter = meter();
        let mut work = |kind| meter.handle_bytes(&frame(kind, 0), Moment::default).expect("within the burst");
        let (request, ping, data) = (work(HEADERS), work(6), work(DATA));
        assert!(request > ping && ping > data && data > HEADER_BYTES);
    }

    #[test]
    fn what_is_left_of_data_is_known_and_of_other_frames_nothing_is_said() {
        let mut meter = meter();
        let mut left = |bytes: &[u8]| {
            meter.handle_bytes(bytes, Moment::default).expect("within the burst");
            meter.data_left()
        };
        let (data, ping) = (frame(DATA, 1000), frame(6, 8));
        assert_eq!([left(&data[..5]), left(&data[5..109]), left(&data[109..])], [0, 900, 0]);
        assert_eq!([left(&ping[..5]), left(&ping[5..13]), left(&ping[13..])], [0, 0, 0]);
    }

    #[test]
    fn payloads_are_not_taken_for_frames() {
        let mut meter = meter();
        for _ in 0..3 * CONTROL.burst {
            meter.handle_bytes(&frame(DATA, 100), Moment::default).expect("data is free");
        }
    }

    #[test]
    fn requests_come_back_with_time() {
        let mut meter = meter();
        let headers = frame(HEADERS, 0);
        for _ in 0..REQUESTS.burst {
            meter.handle_bytes(&headers, Moment::default).expect("within the burst");
        }
        assert_eq!(meter.handle_bytes(&headers, Moment::default), Err(Flood));
        let later = Moment::default() + Duration::from_secs(1);
        for _ in 0..REQUESTS.per_second {
            meter.handle_bytes(&headers, || later).expect("a second later");
        }
        assert_eq!(meter.handle_bytes(&headers, || later), Err(Flood));
    }
}
