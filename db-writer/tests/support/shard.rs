//! The writer's thread, with a real PostgreSQL and shards that are played by the test.
//!
//! A `Running` is a thread and the shards that it believes in; a story posts what a shard posts, and takes
//! what a shard takes.
//!
//! 1. A message that does not come in time fails its story; nothing is slept for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway_core::certificate::UnknownSerial;
use gateway_core::command::CommandState;
use gateway_core::ids::{SessionKey, ShardId};
use gateway_core::limits::Limits;
use gateway_core::mail::{Inbox, Post, PostError, mailbox};
use gateway_core::seam::{Granted, SessionNews, ToShard, ToWriter};
use gateway_core::writer::{Phase, WriterConfig};
use gateway_db_writer::{DbWriterConfig, DbWriterHandle, WriterStatus, desk, spawn};

use super::{gateway, hello, node, update};

/// A shard as the writer sees it.
pub struct Shard {
    pub id: ShardId,
    pub post: Post<ToWriter>,
    pub inbox: Inbox<ToShard>,
    pub open: Vec<(u32, String)>,
}

impl Shard {
    pub fn key(&self, slot: u32) -> SessionKey {
        SessionKey { shard: self.id, slot, serial: 1 }
    }

    pub async fn post(&self, message: ToWriter) {
        self.put(message).await;
        self.post.ring();
    }

    /// Posts what the writer is not yet woken for.
    pub async fn put(&self, message: ToWriter) {
        let mut message = Some(message);
        std::future::poll_fn(|context| {
            self.post.register_for_space(context);
            match self.post.post(message.take().unwrap()) {
                Ok(()) => std::task::Poll::Ready(()),
                Err(PostError::Full(back)) => {
                    message = Some(back);
                    std::task::Poll::Pending
                }
                Err(PostError::Gone(_)) => panic!("the writer is gone"),
            }
        })
        .await;
    }

    /// The next message, which must come in time.
    pub async fn next(&mut self) -> ToShard {
        let taking = std::future::poll_fn(|context| self.inbox.poll_take(context));
        let message =
            tokio::time::timeout(Duration::from_secs(20), taking).await.expect("no message in time");
        self.inbox.announce_space();
        message.expect("the writer lives")
    }

    pub async fn news(&mut self) -> (u32, SessionNews) {
        match self.next().await {
            ToShard::Session { key, news } => (key.slot, news),
            other => panic!("{other:?}"),
        }
    }

    pub async fn until_serving(&mut self) {
        while !matches!(self.next().await, ToShard::Serving(true)) {}
    }

    pub async fn say_hello(
        &self,
        slot: u32,
        name: &str,
        known: &[(gateway_core::ids::CommandId, u32, CommandState)],
    ) {
        let mut request = hello(name, &[("default", 4)], known);
        request.key = self.key(slot);
        self.post(ToWriter::Hello(Box::new(request))).await;
    }

    pub async fn granted(&mut self, slot: u32, name: &str) -> Granted {
        self.say_hello(slot, name, &[]).await;
        match self.news().await {
            (at, SessionNews::Granted(granted)) if at == slot => {
                self.open.push((slot, name.to_owned()));
                *granted
            }
            other => panic!("{other:?}"),
        }
    }

    pub async fn report(&self, slot: u32, name: &str, id: gateway_core::ids::CommandId, state: CommandState) {
        let mut request = update(name, id, 1, state);
        request.key = self.key(slot);
        self.post(ToWriter::Update(Box::new(request))).await;
    }
}

pub struct Running {
    pub handle: DbWriterHandle,
    pub status: Arc<WriterStatus>,
    pub shards: Vec<Shard>,
}

pub fn start(url: &str, owner: &str, change: impl FnOnce(&mut DbWriterConfig)) -> Running {
    start_with(url, owner, 2, 4096, change)
}

pub fn start_with(
    url: &str,
    owner: &str,
    shards: u16,
    box_size: usize,
    change: impl FnOnce(&mut DbWriterConfig),
) -> Running {
    let limits = Arc::new(Limits { unknown_serial: UnknownSerial::Accept, ..Limits::default() });
    let (posts, inbox) = mailbox(limits.to_writer_messages, limits.to_writer_bytes, usize::from(shards));
    let mut ways = Vec::new();
    let mut played = Vec::new();
    for (index, post) in posts.into_iter().enumerate() {
        let (mut way, shard_inbox) = mailbox(box_size, 1 << 20, 1);
        ways.push(way.remove(0));
        played.push(Shard { id: ShardId(index as u16), post, inbox: shard_inbox, open: Vec::new() });
    }
    let status = Arc::new(WriterStatus::default());
    let mut config = DbWriterConfig {
        database_url: url.to_owned(),
        listen_url: None,
        writer: WriterConfig { shards, ..WriterConfig::alone(gateway("g1"), owner, limits) },
        cpu: None,
        inbox,
        shards: ways,
        desk: desk().1,
        started: Instant::now(),
        synchronous_dispatch: true,
        listen: true,
        status: Arc::clone(&status),
        hooks: Arc::default(),
        destructive_kinds: Arc::default(),
    };
    change(&mut config);
    Running { handle: spawn(config).unwrap(), status, shards: played }
}

/// Plays the shards' part of a stop and awaits the thread's end.
pub async fn stop(mut running: Running) {
    running.handle.stop_handle().stop();
    for shard in &mut running.shards {
        while !matches!(shard.next().await, ToShard::Stop) {}
        for (slot, name) in std::mem::take(&mut shard.open) {
            shard
                .post(ToWriter::Closed { key: shard.key(slot), node: node(&name), reason: "stopping" })
                .await;
        }
        shard.post(ToWriter::ShardStopped { shard: shard.id }).await;
    }
    tokio::task::spawn_blocking(|| running.handle.join()).await.unwrap().unwrap();
    assert_eq!(running.status.phase(), Phase::Stopped);
}
