//! What is noted of a session and of a process, to be held against what they do next.
//!
//! Owns the notes and their checks, each about one machine alone. Never changes what happens.
//!
//! 1. To the writer a session posts its Hello first, `Closed` once and last, and one durable frame at a time: behind
//!    an update that has no answer yet comes what goes on with that attempt, and nothing else.
//! 2. To the node goes `Welcome` first, then replays and cancellations as they were granted, then all else, and each
//!    attempt once.
//! 3. Of a node a writer has one session at most. It knows as many as it granted and did not end.
//! 4. A lane is asked for with the capacity that was announced last, and with no more in flight than was given to
//!    its node, or told to be there, and not told to be over.
//! 5. A grant is told as it was committed. A session that ended for no newer one is written as disconnected, and
//!    is owed that until a commit says so.
//! 6. What a writer has heard to be over is not given to a session as a command.
//! 7. A spec that a session was sent is not sent to it again before a sweep has passed.
//! 8. A drain leaves who was welcomed as long as it lasts. A shard that was told to send away, or to stop, is not
//!    told to serve again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use gateway_core::close::{AdmissionBound, CloseReason};
use gateway_core::command::CommandState;
use gateway_core::frame::{Command, GatewayFrame};
use gateway_core::ids::{
    Attempt, CommandId, Credits, Generation, LaneName, NodeId, SessionEpoch, SessionKey, SpecName,
};
use gateway_core::limits::Limits;
use gateway_core::seam::{Granted, SessionNews, ToShard, ToWriter, UpdateRequest};
use gateway_core::store::{
    HelloGrant, HelloOutcome, LaneRead, LaneState, LaneWant, PresenceEntry, UpdateOutcome,
};
use gateway_core::time::Moment;

use crate::answers::Answers;
use crate::check::must;
use crate::company::Company;

/// A sweep over all sessions takes longer.
const SPECS_AGAIN_AFTER: Duration = Duration::from_millis(1_400);

/// A frame that must come next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    Replay(CommandId, Attempt),
    Cancel(CommandId),
}

/// Notes of a session.
#[derive(Debug, Default)]
pub(crate) struct SessionWatch {
    hello_posted: bool,
    closed_posted: bool,
    /// Durable frames that are with the writer.
    with_writer: u32,
    /// The last of them, if it is an update.
    last_told: Option<(CommandId, Attempt, CommandState)>,
    welcomed: bool,
    next: VecDeque<Next>,
    /// What it was sent.
    sent: BTreeSet<(CommandId, Attempt)>,
    /// The last frame of the node.
    pub(crate) heard_at: Moment,
    /// When it last was not read, or not live yet: silence counts from then.
    pub(crate) unread_at: Moment,
    /// The node closed its half or said goodbye.
    pub(crate) is_finishing: bool,
    /// The node broke the protocol.
    pub(crate) is_rude: bool,
    /// The drain of its gateway is over: whoever is still there is cut.
    pub(crate) is_cut: bool,
    /// The node was told to leave.
    pub(crate) is_sent_away: bool,
}

impl SessionWatch {
    pub(crate) fn opened(now: Moment) -> Self {
        Self { heard_at: now, ..Self::default() }
    }

    /// The session posts this.
    pub(crate) fn handle_post(&mut self, message: &ToWriter) {
        must("Closed is the last of a session", !self.closed_posted, || format!("{message:?}"));
        let is_hello = matches!(message, ToWriter::Hello(_));
        must("a session posts its Hello first, once", is_hello != self.hello_posted, || {
            format!("{message:?}")
        });
        match message {
            ToWriter::Hello(_) => self.hello_posted = true,
            ToWriter::Closed { .. } => self.closed_posted = true,
            ToWriter::Update(request) => {
                let update = &request.update;
                let told = (update.id, update.attempt, update.state);
                let goes_on = self.last_told.replace(told).is_some_and(|(id, attempt, state)| {
                    (id, attempt) == (update.id, update.attempt) && state < update.state
                });
                let one = self.with_writer == 0 || goes_on;
                must("one durable frame is with the writer", one, || format!("{message:?}"));
                self.with_writer += 1;
            }
            ToWriter::Events(_) | ToWriter::SpecApplied(_) | ToWriter::Status(_) => {
                self.last_told = None;
                must("one durable frame is with the writer", self.with_writer == 0, || {
                    format!("{message:?}")
                });
                self.with_writer += 1;
            }
            _ => {}
        }
    }

