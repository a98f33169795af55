//! What the nodes of a story have seen, and how a story waits for it.
//!
//! 1. Everything is kept in the order in which it was told; of one node that is the order in which
//!    it happened.
//! 2. A wait looks after every event, and fails with its sentence and what was seen instead.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gateway_testbed::clock::monotonic_ns;
use gateway_testbed::node::{End, NodeEvent, Observer, Verdict, is_terminal, state_name};
use tokio::sync::Notify;
use uuid::Uuid;

use super::SOON;

/// How many events the summary of a failure shows.
const SHOWN: usize = 40;

/// A `Welcome`.
#[derive(Debug, Clone)]
pub struct Connected {
    pub node: Arc<str>,
    pub epoch: u64,
    pub at_ns: u64,
}

/// A session that ended or was refused.
#[derive(Debug, Clone)]
pub struct Ended {
    pub node: Arc<str>,
    pub end: End,
    pub at_ns: u64,
}

/// A command that was read.
#[derive(Debug, Clone)]
pub struct Received {
    pub node: Arc<str>,
    pub id: Uuid,
    pub attempt: u32,
    pub lane: String,
    pub seq: u64,
    pub session_epoch: u64,
    pub verdict: Verdict,
    pub at_ns: u64,
}

/// A terminal report that was acked.
#[derive(Debug, Clone)]
pub struct Settled {
    pub node: Arc<str>,
    pub id: Uuid,
    pub attempt: u32,
    pub reported: &'static str,
    pub stored: &'static str,
    pub at_ns: u64,
}

/// All that was seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub connected: Vec<Connected>,
    pub ended: Vec<Ended>,
    pub received: Vec<Received>,
    /// Executions that started: node, command, attempt.
    pub started: Vec<(Arc<str>, Uuid, u32)>,
    pub settled: Vec<Settled>,
    /// Acks of any update.
    pub acks: usize,
    /// Updates that were rejected: node, command, the sentence.
    pub rejected: Vec<(Arc<str>, Uuid, String)>,
    pub cancels: Vec<(Arc<str>, Uuid)>,
    /// What was said of events: node, the sentence.
    pub event_rejections: Vec<(Arc<str>, String)>,
    /// Specs that nodes have read: node, name, generation.
    pub specs: Vec<(Arc<str>, String, u64)>,
    /// What nodes said of specs and was acked: node, name, generation, whether it was applied.
    pub spec_acks: Vec<(Arc<str>, String, u64, bool)>,
    /// Statuses that were acked: node, id.
    pub statuses: Vec<(Arc<str>, String)>,
    /// Statuses that were rejected: node, id, the sentence.
    pub status_rejections: Vec<(Arc<str>, String, String)>,
    /// Sections of inventories that were acked, wanted and rejected: node, section (and the sentence).
    pub sections_stored: Vec<(Arc<str>, String)>,
    pub sections_wanted: Vec<(Arc<str>, String)>,
    pub section_rejections: Vec<(Arc<str>, String, String)>,
    /// The last cursor that any node was told: node, journal, seq.
    pub last_cursor: Option<(Arc<str>, String, u64)>,
    cursors: HashMap<(Arc<str>, String), u64>,
    /// Acked heartbeats: node, when, round trip.
    pub beats: Vec<(Arc<str>, u64, Duration)>,
    /// Nodes that were told to leave, and after how long.
    pub drains: Vec<(Arc<str>, Duration)>,
    /// Renewed certificates: node, serial.
    pub renewals: Vec<(Arc<str>, String)>,
    /// Renewals that were refused or lost.
    pub failed_renewals: Vec<(Arc<str>, End)>,
    /// Notices of revocation: node, reason, serials.
    pub revocations: Vec<(Arc<str>, String, Vec<String>)>,
    epochs: HashMap<Arc<str>, u64>,
    last: VecDeque<String>,
}

