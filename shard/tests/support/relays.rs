//! In the place of the relays: takes what shards ask, and answers what a story says, or nothing.
//!
//! It asks no service and keeps no deadline; how many calls wait is bounded by its mailbox, which is small.

use std::future::poll_fn;

use gateway_core::mail::{Inbox, Post, Weigh};
use gateway_core::relay::{Answered, Refusal, RelayAnswer, RelayKey, RelayRequest};
use gateway_core::seam::ToShard;

use super::soon;

/// What a gateway's shards ask.
pub struct Relays {
    inbox: Inbox<RelayRequest>,
    posts: Vec<Post<ToShard>>,
}

impl Relays {
    pub fn new(inbox: Inbox<RelayRequest>, posts: Vec<Post<ToShard>>) -> Self {
        Self { inbox, posts }
    }

    /// The next thing that is asked.
    pub async fn next(&self) -> RelayRequest {
        let request = soon(poll_fn(|context| self.inbox.poll_take(context))).await.expect("the shards run");
        self.inbox.release_bytes(request.weight_bytes());
        request
    }

    pub fn answer(&self, key: RelayKey, outcome: Result<Answered, Refusal>) {
        let post = &self.posts[usize::from(key.shard.0)];
        post.post(ToShard::Relayed(Box::new(RelayAnswer { key, outcome })))
            .expect("the shard takes its mail");
        post.ring();
    }
}