    /// The writer told the session this.
    pub(crate) fn handle_news(&mut self, news: &SessionNews) {
        match news {
            SessionNews::Granted(granted) => {
                let replays = granted.replays.iter().map(|sent| Next::Replay(sent.id, sent.attempt));
                let cancels = granted.cancels.iter().map(|cancel| Next::Cancel(cancel.id));
                self.next = replays.chain(cancels).collect();
            }
            SessionNews::Stored { .. } | SessionNews::EventsStored { .. } | SessionNews::NotStored { .. } => {
                must("a durable frame has one answer", self.with_writer > 0, || format!("{news:?}"));
                self.with_writer -= 1;
            }
            _ => {}
        }
    }

    /// The session gives this for its node.
    pub(crate) fn handle_frame(&mut self, frame: &GatewayFrame) {
        if let GatewayFrame::Welcome(_) = frame {
            must("one Welcome, and first", !self.welcomed, || format!("{frame:?}"));
            self.welcomed = true;
            if self.is_finishing {
                self.next.clear();
            }
            return;
        }
        must("one Welcome, and first", self.welcomed, || format!("{frame:?}"));
        self.is_sent_away |= matches!(frame, GatewayFrame::Drain { .. });
        let came = match frame {
            GatewayFrame::Command(command) => {
                let once = self.sent.insert((command.id, command.attempt));
                must("a session is sent an attempt once", once, || format!("{command:?}"));
                Next::Replay(command.id, command.attempt)
            }
            GatewayFrame::CancelCommand(cancel) => Next::Cancel(cancel.id),
            _ => {
                return must("what was granted follows Welcome", self.next.is_empty(), || {
                    format!("{frame:?}")
                });
            }
        };
        if let Some(next) = self.next.pop_front() {
            must("what was granted follows Welcome", next == came, || format!("{came:?}, not {next:?}"));
        }
    }

    /// The session is over for its driver.
    pub(crate) fn check_end(&self, reason: &CloseReason) {
        let all = self.with_writer == 0 || *reason != CloseReason::Finished;
        must("who finishes has all answers", all, || format!("{self:?}"));
        let sent_away = matches!(reason, CloseReason::Draining { .. });
        let early = sent_away && self.welcomed && !self.is_cut;
        must("a drain ends nobody who was welcomed before it is over", !early, || format!("{self:?}"));
        must("who is cut is told when to come", sent_away || !self.is_cut, || {
            format!("{reason:?}, {self:?}")
        });
        let told = self.hello_posted == self.closed_posted;
        must("a writer that was told of a session is told of its end", told, || format!("{self:?}"));
    }
}

/// Notes of a process.
#[derive(Debug, Default)]
pub(crate) struct ProcessWatch {
    /// Sessions that were granted and have not ended for the writer.
    live: BTreeMap<SessionKey, (NodeId, SessionEpoch)>,
    /// Sessions whose node was read to have a newer one.
    outlived: BTreeSet<(NodeId, SessionEpoch)>,
    /// Announced capacities, of sessions whose Hello was posted.
    capacities: BTreeMap<SessionKey, (NodeId, BTreeMap<LaneName, Credits>)>,
    /// When the last attempt began that made or kept the lease this process's.
    pub(crate) lease_good_since: Option<Moment>,
    /// When the lease became this process's last.
    pub(crate) acquired_at: Moment,
    /// Grants that were committed and heard of, and not told yet.
    committed: BTreeMap<(NodeId, SessionEpoch), HelloGrant>,
    /// Sessions that ended and are not written so.
    owed: BTreeMap<(NodeId, SessionEpoch), Moment>,
    /// The last attempt of each command that an outcome has told to be over.
    over: BTreeMap<CommandId, Attempt>,
    /// What a writer may hold for in flight: of older sessions too, so it may be more than there is.
    held: BTreeMap<(NodeId, LaneName), BTreeMap<CommandId, Attempt>>,
    answers: Answers,
    /// What updates told to be in flight on a lane of a live session, since its Hello or its last reading.
    told: BTreeMap<(NodeId, LaneName), BTreeSet<CommandId>>,
    /// When a spec was given to a session.
    given: BTreeMap<(SessionKey, SpecName, Generation), Moment>,
    /// Since when its shards were told to send their nodes away, or to stop.
    pub(crate) leaves_since: Option<Moment>,
    /// The control API asked for that, and may take it back; and whether it ever did ask.
    pub(crate) stands: bool,
    pub(crate) has_stood: bool,
    opens: Opens,
    pub(crate) company: Company,
}