impl Seen {
    /// The epoch of a node's last `Welcome`; 0 before the first.
    pub fn epoch_of(&self, node: &str) -> u64 {
        self.epochs.get(node).copied().unwrap_or(0)
    }

    /// Up to which seq the events of a node that has one journal are acked.
    pub fn events_acked_to(&self, node: &str) -> u64 {
        self.cursors.iter().find(|((name, _), _)| &**name == node).map_or(0, |(_, acked)| *acked)
    }

    /// Commands that nodes have read, each once, and whose terminal report was not acked yet.
    pub fn unsettled(&self) -> usize {
        let mut ids: std::collections::HashSet<Uuid> = self.received.iter().map(|one| one.id).collect();
        for settled in &self.settled {
            ids.remove(&settled.id);
        }
        ids.len()
    }

    /// Ends of sessions that had been welcomed.
    pub fn drops(&self) -> impl Iterator<Item = &Ended> {
        self.ended.iter().filter(|ended| ended.end.is_drop())
    }

    /// Commands that a node has read on a lane.
    pub fn received_on<'a>(&'a self, node: &'a str, lane: &'a str) -> impl Iterator<Item = &'a Received> {
        self.received.iter().filter(move |one| &*one.node == node && one.lane == lane)
    }

    fn take(&mut self, node: &Arc<str>, event: NodeEvent) {
        let mut shown = format!("{node}: {event:?}");
        shown.truncate(shown.floor_char_boundary(300));
        self.last.push_back(shown);
        if self.last.len() > SHOWN {
            self.last.pop_front();
        }
        let node = Arc::clone(node);
        match event {
            NodeEvent::Connected { epoch, at_ns } => {
                self.epochs.insert(Arc::clone(&node), epoch);
                self.connected.push(Connected { node, epoch, at_ns });
            }
            NodeEvent::CommandReceived(command) => self.received.push(Received {
                node,
                id: command.id,
                attempt: command.attempt,
                lane: command.lane.clone(),
                seq: command.seq,
                session_epoch: command.session_epoch,
                verdict: command.verdict,
                at_ns: command.at_ns,
            }),
            NodeEvent::Started { id, attempt } => self.started.push((node, id, attempt)),
            NodeEvent::Acked { id, attempt, reported, stored, at_ns } => {
                self.acks += 1;
                if is_terminal(reported) {
                    let (reported, stored) = (state_name(reported), state_name(stored));
                    self.settled.push(Settled { node, id, attempt, reported, stored, at_ns });
                }
            }
            NodeEvent::Rejected { id, message, .. } => self.rejected.push((node, id, message)),
            NodeEvent::EventsAcked { journal, acked_seq, .. } => {
                let before = self.cursors.insert((Arc::clone(&node), journal.clone()), acked_seq);
                assert!(
                    before.is_none_or(|before| before <= acked_seq),
                    "{node}: a cursor fell to {acked_seq}"
                );
                self.last_cursor = Some((node, journal, acked_seq));
            }
            NodeEvent::EventRejected { message, .. } => self.event_rejections.push((node, message)),
            NodeEvent::SpecReceived { name, generation, .. } => self.specs.push((node, name, generation)),
            NodeEvent::SpecAcked { name, generation, ok } => {
                self.spec_acks.push((node, name, generation, ok));
            }
            NodeEvent::SpecRejected { name, generation, code, message } => {
                panic!("{node}: {name} {generation} was rejected: {code:?}, {message}");
            }
            NodeEvent::StatusAcked { id } => self.statuses.push((node, id)),
            NodeEvent::StatusRejected { id, message, .. } => self.status_rejections.push((node, id, message)),
            NodeEvent::SectionStored { section, .. } => self.sections_stored.push((node, section)),
            NodeEvent::SectionsWanted { sections } => {
                self.sections_wanted.extend(sections.into_iter().map(|section| (Arc::clone(&node), section)));
            }
            NodeEvent::SectionRejected { section, message, .. } => {
                self.section_rejections.push((node, section, message));
            }
            NodeEvent::CancelAsked { id } => self.cancels.push((node, id)),
            NodeEvent::HeartbeatAcked { round_trip, .. } => {
                self.beats.push((node, monotonic_ns(), round_trip));
            }
            NodeEvent::Renewed { serial } => self.renewals.push((node, serial)),
            NodeEvent::RenewalFailed { end } => self.failed_renewals.push((node, end)),
            NodeEvent::RevocationNoticed { reason, serials } => {
                self.revocations.push((node, reason, serials))
            }
            NodeEvent::DrainAsked { reconnect_after } => self.drains.push((node, reconnect_after)),
            // Stories of tunnels see them from the caller's side.
            NodeEvent::TunnelRefused { .. } | NodeEvent::TunnelEnded { .. } => {}
            NodeEvent::Ended { end, at_ns, .. } => self.ended.push(Ended { node, end, at_ns }),
        }
    }

    fn summary(&self) -> String {
        let counts = format!(
            "{} Welcomes, {} ends, {} commands read, {} started, {} settled, {} rejected",
            self.connected.len(),
            self.ended.len(),
            self.received.len(),
            self.started.len(),
            self.settled.len(),
            self.rejected.len()
        );
        self.last.iter().fold(counts, |text, line| text + "\n" + line)
    }
}

