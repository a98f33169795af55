//! In the writer's place: grants every Hello, stores every update, records all that it was told.
//!
//! It decides nothing: no epoch is refused, no update rejected. A story pauses it to see
//! backpressure, and says by itself what else a writer would say (a fence, a session superseded).

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;

use gateway_core::ids::{EventSeq, SessionEpoch, SessionKey};
use gateway_core::mail::{Inbox, Post, Weigh};
use gateway_core::seam::{Granted, HelloRequest, SessionNews, ToShard, ToWriter};
use gateway_core::time::UnixMillis;
use tokio::sync::mpsc;

use super::soon;

/// What a gateway's sessions find. It runs on the runtime of the test.
pub struct Writer {
    told: mpsc::UnboundedReceiver<ToWriter>,
    paused: Rc<Cell<bool>>,
    resume: Rc<tokio::sync::Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Writer {
    pub fn start(inbox: Inbox<ToWriter>, posts: Vec<Post<ToShard>>) -> Self {
        let (record, told) = mpsc::unbounded_channel();
        let (paused, resume) = (Rc::new(Cell::new(false)), Rc::new(tokio::sync::Notify::new()));
        let task = tokio::task::spawn_local({
            let (paused, resume) = (Rc::clone(&paused), Rc::clone(&resume));
            async move {
                let mut epoch = 0;
                while let Some(message) = poll_fn(|context| inbox.poll_take(context)).await {
                    while paused.get() {
                        resume.notified().await;
                    }
                    answer(&posts, &message, &mut epoch);
                    inbox.release_bytes(message.weight_bytes());
                    inbox.announce_space();
                    let _ = record.send(message);
                }
            }
        });
        Self { told, paused, resume, task }
    }

    /// Takes nothing more until `resume`.
    pub fn pause(&self) {
        self.paused.set(true);
    }

    pub fn resume(&self) {
        self.paused.set(false);
        self.resume.notify_one();
    }

    /// The next thing that it was told.
    pub async fn next(&mut self) -> ToWriter {
        soon(self.told.recv()).await.expect("the writer runs")
    }

    pub async fn hello(&mut self) -> HelloRequest {
        match self.next().await {
            ToWriter::Hello(request) => *request,
            other => panic!("expected a Hello, was told {other:?}"),
        }
    }

    /// Passes over all but the end of a session.
    pub async fn closed(&mut self) -> SessionKey {
        self.closed_because().await.0
    }

    /// The same, with the reason that it was given.
    pub async fn closed_because(&mut self) -> (SessionKey, &'static str) {
        loop {
            if let ToWriter::Closed { key, reason, .. } = self.next().await {
                return (key, reason);
            }
        }
    }

    /// All that it was told and nobody has asked for.
    pub fn rest(&mut self) -> Vec<ToWriter> {
        std::iter::from_fn(|| self.told.try_recv().ok()).collect()
    }
}

fn answer(posts: &[Post<ToShard>], message: &ToWriter, epoch: &mut u64) {
    let (key, news) = match message {
        ToWriter::Hello(request) => {
            *epoch += 1;
            let granted = Granted {
                epoch: SessionEpoch(*epoch),
                server_time: UnixMillis(1_700_000_000_000),
                journal_acked: EventSeq(0),
                replays: Vec::new(),
                cancels: Vec::new(),
                inventory_wanted: Vec::new(),
            };
            (request.key, SessionNews::Granted(Box::new(granted)))
        }
        ToWriter::Update(request) => (request.key, SessionNews::Stored { state: Some(request.update.state) }),
        ToWriter::Status(request) => (request.key, SessionNews::Stored { state: None }),
        ToWriter::Events(request) => {
            let acked = request.batch.events.last().map_or(EventSeq(0), |event| event.seq);
            let journal = request.batch.journal.clone();
            (request.key, SessionNews::EventsStored { journal, acked, refused: None })
        }
        ToWriter::Section(request) => {
            (request.key, SessionNews::SectionStored { frame_ref: request.frame_ref })
        }
        _ => return,
    };
    let post = &posts[usize::from(key.shard.0)];
    post.post(ToShard::Session { key, news }).expect("the shard takes its mail");
    post.ring();
}
