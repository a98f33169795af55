//! When sessions had their last heartbeats: asked of the shards that have them.
//!
//! Each ask brings a mailbox of its own along, so that an answer finds its call and nobody else's.
//!
//! 1. A shard whose mailbox is as full as `MOST_WAITING`, or that does not answer in time, costs its sessions their dates and
//!    no more: however many ask, others, the writer above all, find the mailbox never full by that.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gateway_core::desk::{SessionReport, Vitals, VitalsAsk};
use gateway_core::ids::{SessionKey, ShardId};
use gateway_core::mail::{Post, mailbox};
use gateway_core::seam::ToShard;
use gateway_core::time::Moment;

use crate::courier::MOST_WAITING;

/// A shard takes its mail every few milliseconds.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// The ways to the shards.
#[derive(Debug)]
pub(crate) struct Shards {
    posts: Vec<Post<ToShard>>,
    started: Instant,
}

impl Shards {
    pub(crate) fn new(posts: Vec<Post<ToShard>>, started: Instant) -> Self {
        Self { posts, started }
    }

    /// The last heartbeat of each of these sessions, in seconds since 1970; of those that have had one.
    pub(crate) async fn heartbeats(&self, sessions: &[SessionReport]) -> BTreeMap<SessionKey, f64> {
        let mut by_shard: BTreeMap<ShardId, Vec<SessionKey>> = BTreeMap::new();
        for session in sessions {
            by_shard.entry(session.key.shard).or_default().push(session.key);
        }
        let (answers, inbox) = mailbox::<Vitals>(by_shard.len().max(1), usize::MAX, by_shard.len());
        for ((shard, keys), answer) in by_shard.into_iter().zip(answers) {
            let post = self.posts.get(usize::from(shard.0));
            // One that is not posted drops its way back, and is not waited for.
            if let Some(post) = post.filter(|post| post.len() < MOST_WAITING) {
                let _ = post.post(ToShard::Vitals(Box::new(VitalsAsk { keys, answer })));
                post.ring();
            }
        }
        let mut heard = BTreeMap::new();
        let collect = async {
            while let Some(Vitals(some)) = poll_fn(|context| inbox.poll_take(context)).await {
                heard.extend(some);
            }
        };
        // What did not come in time is left out.
        let _ = tokio::time::timeout(ANSWERED_WITHIN, collect).await;
        let (now, date) = (Moment::on_clock(self.started, Instant::now()), SystemTime::now());
        let date = date.duration_since(UNIX_EPOCH).unwrap_or_default();
        let dated = |(key, at): (SessionKey, Moment)| (key, date.saturating_sub(now.since(at)).as_secs_f64());
        heard.into_iter().map(dated).collect()
    }
}

#[cfg(test)]
mod tests {
    use gateway_core::ids::{NodeId, SessionEpoch};

    use super::*;

    #[tokio::test]
    async fn calls_without_end_leave_a_shards_mailbox_to_others() {
        let (mut posts, inbox) = mailbox::<ToShard>(2 * MOST_WAITING, usize::MAX, 2);
        let others = posts.remove(0);
        let shards = Shards::new(posts, Instant::now());
        let key = SessionKey { shard: ShardId(0), slot: 1, serial: 2 };
        let node = NodeId::new("n1").unwrap();
        let sessions = [SessionReport { node, key, epoch: SessionEpoch(1), lanes: Vec::new() }];
        // Their callers go away, and the shard takes nothing.
        for number in 0..2 * MOST_WAITING {
            let asking = tokio::time::timeout(Duration::ZERO, shards.heartbeats(&sessions)).await;
            assert_eq!(asking.ok(), (number >= MOST_WAITING).then(BTreeMap::new), "{number}");
        }
        assert_eq!(others.len(), MOST_WAITING);
        assert!(others.post(ToShard::Serving(true)).is_ok(), "the writer finds room");
        // As soon as the shard has taken some there are dates again.
        assert!(inbox.take().is_some() && inbox.take().is_some());
        let answer = async {
            while let Some(message) = inbox.take() {
                let ToShard::Vitals(ask) = message else { continue };
                // Of those before nobody waits any more.
                let _ = ask.answer.post(Vitals(vec![(key, Moment::default())]));
                ask.answer.ring();
            }
        };
        let (heard, ()) = tokio::join!(shards.heartbeats(&sessions), answer);
        assert_eq!(heard.len(), 1);
    }
}
