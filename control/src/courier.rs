//! The way of a room's messages into the mailbox of one shard.
//!
//! 1. They arrive in the order in which they were sent; what finds the mailbox full waits here.
//! 2. One ring for all that was posted together.
//! 3. It posts nothing while so many messages wait there as its room may have waiting: others, the writer above
//!    all, find the mailbox never full by its doing.
//! 4. It ends with its shard, which then has nobody who waits for them.

use std::future::poll_fn;
use std::mem;
use std::task::{Context, Poll};

use gateway_core::mail::{Post, PostError};
use gateway_core::seam::ToShard;
use tokio::sync::mpsc;

/// Messages that may wait for one shard in its mailbox, which is larger, for this thread to post more for tunnels or callers.
pub(crate) const MOST_WAITING: usize = 1024;

/// The shard is gone.
struct Gone;

/// Carries until one of the two ends is gone.
pub(crate) async fn carry(
    post: Post<ToShard>,
    mut messages: mpsc::UnboundedReceiver<ToShard>,
    most_waiting: usize,
) {
    while let Some(first) = messages.recv().await {
        let mut next = Some(first);
        while let Some(message) = next {
            if deliver(&post, message, most_waiting).await.is_err() {
                return;
            }
            next = messages.try_recv().ok();
        }
        post.ring();
    }
}

async fn deliver(post: &Post<ToShard>, message: ToShard, most_waiting: usize) -> Result<(), Gone> {
    let mut unposted = Some(message);
    let mut registered = false;
    poll_fn(|context: &mut Context<'_>| {
        while let Some(message) = unposted.take() {
            let is_full = post.len() >= most_waiting;
            match if is_full { Err(PostError::Full(message)) } else { post.post(message) } {
                Ok(()) => break,
                Err(PostError::Gone(_)) => return Poll::Ready(Err(Gone)),
                Err(PostError::Full(message)) => unposted = Some(message),
            }
            // What stands in the box must be taken for there to be room.
            post.ring();
            // Registered first, then looked once more: space that is announced from here on is seen.
            if mem::replace(&mut registered, true) && !post.space_was_announced() {
                return Poll::Pending;
            }
            post.register_for_space(context);
        }
        Poll::Ready(Ok(()))
    })
    .await
}

#[cfg(test)]
mod tests {
    use gateway_core::ids::ShardId;
    use gateway_core::mail::mailbox;
    use gateway_core::relay::{Refusal, RelayAnswer, RelayKey, RelayKind};

    use super::*;

    fn answer(slot: u32) -> ToShard {
        let key = RelayKey { shard: ShardId(0), slot, serial: 0 };
        ToShard::Relayed(Box::new(RelayAnswer { key, outcome: Err(Refusal::too_many(RelayKind::Join)) }))
    }

    #[tokio::test]
    async fn answers_wait_for_room_in_their_shards_mailbox_and_come_in_order() {
        let (mut posts, inbox) = mailbox::<ToShard>(1, usize::MAX, 1);
        let (courier, answers) = mpsc::unbounded_channel();
        let carrying = tokio::spawn(carry(posts.remove(0), answers, usize::MAX));
        for slot in 0..5 {
            courier.send(answer(slot)).expect("it runs");
        }
        for slot in 0..5 {
            let message = poll_fn(|context| inbox.poll_take(context)).await;
            let Some(ToShard::Relayed(answer)) = message else { panic!("an unexpected {message:?}") };
            assert_eq!(answer.key.slot, slot);
            inbox.announce_space();
        }
        // With its shard the courier ends, though answers come.
        drop(inbox);
        courier.send(answer(9)).expect("it runs");
        carrying.await.expect("a clean end");
    }
}
