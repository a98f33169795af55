//! What goes down to the shards: posted in order, kept while a box is full, one ring a turn.
//!
//! 1. A shard whose box is full holds up nobody but itself.
//! 2. What is kept is bounded by what the writer's machine may say: credits, Hellos, answers.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use gateway_core::ids::ShardId;
use gateway_core::mail::{Post, PostError};
use gateway_core::seam::ToShard;

#[derive(Debug)]
struct Way {
    post: Post<ToShard>,
    kept: VecDeque<ToShard>,
    touched: bool,
}

impl Way {
    /// Posts what is kept, as far as there is space. Gives how many were posted.
    fn flush(&mut self) -> usize {
        let mut posted = 0;
        while let Some(message) = self.kept.pop_front() {
            match self.post.post(message) {
                Ok(()) => posted += 1,
                Err(PostError::Full(message)) => {
                    self.kept.push_front(message);
                    break;
                }
                // The shard's thread has ended, and the process will.
                Err(PostError::Gone(_)) => self.kept.clear(),
            }
        }
        self.touched |= posted > 0;
        posted
    }
}

/// The ways to all shards.
#[derive(Debug)]
pub(crate) struct Outbox {
    ways: Vec<Way>,
}

impl Outbox {
    pub(crate) fn new(posts: Vec<Post<ToShard>>) -> Self {
        let way = |post| Way { post, kept: VecDeque::new(), touched: false };
        Self { ways: posts.into_iter().map(way).collect() }
    }

    pub(crate) fn push(&mut self, shard: ShardId, message: ToShard) {
        if let Some(way) = self.ways.get_mut(usize::from(shard.0)) {
            way.kept.push_back(message);
        }
    }

    /// Posts what can be posted, and rings at each shard that got something. Gives how many.
    pub(crate) fn flush_and_ring(&mut self) -> usize {
        let mut posted = 0;
        for way in &mut self.ways {
            posted += way.flush();
            if std::mem::take(&mut way.touched) {
                way.post.ring();
            }
        }
        posted
    }

    /// Resolves when a box that was full took something.
    pub(crate) fn poll_space(&mut self, context: &Context<'_>) -> Poll<()> {
        // Register first, post last: space that is announced between is not missed.
        for way in self.ways.iter().filter(|way| !way.kept.is_empty()) {
            way.post.register_for_space(context);
        }
        if self.flush_and_ring() > 0 { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Whether something waits for space.
    pub(crate) fn is_blocked(&self) -> bool {
        self.ways.iter().any(|way| !way.kept.is_empty())
    }
}
