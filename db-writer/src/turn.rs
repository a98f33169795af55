//! The writer's loop: moves what comes in to the machine, and what the machine gives to where it goes.
//!
//! A turn takes what is there, hands jobs to their queues, posts to shards, gives bytes back, and
//! then waits for whatever comes next. It decides nothing.
//!
//! 1. A turn takes a bounded number of messages and then lets the queues' tasks run.
//! 2. It never blocks: what a shard has no space for is kept, what a queue works on comes back.
//! 3. A loop beside it that ends, ends it too: a queue without its task would wait for ever.
//! 4. It turns at least once a second, so that a watchdog sees it live.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gateway_core::mail::Inbox;
use gateway_core::seam::ToWriter;
use gateway_core::store::{Outcome, Queue, Routed};
use gateway_core::time::Moment;
use gateway_core::writer::{Phase, Writer};

use crate::desk::{DeskInbox, Letter};
use crate::listener::{Poke, Pokes};
use crate::log_lines::LogLines;
use crate::loops::{LoopEnded, Loops};
use crate::outbox::Outbox;
use crate::queues::{Clock, Done, Queues};
use crate::status::WriterStatus;
use crate::thread::{Ask, StopSignal};

/// Messages of shards that one turn takes.
const MESSAGES_PER_TURN: usize = 1024;
/// Asks of the control API that one turn takes.
const ASKS_PER_TURN: usize = 16;
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// What the loop moves between.
#[derive(Debug)]
pub(crate) struct Loop {
    pub(crate) writer: Writer,
    pub(crate) clock: Clock,
    pub(crate) inbox: Inbox<ToWriter>,
    pub(crate) outbox: Outbox,
    pub(crate) queues: Queues,
    pub(crate) loops: Loops,
    pub(crate) pokes: Pokes,
    pub(crate) desk: DeskInbox,
    pub(crate) stop: Arc<StopSignal>,
    pub(crate) status: Arc<WriterStatus>,
    pub(crate) log: LogLines,
    pub(crate) shards_gone: bool,
}

/// What ended a wait.
enum Wake {
    Message(Option<ToWriter>),
    Done(Option<Done>),
    Poke(Option<Poke>),
    Letter(Option<Letter>),
    Ask(Ask),
    Space,
    Time,
    Ended(LoopEnded),
}