/// An account of the tokens over opens: so many as there are, and since when.
#[derive(Debug, Default)]
struct Opens {
    tokens: Option<f64>,
    at: Moment,
}

impl ProcessWatch {
    /// The writer is given this.
    pub(crate) fn handle_message(&mut self, message: &ToWriter, now: Moment) {
        match message {
            ToWriter::Hello(request) => {
                let lanes = request.hello.lanes.iter().map(|lane| (lane.lane.clone(), lane.capacity));
                self.capacities.insert(request.key, (request.identity.node.clone(), lanes.collect()));
            }
            ToWriter::Credit { key, change, .. } => {
                if let Some((_, lanes)) = self.capacities.get_mut(key) {
                    lanes.insert(change.lane.clone(), change.capacity);
                }
            }
            ToWriter::Closed { key, .. } => {
                self.owe(*key, now);
                self.answers.forget(*key);
                self.capacities.remove(key);
                self.given.retain(|(of, ..), _| of != key);
            }
            _ => {}
        }
    }

    /// The writer hears that these Hellos committed. Gives sessions that must be over soon: whatever becomes of
    /// the new ones, or of a certificate that was quarantined, these are fenced.
    pub(crate) fn handle_hellos(
        &mut self,
        nodes: &[NodeId],
        outcomes: &[HelloOutcome],
        now: Moment,
    ) -> Vec<SessionKey> {
        let mut fenced = Vec::new();
        for (node, outcome) in nodes.iter().zip(outcomes) {
            match outcome {
                HelloOutcome::Granted(grant) => {
                    self.committed.insert((node.clone(), grant.epoch), (**grant).clone());
                    for held in &grant.in_flight {
                        self.hold(node, &held.lane, held.id, held.attempt);
                    }
                    self.owed.insert((node.clone(), grant.epoch), now);
                }
                HelloOutcome::Quarantined(_) => {}
                HelloOutcome::Refused(_) => continue,
            }
            let of_node = self.live.iter().filter(|(_, (of, _))| of == node);
            fenced.extend(of_node.map(|(key, _)| *key));
        }
        fenced
    }

    /// The writer hears what became of these.
    pub(crate) fn handle_updates(&mut self, entries: &[UpdateRequest], outcomes: &[UpdateOutcome]) {
        for (entry, outcome) in entries.iter().zip(outcomes) {
            self.answers.expect(entry.key, outcome);
            let attempt = entry.update.attempt;
            for ((_, _), ids) in self.told.iter_mut().filter(|((node, _), _)| *node == entry.node) {
                ids.remove(&entry.update.id);
            }
            let last = match outcome {
                // One that has expired may be undone by its node.
                UpdateOutcome::Stored { state: CommandState::Expired, .. } => continue,
                UpdateOutcome::Stored { state, .. } if !state.is_in_flight() => attempt,
                UpdateOutcome::Stored { lane, .. } => {
                    // An end that nobody was sent has yielded to a node that began.
                    if self.over.get(&entry.update.id).is_some_and(|over| *over <= attempt) {
                        self.over.remove(&entry.update.id);
                    }
                    if self.live.values().any(|(node, _)| *node == entry.node) {
                        let place = (entry.node.clone(), lane.clone());
                        self.told.entry(place).or_default().insert(entry.update.id);
                    }
                    self.hold(&entry.node, lane, entry.update.id, attempt);
                    continue;
                }
                UpdateOutcome::OldAttempt { current } => Attempt(current.0 - 1),
                _ => continue,
            };
            let over = self.over.entry(entry.update.id).or_insert(last);
            *over = last.max(*over);
            let (id, over) = (entry.update.id, *over);
            for ((of, _), held) in &mut self.held {
                if *of == entry.node {
                    held.retain(|held, attempt| *held != id || *attempt > over);
                }
            }
        }
    }

