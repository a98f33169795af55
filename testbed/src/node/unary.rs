//! A unary call on a connection of its own: one message out, one back, and the status.
//!
//! 1. An answer counts only with the status OK behind it.

use std::future::poll_fn;

use gateway_proto::framing::encode;
use http::HeaderMap;
use prost::Message;

use super::call::{Arrival, Target};
use super::end::{End, EndKind};

const OK: u32 = 0;

/// Calls `path` of the gateway at `target`.
pub async fn unary<M: Message + Default>(
    target: &Target,
    path: &str,
    request: &impl Message,
) -> Result<M, End> {
    let mut call = target.call(path, HeaderMap::new()).await?;
    call.queue(encode(request));
    call.half_close();
    let mut answer = None;
    loop {
        match poll_fn(|cx| call.poll(cx, true)).await {
            Arrival::Message(message) => {
                let decoded = M::decode(message)
                    .map_err(|error| End::of(EndKind::Transport, format!("the answer: {error}")))?;
                answer = Some(decoded);
            }
            Arrival::Ended(end) if end.status() == Some(OK) => {
                return answer.ok_or_else(|| End::of(EndKind::Transport, "the call ended without an answer"));
            }
            Arrival::Ended(end) => return Err(end),
        }
    }
}
