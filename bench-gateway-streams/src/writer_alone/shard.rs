//! A shard that is played: the writer's thread, and sessions that exist in memory alone.
//!
//! It posts what a shard posts and takes what a shard takes, and so knows what no socket costs.
//!
//! 1. An answer that does not come in time fails the run.
//! 2. A session's slot is its node's number; its key never changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use gateway_core::certificate::UnknownSerial;
use gateway_core::frame::{Hello, LaneCapacity};
use gateway_core::ids::{Credits, GatewayId, LaneName, NodeId, SessionKey, ShardId};
use gateway_core::limits::Limits;
use gateway_core::mail::{Inbox, Post, PostError, mailbox};
use gateway_core::seam::{HelloRequest, Identity, SessionNews, ToShard, ToWriter};
use gateway_core::writer::WriterConfig;
use gateway_db_writer::{DbWriterConfig, DbWriterHandle, WriterStatus, desk, spawn};

pub(super) const GATEWAY: &str = "writer-alone";
const PATIENCE: Duration = Duration::from_secs(60);
/// Room for an answer to every session at once.
const BOX_SIZE: usize = 1 << 14;

pub(super) struct PlayedShard {
    writer: DbWriterHandle,
    post: Post<ToWriter>,
    inbox: Inbox<ToShard>,
    nodes: Vec<NodeId>,
}

impl PlayedShard {
    /// Starts the writer's thread, and waits until it serves.
    pub(super) async fn start(database_url: &str) -> anyhow::Result<Self> {
        let limits = Arc::new(Limits { unknown_serial: UnknownSerial::Accept, ..Limits::default() });
        let (mut posts, inbox) = mailbox(limits.to_writer_messages, limits.to_writer_bytes, 1);
        let (ways, own_inbox) = mailbox(BOX_SIZE, 1 << 24, 1);
        let config = DbWriterConfig {
            database_url: database_url.to_owned(),
            listen_url: None,
            writer: writer_config(limits)?,
            cpu: None,
            inbox,
            shards: ways,
            desk: desk().1,
            started: Instant::now(),
            synchronous_dispatch: true,
            listen: true,
            status: Arc::new(WriterStatus::default()),
            hooks: Arc::default(),
            destructive_kinds: Arc::default(),
        };
        let post = posts.pop().context("a mailbox has a way in")?;
        let mut shard = Self { writer: spawn(config)?, post, inbox: own_inbox, nodes: Vec::new() };
        while !matches!(shard.next().await?, ToShard::Serving(true)) {}
        Ok(shard)
    }

    /// Says Hello for each name, and waits until all are granted.
    pub(super) async fn open_sessions(&mut self, names: &[String]) -> anyhow::Result<()> {
        for name in names {
            self.nodes.push(NodeId::new(name).map_err(|error| anyhow::anyhow!("{name}: {error}"))?);
        }
        for index in 0..self.nodes.len() {
            self.put(ToWriter::Hello(Box::new(self.hello(index)?))).await?;
            self.ring();
        }
        for _ in 0..self.nodes.len() {
            let (_, news) = self.news().await?;
            anyhow::ensure!(matches!(news, SessionNews::Granted(_)), "a Hello was not granted: {news:?}");
        }
        Ok(())
    }

    fn hello(&self, index: usize) -> anyhow::Result<HelloRequest> {
        let lane = LaneName::new("default").map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(HelloRequest {
            key: self.key(index),
            identity: Identity {
                node: self.node(index),
                site: "bench".to_owned(),
                certificate_serial: format!("{:X}", 4096 + index),
            },
            hello: Hello {
                protocol: 1,
                features: Vec::new(),
                boot_id: "boot".to_owned(),
                machine: "machine".to_owned(),
                software_version: "0.1".to_owned(),
                role: "node".to_owned(),
                lanes: vec![LaneCapacity { lane, capacity: Credits(4) }],
                journal: None,
                specs: Vec::new(),
                known_commands: Vec::new(),
                inventory: Vec::new(),
            },
        })
    }

    pub(super) fn key(&self, index: usize) -> SessionKey {
        SessionKey { shard: ShardId(0), slot: u32::try_from(index).unwrap_or(u32::MAX), serial: 1 }
    }

    pub(super) fn node(&self, index: usize) -> NodeId {
        self.nodes[index].clone()
    }

    /// Posts what the writer is not yet woken for.
    pub(super) async fn put(&self, message: ToWriter) -> anyhow::Result<()> {
        let mut message = Some(message);
        std::future::poll_fn(|context| {
            self.post.register_for_space(context);
            let Some(due) = message.take() else { return std::task::Poll::Ready(Ok(())) };
            match self.post.post(due) {
                Ok(()) => std::task::Poll::Ready(Ok(())),
                Err(PostError::Full(back)) => {
                    message = Some(back);
                    std::task::Poll::Pending
                }
                Err(PostError::Gone(_)) => std::task::Poll::Ready(Err(anyhow::anyhow!("the writer is gone"))),
            }
        })
        .await
    }

    /// Wakes the writer for what was put.
    pub(super) fn ring(&self) {
        self.post.ring();
    }

    async fn next(&mut self) -> anyhow::Result<ToShard> {
        let taking = std::future::poll_fn(|context| self.inbox.poll_take(context));
        let message =
            tokio::time::timeout(PATIENCE, taking).await.context("no answer of the writer in time")?;
        self.inbox.announce_space();
        message.context("the writer has ended")
    }

    /// The next answer to a session, by the session's number.
    pub(super) async fn news(&mut self) -> anyhow::Result<(usize, SessionNews)> {
        loop {
            match self.next().await? {
                ToShard::Session { key, news } => return Ok((key.slot as usize, news)),
                ToShard::Serving(false) => anyhow::bail!("the writer serves no more"),
                _ => {}
            }
        }
    }

    /// Plays the shard's part of a stop, and awaits the thread's end.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.writer.stop_handle().stop();
        while !matches!(self.next().await?, ToShard::Stop) {}
        for index in 0..self.nodes.len() {
            let (key, node) = (self.key(index), self.node(index));
            self.put(ToWriter::Closed { key, node, reason: "stopping" }).await?;
            self.ring();
        }
        self.put(ToWriter::ShardStopped { shard: ShardId(0) }).await?;
        self.ring();
        let writer = self.writer;
        tokio::task::spawn_blocking(|| writer.join()).await??;
        Ok(())
    }
}

fn writer_config(limits: Arc<Limits>) -> anyhow::Result<WriterConfig> {
    let gateway = GatewayId::new(GATEWAY).map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(WriterConfig::alone(gateway, "bench", limits))
}