    /// The writer hears what is in flight on these lanes.
    pub(crate) fn handle_reading(&mut self, lane: &LaneRead, state: &LaneState) {
        self.told.remove(&(lane.node.clone(), lane.lane.clone()));
        if !state.is_live {
            self.outlived.insert((lane.node.clone(), lane.epoch));
        }
        for Command { id, attempt, .. } in &state.in_flight {
            self.hold(&lane.node, &lane.lane, *id, *attempt);
        }
    }

    /// The writer hears that the node has this.
    pub(crate) fn hold(&mut self, node: &NodeId, lane: &LaneName, id: CommandId, attempt: Attempt) {
        if self.over.get(&id).is_none_or(|over| *over < attempt) {
            let held =
                self.held.entry((node.clone(), lane.clone())).or_default().entry(id).or_insert(attempt);
            *held = attempt.max(*held);
        }
    }

    /// The writer hears that these are written.
    pub(crate) fn handle_presence(&mut self, entries: &[PresenceEntry]) {
        for entry in entries {
            // Liveness of a session says that the older ones are over.
            let is_end = matches!(entry, PresenceEntry::Disconnected { .. });
            let covers = |epoch: SessionEpoch| epoch < entry.epoch() || (is_end && epoch == entry.epoch());
            self.owed.retain(|(node, epoch), _| node != entry.node() || !covers(*epoch));
        }
    }

    /// Whatever ended a while ago was written.
    pub(crate) fn check_owed(&self, long_ago: Moment) {
        let late = self.owed.iter().find(|(_, since)| **since < long_ago);
        must("a session that ended is written so", late.is_none(), || {
            format!("{late:?} before {long_ago:?}")
        });
    }

    fn owe(&mut self, key: SessionKey, now: Moment) {
        if let Some((node, epoch)) = self.live.remove(&key) {
            self.owed.insert((node, epoch), now);
        }
    }

