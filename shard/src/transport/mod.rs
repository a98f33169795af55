//! The seam between calls and what carries them: a call reads whole messages from a `Source`, writes to an
//! `Outlet`, and ends with a status; which bytes these are on the wire, it never knows.
//!
//! An `Exchange` is a request that nobody has answered yet. Whoever serves it accepts it, and has both halves
//! then; whoever does not, gives a reason, and the connection says it in the words of its transport.
//!
//! 1. A call has the same messages, bounds, deadlines and ends over every transport.
//! 2. What was refused was not accepted before: a refusal is the first thing that its peer reads.

mod outlet;
mod source;

use std::rc::Rc;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;

pub(crate) use outlet::{Gone, Outlet};
pub(crate) use source::Source;

use crate::http1::{self, Frames, Link};
use crate::local::LocalLink;
use crate::status;

/// A request before its answer.
pub(crate) enum Exchange<'a> {
    Http2 {
        body: RecvStream,
        respond: &'a mut SendResponse<Bytes>,
    },
    /// A session or a tunnel that HTTP/1.1 is to be upgraded to; `accept` proves to the peer that it is.
    WebSocket {
        link: &'a Rc<Link>,
        frames: &'a Frames,
        accept: &'a str,
    },
    /// A call over HTTP/1.1 whose message is the body.
    Unary {
        link: &'a Rc<Link>,
        body_bytes: usize,
        keep_alive: bool,
        expects_continue: bool,
    },
    /// A session of a peer in this process.
    Local(&'a Rc<LocalLink>),
}

impl Exchange<'_> {
    pub(crate) const fn is_websocket(&self) -> bool {
        matches!(self, Self::WebSocket { .. })
    }

    /// Begins the answer. `None` where the peer is gone.
    pub(crate) fn accept(self) -> Option<(Source, Outlet)> {
        match self {
            // At once: a stock client may wait for the headers before it sends its first message.
            Self::Http2 { body, respond } => {
                let send = respond.send_response(status::headers(), false).ok()?;
                Some((body.into(), send.into()))
            }
            Self::WebSocket { link, frames, accept } => {
                link.stage(http1::upgraded(accept));
                let source =
                    Source::WebSocket { link: Rc::clone(link), frames: Rc::clone(frames), whole: None };
                Some((source, Outlet::WebSocket(Rc::clone(link))))
            }
            Self::Unary { link, body_bytes, keep_alive, expects_continue } => {
                if expects_continue {
                    link.stage(http1::go_on());
                }
                let source = Source::unary(Rc::clone(link), body_bytes);
                Some((source, Outlet::Unary { link: Rc::clone(link), message: Bytes::new(), keep_alive }))
            }
            Self::Local(link) => Some((Source::local(Rc::clone(link)), Outlet::Local(Rc::clone(link)))),
        }
    }
}
