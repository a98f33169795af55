//! A node's side of tunnels: it checks the ticket again, dials, and serves what the tunnel is for.
//!
//! Each tunnel is a task with a connection of its own, to the address that the offer names or to where the
//! node has its session. What the caller asks for is a `kind`: a shell on a real terminal, or one of a few
//! simple programs for tests.
//!
//! 1. A ticket that the node itself finds wrong opens nothing; the gateway hears `TunnelRefused`.
//! 2. The task ends with its stream, and its child process with it; all tasks end with the node.
//! 3. What a program has for the caller is read only as the stream takes it.

mod program;
mod shell;

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use gateway_proto::framing::encode;
use gateway_proto::path;
use gateway_proto::v1::{
    OpenTunnel, TunnelData, TunnelExit, TunnelFrame, TunnelHalfClose, TunnelHello, tunnel_frame::Frame,
};
use http::HeaderMap;
use prost::Message;

use self::program::{Output, Program};
use super::call::{Arrival, Call, Target};
use super::end::{End, EndKind};
use super::observer::{NodeEvent, Observer};
use crate::tickets::{TicketCheck, TicketMint};

/// What may wait to be sent before the program is asked for more.
const QUEUED_BYTES: usize = 128 << 10;

/// How a node takes tunnels.
#[derive(Clone)]
pub struct TunnelTaker {
    /// Whose tickets it takes; `None`: anybody's.
    mint: Option<Arc<TicketMint>>,
    /// Why it refuses every tunnel, if it does.
    refuses: Option<String>,
    /// Whether it ignores offers: it neither dials nor refuses.
    pub(super) ignores: bool,
    check: Arc<Mutex<TicketCheck>>,
}

impl std::fmt::Debug for TunnelTaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TunnelTaker").field("refuses", &self.refuses).finish_non_exhaustive()
    }
}

impl TunnelTaker {
    /// One that takes this mint's tickets.
    pub fn of(mint: &Arc<TicketMint>) -> Self {
        Self { mint: Some(Arc::clone(mint)), ..Self::trusting() }
    }

    /// One that leaves the check to the gateway.
    pub fn trusting() -> Self {
        Self { mint: None, refuses: None, ignores: false, check: Arc::default() }
    }

    /// One that refuses every tunnel, for this reason.
    pub fn refusing(reason: &str) -> Self {
        Self { refuses: Some(reason.to_owned()), ..Self::trusting() }
    }

    /// One that says nothing to offers.
    pub fn ignoring() -> Self {
        Self { ignores: true, ..Self::trusting() }
    }

    /// Why this offer is refused, if it is.
    pub(super) fn refusal(&self, open: &OpenTunnel, node: &str) -> Option<String> {
        if let Some(reason) = &self.refuses {
            return Some(reason.clone());
        }
        let mint = self.mint.as_ref()?;
        let mut check = self.check.lock().unwrap_or_else(PoisonError::into_inner);
        check.take(mint, &open.ticket, node).err().map(str::to_owned)
    }
}

/// One tunnel, from the dial to its end.
pub(super) async fn serve(target: Target, node: Arc<str>, open: OpenTunnel, observer: Arc<dyn Observer>) {
    let kind = open.kind.clone();
    let (end, received) = match run(target, open).await {
        Ok(outcome) => outcome,
        Err(end) => (end, 0),
    };
    observer.on_event(&node, NodeEvent::TunnelEnded { kind, end, received });
}

async fn run(target: Target, open: OpenTunnel) -> Result<(End, u64), End> {
    let broken = |why: String| End::of(EndKind::Asked, why);
    let target = match open.direct_address.as_str() {
        "" => target,
        address => {
            let address: SocketAddr = address.parse().map_err(|_| broken("the direct address".to_owned()))?;
            Target { address, ..target }
        }
    };
    let parameters: HashMap<String, String> = open.parameters;
    let mut program = Program::start(&open.kind, &parameters).map_err(broken)?;
    let mut call = Box::new(target.call(path::TUNNEL, HeaderMap::new()).await?);
    send(&mut call, Frame::Hello(TunnelHello { tunnel_id: open.tunnel_id, ticket: open.ticket }));
    let mut received = 0;
    let mut is_over = false;
    loop {
        let turn = poll_fn(|cx| poll_turn(&mut call, &mut program, is_over, cx)).await;
        match turn {
            Turn::Arrived(Arrival::Ended(end)) => return Ok((end, received)),
            Turn::Arrived(Arrival::Message(message)) => {
                let frame = TunnelFrame::decode(message).map_err(|error| broken(error.to_string()))?;
                if let Some(Frame::Data(data)) = &frame.frame {
                    received += data.data.len() as u64;
                }
                take(&mut program, frame);
            }
            Turn::Exited(code) => {
                send(&mut call, Frame::HalfClose(TunnelHalfClose {}));
                if let Some(code) = code {
                    send(&mut call, Frame::Exit(TunnelExit { code, message: String::new() }));
                }
                call.half_close();
                is_over = true;
            }
        }
    }
}

enum Turn {
    Arrived(Arrival),
    /// The program has said all.
    Exited(Option<i32>),
}

fn poll_turn(call: &mut Call, program: &mut Program, is_over: bool, cx: &mut Context<'_>) -> Poll<Turn> {
    loop {
        let reads = is_over || program.wants_input();
        if let Poll::Ready(arrival) = call.poll(cx, reads) {
            return Poll::Ready(Turn::Arrived(arrival));
        }
        let mut has_said = false;
        // What is said at once leaves at once.
        while !is_over && call.queued_bytes() < QUEUED_BYTES {
            match program.poll_output(cx) {
                Poll::Ready(Output::Data(data)) => send(call, Frame::Data(TunnelData { data })),
                Poll::Ready(Output::Exit(code)) => return Poll::Ready(Turn::Exited(code)),
                Poll::Pending => break,
            }
            has_said = true;
        }
        if !reads && program.wants_input() {
            // What was held back may be read now.
            cx.waker().wake_by_ref();
        }
        if !has_said {
            return Poll::Pending;
        }
    }
}

fn take(program: &mut Program, frame: TunnelFrame) {
    match frame.frame {
        Some(Frame::Data(TunnelData { data })) => program.take_input(data),
        Some(Frame::Window(window)) => program.resize(window.columns, window.rows),
        Some(Frame::HalfClose(_)) => program.end_input(),
        _ => {}
    }
}

fn send(call: &mut Call, frame: Frame) {
    let message: Bytes = encode(&TunnelFrame { frame: Some(frame) });
    call.queue(message);
}