/// The observer of a story's nodes.
#[derive(Debug, Default)]
pub struct Watch {
    seen: Mutex<Seen>,
    changed: Notify,
}

impl Observer for Watch {
    fn on_event(&self, node: &Arc<str>, event: NodeEvent) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).take(node, event);
        self.changed.notify_waiters();
    }
}

impl Watch {
    /// Looks at what was seen so far.
    pub fn look<T>(&self, at: impl FnOnce(&Seen) -> T) -> T {
        at(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until `pick` finds what it looks for.
    pub async fn until<T>(&self, limit: Duration, what: &str, mut pick: impl FnMut(&Seen) -> Option<T>) -> T {
        let search = async {
            loop {
                // Listening before looking: what happens in between is not missed.
                let changed = self.changed.notified();
                if let Some(found) = self.look(&mut pick) {
                    return found;
                }
                changed.await;
            }
        };
        match tokio::time::timeout(limit, search).await {
            Ok(found) => found,
            Err(_) => panic!("not within {limit:?}: {what}. Seen instead: {}", self.summary()),
        }
    }

    /// The epoch of a node's last `Welcome`; 0 before the first.
    pub fn epoch_of(&self, node: &str) -> u64 {
        self.look(|seen| seen.epoch_of(node))
    }

    /// Waits for a `Welcome` of `node` with an epoch above `before`; gives it.
    pub async fn connected_after(&self, node: &str, before: u64) -> u64 {
        let what = format!("a Welcome of {node} with an epoch above {before}");
        self.until(SOON, &what, |seen| Some(seen.epoch_of(node)).filter(|epoch| *epoch > before)).await
    }

    /// Waits until the terminal report of every one of `ids` was acked.
    pub async fn all_settled(&self, ids: &[Uuid], limit: Duration) {
        let what = format!("the ends of {} commands are acked", ids.len());
        self.until(limit, &what, |seen| {
            // Cheap first: this looks after every event.
            if seen.settled.len() < ids.len() {
                return None;
            }
            let settled: std::collections::HashSet<Uuid> = seen.settled.iter().map(|one| one.id).collect();
            ids.iter().all(|id| settled.contains(id)).then_some(())
        })
        .await;
    }

    /// Waits until a node has read command `id`.
    pub async fn received(&self, id: Uuid, limit: Duration) -> Received {
        let what = format!("command {id} is read by its node");
        self.until(limit, &what, |seen| seen.received.iter().find(|one| one.id == id).cloned()).await
    }

    /// What was seen, for the sentence of a failure.
    pub fn summary(&self) -> String {
        self.look(Seen::summary)
    }
}
