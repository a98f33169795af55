//! What carries a session in memory, on the shard's side: the node's pipe, and its sink.
//!
//! The connection and the session on it share it; both live on one thread, in turns that never overlap.
//!
//! 1. A turn reads as much as one of a socket may; then others have theirs.
//! 2. Frames go to the sink one by one, in order, and the end after the last one that it was to take.
//! 3. A sink is ended once: by the session, by the connection, or, with no status, when this is dropped.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use gateway_proto::framing::PREFIX_BYTES;

use super::pipe::{PipeReceiver, Received};
use super::{CallEnd, FrameSink, HalfClosed, Taken};
use crate::bell::Bell;
use crate::panics;
use crate::status::CallStatus;
use crate::transport::Gone;

/// A sink that is ended in any case.
pub(super) struct Sink(Option<Box<dyn FrameSink>>);

impl Sink {
    pub(super) fn new(sink: Box<dyn FrameSink>) -> Self {
        Self(Some(sink))
    }

    pub(super) fn end(&mut self, end: CallEnd) {
        if let Some(mut sink) = self.0.take() {
            // It may be what panicked, or panic now.
            let _ = panics::contain(move || sink.end(end));
        }
    }

    /// Lets go of it without an end: whoever gave it is told in another way.
    pub(super) fn dismiss(mut self) {
        self.0 = None;
    }
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").finish_non_exhaustive()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.end(CallEnd::lost());
    }
}

pub(crate) struct LocalLink {
    bell: Arc<Bell>,
    pipe: PipeReceiver<HalfClosed>,
    down: RefCell<Down>,
}

struct Down {
    sink: Sink,
    /// Frames with their prefixes, which may have been put together.
    staged: Bytes,
    /// The one that the sink has not taken yet.
    next: Option<Bytes>,
    /// Goes behind them.
    last: Option<CallEnd>,
    took_some: bool,
    gone: bool,
}

impl LocalLink {
    pub(super) fn new(bell: &Arc<Bell>, pipe: PipeReceiver<HalfClosed>, sink: Sink) -> Rc<Self> {
        Rc::new(Self {
            bell: Arc::clone(bell),
            pipe,
            down: RefCell::new(Down {
                sink,
                staged: Bytes::new(),
                next: None,
                last: None,
                took_some: false,
                gone: false,
            }),
        })
    }

    /// The node's next frame; `None` when it has ended its half.
    pub(crate) fn poll_frame(&self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Gone>> {
        if self.bell.read_bytes_left() == 0 {
            self.bell.mark_over_budget();
            return Poll::Pending;
        }
        Poll::Ready(match ready!(self.pipe.poll(context)) {
            Received::Frame(frame) => {
                self.bell.spend(PREFIX_BYTES + frame.len());
                Ok(Some(frame))
            }
            Received::Ended(HalfClosed) => Ok(None),
            Received::Cut => Err(Gone),
        })
    }

    /// Has frames given to the sink; to be called when all before them were taken.
    pub(crate) fn stage(&self, frames: Bytes) {
        let mut down = self.down.borrow_mut();
        debug_assert!(down.staged.is_empty(), "something is staged already");
        down.staged = frames;
    }

    /// Has the sink ended behind what is staged.
    pub(crate) fn stage_end(&self, status: &CallStatus) {
        self.down.borrow_mut().last = Some(CallEnd::from(status));
    }

    /// Nothing that is staged is to be taken any more, but the end.
    pub(crate) fn forget(&self) {
        let mut down = self.down.borrow_mut();
        (down.staged, down.next) = (Bytes::new(), None);
    }

    /// Gives the sink what is staged. `Ready` when all of it was taken.
    pub(crate) fn poll_sent(&self, context: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        let down = &mut *self.down.borrow_mut();
        let sent = down.poll_sent(context);
        if sent == Poll::Ready(Err(Gone)) {
            down.gone = true;
            (down.staged, down.next) = (Bytes::new(), None);
        }
        sent
    }

    /// Whether the sink took something since this was last asked.
    pub(crate) fn take_took_some(&self) -> bool {
        std::mem::take(&mut self.down.borrow_mut().took_some)
    }

    pub(crate) fn check_gone(&self) -> Result<(), Gone> {
        if self.down.borrow().gone || self.pipe.is_cut() { Err(Gone) } else { Ok(()) }
    }
}

impl Down {
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        if self.gone {
            return Poll::Ready(Err(Gone));
        }
        while let Some(frame) = self.next.take().or_else(|| take_first(&mut self.staged)) {
            let Some(sink) = &mut self.sink.0 else { return Poll::Ready(Err(Gone)) };
            match sink.poll_take(frame, context) {
                Taken::Yes => self.took_some = true,
                Taken::Later(frame) => {
                    self.next = Some(frame);
                    return Poll::Pending;
                }
                Taken::Gone => return Poll::Ready(Err(Gone)),
            }
        }
        if let Some(end) = self.last.take() {
            self.sink.end(end);
        }
        Poll::Ready(Ok(()))
    }
}

