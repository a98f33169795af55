//! What lies below the calls: HTTP/2 as a shard speaks it, over memory instead of a socket.
//!
//! 1. The meter counts the same, however the bytes were cut.
//! 2. What is answered is bounded by what came, and a connection comes to its end.

use std::io;
use std::pin::{Pin, pin};
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use gateway_core::limits::Limits;
use gateway_shard::doors::{self, Meter};
use h2::RecvStream;
use h2::server::SendResponse;
use http::Response;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

static LIMITS: LazyLock<Limits> = LazyLock::new(Limits::default);

/// Turns after which a connection that has read all must be over.
const MOST_TURNS: usize = 100_000;

pub(super) fn flood(input: &[u8]) {
    let whole = Meter::default().take(input);
    for step in [1, 5, 9, 64] {
        let mut meter = Meter::default();
        let cut = input.chunks(step).all(|chunk| meter.take(chunk));
        assert_eq!(whole, cut, "cut every {step} bytes");
    }
}

/// A peer that has said `input` and says nothing more; what it is told is counted.
struct Peer<'a> {
    left: &'a [u8],
    meter: Meter,
    told: usize,
}

impl AsyncRead for Peer<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (now, later) = self.left.split_at(self.left.len().min(into.remaining()).min(1000));
        self.left = later;
        into.put_slice(now);
        match self.meter.take(now) {
            true => Poll::Ready(Ok(())),
            false => Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "a flood"))),
        }
    }
}

impl AsyncWrite for Peer<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.told += bytes.len();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

pub(super) fn connection(input: &[u8]) {
    let context = &mut Context::from_waker(Waker::noop());
    // It is lent, so that what it was told can be asked at the end.
    let mut peer = Peer { left: input, meter: Meter::default(), told: 0 };
    serve(&mut peer, context);
    let told = peer.told;
    // Every PING and SETTINGS is answered by as much, a request by its refusal.
    assert!(told <= 16 * input.len() + 64 * 1024, "{told} bytes answer {}", input.len());
}

fn serve(peer: &mut Peer<'_>, context: &mut Context<'_>) {
    let mut greeting = pin!(doors::http2(&LIMITS).handshake::<_, Bytes>(peer));
    let mut connection = None;
    for _ in 0..MOST_TURNS {
        if let Poll::Ready(done) = greeting.as_mut().poll(context) {
            connection = Some(done);
            break;
        }
    }
    let Some(Ok(mut connection)) = connection else { return };
    let mut calls: Vec<(RecvStream, SendResponse<Bytes>)> = Vec::new();
    for _ in 0..MOST_TURNS {
        match connection.poll_accept(context) {
            Poll::Ready(None | Some(Err(_))) => return,
            Poll::Ready(Some(Ok((request, mut respond)))) => {
                if doors::is_call(&request) {
                    calls.push((request.into_body(), respond));
                } else {
                    // A stream that is gone by now has nobody to be told.
                    let _ = respond.send_response(Response::new(()), true);
                }
            }
            Poll::Pending => {}
        }
        assert!(calls.len() <= LIMITS.streams_per_connection as usize + 16, "{} calls at once", calls.len());
        calls.retain_mut(|(body, _)| match body.poll_data(context) {
            Poll::Ready(Some(Ok(chunk))) => body.flow_control().release_capacity(chunk.len()).is_ok(),
            Poll::Ready(_) => false,
            Poll::Pending => true,
        });
    }
    panic!("the connection goes on after {MOST_TURNS} turns");
}
