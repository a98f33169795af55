//! Sessions, a writer and a store in one thread: what mail there is goes to whom it is for until there is none.
//!
//! Time stands still, so that nothing but what is asked for happens. The machines are the gateway's own.

use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use gateway_core::certificate::UnknownSerial;
use gateway_core::command::CommandState;
use gateway_core::frame::{Command, CommandUpdate, Hello, LaneCapacity, NodeFrame};
use gateway_core::ids::{
    Attempt, CommandId, Credits, FrameRef, GatewayId, LaneName, LaneSeq, NodeId, SessionEpoch, SessionKey,
    ShardId,
};
use gateway_core::limits::Limits;
use gateway_core::seam::{Identity, SessionNews, ToShard};
use gateway_core::session::Session;
use gateway_core::store::{Job, Outcome, Routed};
use gateway_core::time::{Moment, UnixMillis};
use gateway_core::writer::{Writer, WriterConfig};
use gateway_sim::store::Store;
use uuid::Uuid;

const FRAME_BYTES: usize = 64;

pub(super) struct Rig {
    writer: Writer,
    store: Store,
    sessions: Vec<Session>,
    now: Moment,
    commands: u64,
}

fn named<T, E: std::fmt::Display>(outcome: Result<T, E>) -> anyhow::Result<T> {
    outcome.map_err(|error| anyhow::anyhow!("{error}"))
}

impl Rig {
    /// So many sessions that stand, each with one lane.
    pub(super) fn with_sessions(count: usize) -> anyhow::Result<Self> {
        let limits = Arc::new(Limits { unknown_serial: UnknownSerial::Accept, ..Limits::default() });
        let now = Moment::default();
        let writer = Writer::new(config(Arc::clone(&limits))?, now);
        let mut rig = Self { writer, store: Store::default(), sessions: Vec::new(), now, commands: 0 };
        rig.work();
        for index in 0..count {
            let node = named(NodeId::new(&format!("node-{index}")))?;
            rig.store.register_node(node.clone());
            let key = SessionKey { shard: ShardId(0), slot: u32::try_from(index)?, serial: 1 };
            let identity = Identity {
                node,
                site: "bench".to_owned(),
                certificate_serial: format!("{:X}", 4096 + index),
            };
            let mut session = Session::new(key, identity, Arc::clone(&limits), now);
            session.handle_frame(NodeFrame::Hello(Box::new(hello()?)), FRAME_BYTES, now);
            rig.sessions.push(session);
        }
        rig.work();
        let standing = rig.sessions.iter().filter(|session| session.epoch().is_some()).count();
        anyhow::ensure!(standing == count, "{standing} of {count} sessions were granted");
        Ok(rig)
    }

    // Until nobody has anything for anybody.
    fn work(&mut self) {
        loop {
            let mut was_idle = true;
            for session in &mut self.sessions {
                while let Some(message) = session.poll_to_writer() {
                    self.writer.handle_message(message, self.now);
                    was_idle = false;
                }
                while session.poll_frame().is_some() {}
            }
            while let Some(job) = self.writer.poll_job(self.now) {
                let outcome = self.store.commit(&job, UnixMillis(1));
                self.writer.handle_outcome(outcome, self.now, self.now);
                was_idle = false;
            }
            while let Some((_, message)) = self.writer.poll_to_shard() {
                if let ToShard::Session { key, news } = message
                    && let Some(session) = self.sessions.get_mut(key.slot as usize)
                {
                    session.handle_news(news, self.now);
                }
            }
            if was_idle {
                return;
            }
        }
    }

    /// An update's frame in, its mail to the writer out; then its answer in, and the ack out.
    pub(super) fn update(&mut self) -> anyhow::Result<()> {
        self.commands += 1;
        let update = CommandUpdate {
            frame_ref: FrameRef(self.commands),
            id: CommandId(Uuid::from_u128(u128::from(self.commands))),
            attempt: Attempt(1),
            state: CommandState::Succeeded,
            progress: None,
            result: Bytes::from_static(b"done"),
            error: None,
            refusal: None,
        };
        let now = self.now;
        let session = self.sessions.first_mut().context("a session")?;
        session.handle_frame(NodeFrame::CommandUpdate(update), FRAME_BYTES, now);
        session.poll_to_writer().context("the update goes to the writer")?;
        session.handle_news(SessionNews::Stored { state: Some(CommandState::Succeeded) }, now);
        session.poll_frame().context("the update is acked")?;
        Ok(())
    }

    /// A command of the writer in, its frame out.
    pub(super) fn command(&mut self) -> anyhow::Result<()> {
        self.commands += 1;
        let command = Command {
            id: CommandId(Uuid::from_u128(u128::from(self.commands))),
            attempt: Attempt(1),
            lane: named(LaneName::new("default"))?,
            seq: LaneSeq(self.commands),
            kind: "bench".to_owned(),
            payload: Bytes::from_static(&[b'x'; 128]),
            not_after: None,
            session_epoch: SessionEpoch(1),
        };
        let now = self.now;
        let session = self.sessions.first_mut().context("a session")?;
        session.handle_news(SessionNews::Commands(vec![command]), now);
        session.poll_frame().context("the command goes to the node")?;
        session.handle_all_sent();
        Ok(())
    }

    /// Every lane may have something: a whole round of passes, of which none finds a thing. Gives the lanes that
    /// were asked for.
    pub(super) fn plan(&mut self) -> usize {
        self.writer.handle_poke(None, self.now);
        let mut lanes = 0;
        while let Some(job) = self.writer.poll_job(self.now) {
            let outcome = match &job {
                Job::Dispatch { wants, .. } => {
                    lanes += wants.len();
                    Outcome::Dispatch(Ok(Routed::Committed(Vec::new())))
                }
                other => self.store.commit(other, UnixMillis(1)),
            };
            self.writer.handle_outcome(outcome, self.now, self.now);
        }
        lanes
    }
}

fn hello() -> anyhow::Result<Hello> {
    Ok(Hello {
        protocol: 1,
        features: Vec::new(),
        boot_id: "boot".to_owned(),
        machine: "machine".to_owned(),
        software_version: "1".to_owned(),
        role: "node".to_owned(),
        lanes: vec![LaneCapacity { lane: named(LaneName::new("default"))?, capacity: Credits(4) }],
        journal: None,
        specs: Vec::new(),
        known_commands: Vec::new(),
        inventory: Vec::new(),
    })
}

fn config(limits: Arc<Limits>) -> anyhow::Result<WriterConfig> {
    Ok(WriterConfig::alone(named(GatewayId::new("micro"))?, "micro", limits))
}