    /// The writer tells shards this. Gives sessions that must be over soon.
    pub(crate) fn handle_told(&mut self, message: &ToShard, now: Moment) -> Vec<SessionKey> {
        self.answers.check(message);
        match message {
            ToShard::Session { key, news: SessionNews::Granted(granted) } => {
                let node = self.capacities.get(key).map(|(node, _)| node.clone());
                must("who is granted said Hello, and is not over", node.is_some(), || format!("{key:?}"));
                must("a session is granted once", !self.live.contains_key(key), || format!("{granted:?}"));
                if let Some(node) = node {
                    self.check_grant(&node, granted);
                    self.owed.retain(|(of, epoch), _| *of != node || *epoch > granted.epoch);
                    self.enter(*key, node, granted.epoch);
                }
                Vec::new()
            }
            ToShard::Session { key, news: SessionNews::Close(reason) } => {
                // Of a quarantined certificate's two sessions one was never entered.
                if matches!(reason, CloseReason::Superseded | CloseReason::NotPermitted(_)) {
                    self.live.remove(key);
                    return vec![*key];
                }
                Vec::new()
            }
            ToShard::Session { key, news: SessionNews::Commands(commands) } => {
                let outlived = self.live.get(key).is_some_and(|session| self.outlived.contains(session));
                must("who lost its node is sent nothing", !outlived, || format!("{commands:?} to {key:?}"));
                for command in commands {
                    let over = self.over.get(&command.id).is_some_and(|over| *over >= command.attempt);
                    must("what is known to be over is not sent", !over, || format!("{command:?} to {key:?}"));
                }
                Vec::new()
            }
            ToShard::Session { key, news: SessionNews::Specs(specs) } => {
                for spec in specs {
                    let before = self.given.insert((*key, spec.name.clone(), spec.generation), now);
                    let again = before.is_some_and(|before| now.since(before) < SPECS_AGAIN_AFTER);
                    must("a spec is sent again only after a sweep", !again, || {
                        format!("{} at {} to {key:?}, {before:?}, {now:?}", spec.name, spec.generation)
                    });
                }
                Vec::new()
            }
            ToShard::Serving(true) => {
                must("who leaves takes no new sessions", self.leaves_since.is_none(), || {
                    format!("at {now:?}")
                });
                Vec::new()
            }
            ToShard::Drain(_) | ToShard::Stop => {
                self.leaves_since.get_or_insert(now);
                Vec::new()
            }
            ToShard::CloseAll(_) => {
                self.told.clear();
                let keys: Vec<SessionKey> = self.live.keys().copied().collect();
                keys.into_iter().for_each(|key| self.owe(key, now));
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// A sweep of all specs was asked for: each that has no answer may be sent again.
    pub(crate) fn handle_spec_sweep(&mut self) {
        self.given.clear();
    }

    fn check_grant(&mut self, node: &NodeId, told: &Granted) {
        let grant = self.committed.remove(&(node.clone(), told.epoch));
        let is_told = |grant: &HelloGrant| {
            grant.replays == told.replays
                && grant.cancels == told.cancels
                && grant.inventory_wanted == told.inventory_wanted
                && (grant.journal_acked, grant.server_time) == (told.journal_acked, told.server_time)
        };
        must("a grant is told as it was committed", grant.as_ref().is_some_and(is_told), || {
            format!("{told:?}, not {grant:?}")
        });
    }

    fn enter(&mut self, key: SessionKey, node: NodeId, epoch: SessionEpoch) {
        let older: BTreeSet<&SessionKey> =
            self.live.iter().filter(|(_, (of, _))| *of == node).map(|(key, _)| key).collect();
        must("a writer has one session of a node", older.is_empty(), || {
            format!("{older:?} and {key:?} of {node}")
        });
        self.told.retain(|(of, _), _| *of != node);
        self.live.insert(key, (node, epoch));
    }

    pub(crate) fn live(&self) -> usize {
        self.live.len()
    }

    /// Somebody asked to open a stream; `counted` are the streams and the Hellos that wait, by admission.
    pub(crate) fn check_open(
        &mut self,
        asked: &Result<(), CloseReason>,
        counted: (usize, usize),
        limits: &Limits,
        now: Moment,
    ) {
        // A token comes at a whole number of nanoseconds.
        const ROUNDING: f64 = 1e-3;
        let burst = f64::from(limits.opens_burst);
        let earned = now.since(self.opens.at).as_secs_f64() * f64::from(limits.opens_per_second);
        let tokens = self.opens.tokens.map_or(burst, |before| (before + earned).min(burst));
        self.opens = Opens { tokens: Some(tokens - f64::from(u8::from(asked.is_ok()))), at: now };
        let right = match asked {
            Ok(()) => tokens >= 1.0 - ROUNDING,
            Err(CloseReason::Refused { bound, .. }) => match bound {
                AdmissionBound::OpensPerSecond => tokens < 1.0 + ROUNDING,
                AdmissionBound::JoinsPerSecond | AdmissionBound::Relays | AdmissionBound::Tunnels => false,
                AdmissionBound::Streams => counted.0 == limits.streams,
                AdmissionBound::PendingHellos => counted.1 == limits.pending_hellos,
            },
            Err(_) => false,
        };
        must("a stream is refused where a bound is hit, and only there", right, || {
            format!("{asked:?} with {tokens} tokens and {counted:?}")
        });
    }

    /// A pass asks for this.
    pub(crate) fn check_want(&self, want: &LaneWant) {
        let of_node = |(_, (node, epoch)): &(&SessionKey, &(NodeId, SessionEpoch))| {
            *node == want.node && *epoch == want.epoch
        };
        let key = self.live.iter().find(of_node).map(|(key, _)| key);
        must("a lane is asked for while its session lives", key.is_some(), || format!("{want:?}"));
        let announced =
            key.and_then(|key| self.capacities.get(key)).and_then(|(_, lanes)| lanes.get(&want.lane));
        let held = self.held.get(&(want.node.clone(), want.lane.clone())).map_or(0, BTreeMap::len);
        must("what is over takes no credit", want.in_flight.0 as usize <= held, || {
            format!("{want:?}: {:?}", self.held)
        });
        let told = self.told.get(&(want.node.clone(), want.lane.clone()));
        let all = told.is_none_or(|told| told.len() <= want.in_flight.0 as usize);
        must("what is told to be in flight takes credit", all, || format!("{want:?}: {told:?}"));
        must("a lane is asked for with its last capacity", announced == Some(&want.capacity), || {
            format!("{want:?}, announced {announced:?}")
        });
    }
}