impl Loop {
    /// Turns until all is written and the lease is released, or until a loop beside it has ended.
    pub(crate) async fn run(mut self) -> Result<(), LoopEnded> {
        loop {
            let took_all = self.take_what_is_there();
            // Before anything leaves: who is to crash tells nobody.
            if self.stop.is_crashed() {
                return Ok(());
            }
            self.give_what_is_due();
            // Again, before a task of a queue has its turn: what was just handed to it is not written.
            if self.stop.is_crashed() || self.writer.phase() == Phase::Stopped {
                return Ok(());
            }
            if took_all {
                match self.wait().await {
                    Wake::Ended(ended) => return Err(ended),
                    wake => self.take(wake),
                }
            } else {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Gives whether nothing that the machine wants was left.
    fn take_what_is_there(&mut self) -> bool {
        let now = self.clock.now();
        while let Ok(done) = self.queues.done.try_recv() {
            self.take(Wake::Done(Some(done)));
        }
        while let Ok(poke) = self.pokes.heard.try_recv() {
            self.poke(&poke, now);
        }
        for poke in self.pokes.take_overflow() {
            self.poke(&poke, now);
        }
        for _ in 0..ASKS_PER_TURN {
            let Ok(letter) = self.desk.0.try_recv() else { break };
            self.answer(letter, now);
        }
        for _ in 0..MESSAGES_PER_TURN {
            if !self.writer.wants_messages() {
                return true;
            }
            let Some(message) = self.inbox.take() else { return true };
            self.take(Wake::Message(Some(message)));
        }
        false
    }

    fn poke(&mut self, poke: &Poke, now: Moment) {
        match poke {
            Poke::Commands(node) => self.writer.handle_poke(node.as_ref(), now),
            Poke::Specs(node) => self.writer.handle_specs_poke(node.as_ref(), now),
            Poke::Certificates => self.writer.handle_certificates_poke(now),
        }
    }

    fn answer(&mut self, Letter { ask, answer }: Letter, now: Moment) {
        self.status.asks.fetch_add(1, Ordering::Relaxed);
        if answer.is_closed() {
            // Who has given up does not expect it done.
            return;
        }
        // Who asked may be gone by now.
        let _ = answer.send(self.writer.handle_ask(ask, now));
    }

    fn give_what_is_due(&mut self) {
        let now = self.clock.now();
        if self.writer.next_deadline().is_some_and(|due| due <= now) {
            self.writer.handle_time(now);
        }
        while let Some(job) = self.writer.poll_job(now) {
            self.status.queue(job.queue()).runs.begin();
            self.queues.hand(job, now);
        }
        let mut given = 0;
        while let Some((shard, message)) = self.writer.poll_to_shard() {
            self.outbox.push(shard, message);
            given += 1;
        }
        // Before the news leaves: whoever acts on it finds it counted.
        self.status.sessions.store(self.writer.sessions() as u64, Ordering::Relaxed);
        self.status.set_counts(&self.writer.counts());
        self.status.leads_sweeps.store(self.writer.leads_sweeps(), Ordering::Relaxed);
        self.log.note_lead(self.writer.leads_sweeps());
        self.note_revocations();
        self.note_depths();
        self.outbox.flush_and_ring();
        self.inbox.release_bytes(self.writer.poll_released_bytes());
        self.inbox.announce_space();
        self.status.messages_given.fetch_add(given, Ordering::Relaxed);
        self.status.ticks.fetch_add(1, Ordering::Relaxed);
        let phase = self.writer.phase();
        if self.log.note_phase(phase) {
            self.status.set_phase(phase);
        }
    }

    fn note_depths(&self) {
        self.status.messages_waiting.store(self.inbox.len() as u64, Ordering::Relaxed);
        for queue in Queue::ALL {
            let waiting = self.writer.queue_len(queue) as u64;
            self.status.queue(queue).waiting.store(waiting, Ordering::Relaxed);
        }
        let (epoch, good_since) = self.writer.lease_epoch().zip(self.writer.lease_good_since()).unzip();
        self.status.lease_epoch.store(epoch.map_or(0, |epoch| epoch.0), Ordering::Relaxed);
        self.status.lease_good_since.store(good_since.map_or(0, Moment::as_nanos), Ordering::Relaxed);
    }

    fn note_revocations(&mut self) {
        let (known, left_out) = (self.writer.revoked_certificates(), self.writer.revocations_left_out());
        self.status.revoked_certificates.store(known as u64, Ordering::Relaxed);
        self.status.revocations_left_out.store(left_out as u64, Ordering::Relaxed);
        self.log.note_left_out(left_out);
    }

    async fn wait(&mut self) -> Wake {
        let Self { writer, clock, inbox, outbox, queues, loops, pokes, desk, stop, shards_gone, .. } = self;
        let longest = tokio::time::Instant::now() + LONGEST_WAIT;
        let until = writer.next_deadline().map_or(longest, |due| clock.instant(due).min(longest));
        let takes_messages = writer.wants_messages() && !*shards_gone;
        let is_blocked = outbox.is_blocked();
        tokio::select! {
            done = queues.done.recv() => Wake::Done(done),
            ended = loops.ended() => Wake::Ended(ended),
            message = poll_fn(|context| inbox.poll_take(context)), if takes_messages => Wake::Message(message),
            poke = pokes.heard.recv() => Wake::Poke(poke),
            letter = desk.0.recv(), if !desk.0.is_closed() => Wake::Letter(letter),
            ask = stop.requested() => Wake::Ask(ask),
            () = poll_fn(|context| outbox.poll_space(context)), if is_blocked => Wake::Space,
            () = tokio::time::sleep_until(until) => Wake::Time,
        }
    }

    fn take(&mut self, wake: Wake) {
        let now = self.clock.now();
        match wake {
            Wake::Message(Some(message)) => {
                self.status.messages_taken.fetch_add(1, Ordering::Relaxed);
                self.writer.handle_message(message, now);
            }
            // Every shard's thread has ended: there is nobody left to serve.
            Wake::Message(None) => {
                self.shards_gone = true;
                self.writer.handle_stop(now);
            }
            Wake::Done(Some(Done { outcome, entries, started })) => {
                let took = now.since(started);
                self.status.note_job(outcome.queue(), entries, took, outcome.error());
                if let Outcome::Dispatch(Ok(Routed::Committed(claims))) = &outcome {
                    self.status.note_claims(claims, took);
                }
                self.log.note_outcome(&outcome);
                self.writer.handle_outcome(outcome, started, now);
            }
            Wake::Poke(Some(poke)) => self.poke(&poke, now),
            Wake::Letter(Some(letter)) => self.answer(letter, now),
            Wake::Ask(Ask::Drain(plan)) => self.writer.handle_drain(plan, now),
            Wake::Ask(Ask::Crash) => {}
            Wake::Ask(Ask::Stop) => self.writer.handle_stop(now),
            Wake::Done(None)
            | Wake::Poke(None)
            | Wake::Letter(None)
            | Wake::Space
            | Wake::Time
            | Wake::Ended(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use gateway_core::ids::GatewayId;
    use gateway_core::limits::Limits;
    use gateway_core::mail::mailbox;
    use gateway_core::writer::WriterConfig;
    use sqlx::postgres::PgConnectOptions;

    use super::*;
    use crate::listener;

    fn config(gateway: &GatewayId) -> WriterConfig {
        WriterConfig::alone(gateway.clone(), "o", Arc::new(Limits::default()))
    }

    #[tokio::test]
    async fn a_loop_that_dies_ends_the_thread_with_its_name_and_reason() {
        let gateway = GatewayId::new("g").expect("a gateway id");
        // Nobody is there: every job fails, and the loops go on.
        let options = PgConnectOptions::new_without_pgpass().socket("/nowhere");
        let clock = Clock::new(Instant::now());
        let (status, hooks) = (Arc::<WriterStatus>::default(), Arc::default());
        // Held, so that the shard is not taken for gone.
        let (_posts, inbox) = mailbox(8, 1 << 20, 1);
        let tasks = tokio::task::LocalSet::new();
        let ended = Box::pin(tasks.run_until(async {
            let mut loops = Loops::default();
            let queues = Queues::start(
                &options,
                &gateway,
                true,
                Limits::default().duplicates,
                Limits::default().unknown_serial,
                &Arc::default(),
                &hooks,
                &mut loops,
                &status,
            );
            let pokes = listener::start(&options, &gateway, false, &mut loops, Arc::clone(&status));
            let failing = Arc::clone(&status);
            loops.start("feed", async move {
                while failing.queue(gateway_core::store::Queue::Lease).runs.read().failures == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                panic!("a row that nobody foresaw");
            });
            let turns = Loop {
                writer: Writer::new(config(&gateway), clock.now()),
                clock,
                inbox,
                outbox: Outbox::new(Vec::new()),
                queues,
                loops,
                pokes,
                desk: crate::desk::desk().1,
                stop: Arc::default(),
                status: Arc::clone(&status),
                log: LogLines::new(gateway.clone()),
                shards_gone: false,
            };
            turns.run().await
        }));
        let ended = tokio::time::timeout(Duration::from_secs(20), ended).await.expect("it ends");
        let reason = ended.expect_err("a loop died").to_string();
        assert_eq!(reason, "the loop feed has ended: it panicked: a row that nobody foresaw");
    }
}
