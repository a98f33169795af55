//! Long answers that wait to be taken: how much of them there may be.
//!
//! Knows no call; the answer of a tunnel is no answer in this sense, since its windows bound it.
//!
//! 1. Answers take at most `FREE_BYTES` each, `OF_ONE_BYTES` of one name beyond that, and `BUDGET_BYTES` together. Whoever reads none
//!    finds the gateway busy; short answers, as those of all that stop and revoke something are, pass beside them.
//! 2. What an answer takes is given back piece by piece, as HTTP/2 has sent it: also what waits there is counted.
//! 3. A stream whose answer is not taken within `TAKEN_WITHIN` is let go of; a long answer ends only when all of it is sent, so
//!    that until then there is a stream to let go of.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::refusal::{Refusal, RefusalWord};
use super::{Caller, streams};

const FREE_BYTES: usize = 4 << 10;
const BUDGET_BYTES: usize = 16 << 20;
pub(crate) const OF_ONE_BYTES: usize = 12 << 20;
/// What HTTP/2 is given at once: it takes a whole piece where it has room for a byte.
const PIECE_BYTES: usize = 8 << 10;
/// How long an answer may take to be taken.
pub(crate) const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// What all answers share that are not taken yet.
#[derive(Debug)]
pub(crate) struct Answers(Arc<Semaphore>);

impl Default for Answers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET_BYTES)))
    }
}

/// The answer as it may wait.
pub(crate) async fn bounded(State(answers): State<Arc<Answers>>, request: Request, next: Next) -> Response {
    let of_name = request.extensions().get::<Caller>().map(|caller| Arc::clone(&caller.share.answers));
    let answer = answers.held(next.run(request).await, of_name).await;
    streams::answered();
    answer
}

impl Answers {
    /// The answer, which has its room until it is sent; or a refusal where there is none.
    pub(crate) async fn held(&self, answer: Response, of_name: Option<Arc<Semaphore>>) -> Response {
        let Some(length) = answer.body().size_hint().exact().filter(|length| *length > FREE_BYTES as u64)
        else {
            return answer;
        };
        let bytes = u32::try_from(length).unwrap_or(u32::MAX);
        let take = |of: &Arc<Semaphore>| Arc::clone(of).try_acquire_many_owned(bytes).ok();
        let room = match &of_name {
            Some(of_name) => take(of_name).and_then(|own| Some(vec![own, take(&self.0)?])),
            None => take(&self.0).map(|room| vec![room]),
        };
        let Some(room) = room else {
            let sentence =
                "more long answers wait to be read than may: read those that came, and again in a moment";
            return Refusal::new(RefusalWord::Busy, sentence).into_response();
        };
        let (head, body) = answer.into_parts();
        // It is there already: its length is known.
        match to_bytes(body, bytes as usize).await {
            Ok(rest) => Response::from_parts(head, Body::new(Held { rest, room, last: None })),
            Err(_) => Refusal::new(RefusalWord::Unavailable, "the answer broke off").into_response(),
        }
    }

    /// How much of it waits.
    #[cfg(test)]
    pub(crate) fn taken_bytes(&self) -> usize {
        BUDGET_BYTES - self.0.available_permits()
    }
}

/// The body of a long answer, with its room.
struct Held {
    rest: Bytes,
    room: Vec<OwnedSemaphorePermit>,
    /// Resolves when the last piece is sent.
    last: Option<oneshot::Receiver<Infallible>>,
}

/// A piece, which has its room until HTTP/2 has sent it.
struct Piece {
    bytes: Box<[u8]>,
    _room: Vec<OwnedSemaphorePermit>,
    _is_sent: oneshot::Sender<Infallible>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.rest.has_remaining() {
            return match &mut self.last {
                Some(last) => Pin::new(last).poll(context).map(|_| None),
                None => Poll::Ready(None),
            };
        }
        let length = self.rest.len().min(PIECE_BYTES);
        // A copy: a slice would keep all of it.
        let bytes = Box::from(&*self.rest.split_to(length));
        let room = self.room.iter_mut().filter_map(|room| room.split(length)).collect();
        let (is_sent, last) = oneshot::channel();
        self.last = Some(last);
        let piece = Piece { bytes, _room: room, _is_sent: is_sent };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(piece)))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const LONG: usize = 64 << 10;

    /// How many long answers wait before one is refused, and those.
    async fn waiting(answers: &Answers, of_name: &Arc<Semaphore>) -> Vec<Response> {
        let mut held = Vec::new();
        loop {
            let long = Response::new(Body::from(vec![b'x'; LONG]));
            match answers.held(long, Some(Arc::clone(of_name))).await {
                answer if answer.status() == 200 => held.push(answer),
                refused => {
                    assert_eq!(refused.status(), 429);
                    return held;
                }
            }
        }
    }

    #[tokio::test]
    async fn long_answers_that_nobody_reads_take_no_more_than_the_budget_and_leave_some_to_others() {
        let answers = Answers::default();
        let name = || Arc::new(Semaphore::new(OF_ONE_BYTES));
        let (wild, other) = (name(), name());
        let mut unread = waiting(&answers, &wild).await;
        assert_eq!(unread.len(), OF_ONE_BYTES / LONG);
        let of_other = waiting(&answers, &other).await;
        assert_eq!(of_other.len(), (BUDGET_BYTES - OF_ONE_BYTES) / LONG);
        let short = Response::new(Body::from("{}"));
        assert_eq!(answers.held(short, Some(Arc::clone(&wild))).await.status(), 200);
        drop(of_other);

        // What was given to HTTP/2 has its room until it is sent.
        let mut body = unread.pop().unwrap().into_body();
        let mut pieces = Vec::new();
        for _ in 0..LONG / PIECE_BYTES {
            let piece = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.unwrap().unwrap();
            pieces.push(piece.into_data().unwrap());
        }
        assert_eq!(wild.available_permits(), 0);
        pieces.truncate(1);
        assert_eq!(wild.available_permits(), LONG - PIECE_BYTES);
        assert_eq!(pieces[0], vec![b'x'; PIECE_BYTES]);
        assert!(
            poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.is_none(),
            "the last is sent"
        );
        drop((pieces, body));
        assert_eq!(wild.available_permits(), LONG);
        drop(unread);
        assert_eq!((wild.available_permits(), answers.0.available_permits()), (OF_ONE_BYTES, BUDGET_BYTES));
    }
}
