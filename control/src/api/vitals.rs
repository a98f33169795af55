//! When sessions had their last heartbeats: asked of the shards that have them.
//!
//! Each ask brings a mailbox of its own along, so that an answer finds its call and nobody else's.
//!
//! 1. A shard whose mailbox is full, or that does not answer in time, costs its sessions their dates and no more.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gateway_core::desk::{SessionReport, Vitals, VitalsAsk};
use gateway_core::ids::{SessionKey, ShardId};
use gateway_core::mail::{Post, mailbox};
use gateway_core::seam::ToShard;
use gateway_core::time::Moment;

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
            if let Some(post) = self.posts.get(usize::from(shard.0)) {
                // One that can't be posted drops its way back, and is not waited for.
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