/// The first of frames that stand behind each other with their prefixes, without its own.
fn take_first(frames: &mut Bytes) -> Option<Bytes> {
    let length = frames.get(1..PREFIX_BYTES)?;
    let length = u32::from_be_bytes(length.try_into().ok()?);
    frames.advance(PREFIX_BYTES);
    Some(frames.split_to(frames.len().min(length as usize)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::task::Waker;

    use super::super::pipe::pipe;
    use super::*;

    /// Takes as many frames as it was told, and panics where it is to.
    struct Fussy {
        takes: usize,
        told: Sender<String>,
        panics: bool,
    }

    impl FrameSink for Fussy {
        fn poll_take(&mut self, frame: Bytes, _context: &mut Context<'_>) -> Taken {
            if self.takes == 0 {
                // What it would take a moment later.
                self.takes = 1;
                return Taken::Later(frame);
            }
            self.takes -= 1;
            self.told.send(String::from_utf8_lossy(&frame).into_owned()).expect("the test listens");
            Taken::Yes
        }

        fn end(&mut self, end: CallEnd) {
            self.told.send(end.to_string()).expect("the test listens");
            assert!(!self.panics, "a fault of the embedder");
        }
    }

    fn prefixed(texts: &[&str]) -> Bytes {
        let mut bytes = Vec::new();
        for text in texts {
            bytes.push(0);
            bytes.extend(u32::try_from(text.len()).expect("short").to_be_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes.into()
    }

    #[test]
    fn frames_that_were_put_together_come_one_by_one_and_the_end_behind_them() {
        let (told, heard) = channel();
        let (_sender, receiver) = pipe(8, 100);
        let sink = Sink::new(Box::new(Fussy { takes: 1, told, panics: false }));
        let link = LocalLink::new(&Arc::default(), receiver, sink);
        let context = &mut Context::from_waker(Waker::noop());
        link.stage(prefixed(&["a", "", "bc"]));
        link.stage_end(&CallStatus::ok());
        while link.poll_sent(context).is_pending() {}
        drop(link);
        assert_eq!(heard.iter().collect::<Vec<_>>(), ["a", "", "bc", "status 0: "]);
    }

    #[test]
    fn a_link_that_is_dropped_tells_its_sink_that_the_connection_was_lost_and_a_panic_of_it_goes_nowhere() {
        let (told, heard) = channel();
        let (_sender, receiver) = pipe(8, 100);
        let sink = Sink::new(Box::new(Fussy { takes: 0, told, panics: true }));
        let link = LocalLink::new(&Arc::default(), receiver, sink);
        link.stage(prefixed(&["a"]));
        assert!(link.poll_sent(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(link);
        assert_eq!(heard.iter().collect::<Vec<_>>(), ["the connection was lost"]);
    }
}
