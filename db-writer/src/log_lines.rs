//! The lines that an operator would act on, each on the change and not every time.
//!
//! Owns what was said last. Never decides anything, and never logs what a peer sent.
//!
//! 1. A queue that fails says so once, and once that it works again.
//! 2. After the first failure comes one line that all is clear: when no queue fails any more, or the lease, whose job
//!    never ceases, is renewed again. A queue whose jobs were given up has nothing to succeed with.
//! 3. A queue that finds its connection dead a moment after that tells of the outage that is over: no second line.

use std::time::{Duration, Instant};

use gateway_core::ids::GatewayId;
use gateway_core::store::{HelloOutcome, LeaseOutcome, Outcome, Queue, Routed, StoreError};
use gateway_core::writer::Phase;

/// What fails within this time of an end of an outage, and no longer than this, is of that outage.
const AFTERMATH: Duration = Duration::from_secs(15);

/// What was said last, so that it is not said again.
#[derive(Debug)]
pub(crate) struct LogLines {
    gateway: GatewayId,
    phase: Phase,
    failing: [bool; Queue::ALL.len()],
    /// When the first of those that fail began to.
    failing_since: Option<Instant>,
    cleared_at: Option<Instant>,
    other_owner: Option<String>,
    leads_sweeps: bool,
    left_out: usize,
}

impl LogLines {
    pub(crate) fn new(gateway: GatewayId) -> Self {
        Self {
            gateway,
            phase: Phase::Waiting,
            failing: [false; Queue::ALL.len()],
            failing_since: None,
            cleared_at: None,
            other_owner: None,
            leads_sweeps: false,
            left_out: 0,
        }
    }

    /// A job has an outcome.
    pub(crate) fn note_outcome(&mut self, outcome: &Outcome) {
        let queue = outcome.queue();
        let failing = &mut self.failing[queue as usize];
        match outcome.error() {
            // An entry's own fault; its session is told.
            Some(StoreError::Rejected(error)) => {
                tracing::info!(
                    queue = queue.label(),
                    error,
                    "the database refused a batch; looking for the entry"
                );
            }
            Some(error) if !*failing => {
                *failing = true;
                self.failing_since.get_or_insert_with(Instant::now);
                tracing::warn!(queue = queue.label(), %error, "a job failed; trying again");
            }
            Some(_) => {}
            None if *failing => {
                *failing = false;
                tracing::info!(queue = queue.label(), "jobs commit again");
                if queue == Queue::Lease || !self.failing.contains(&true) {
                    self.note_all_clear();
                }
            }
            None => {}
        }
        if let Outcome::Hellos(Ok(Routed::Committed(hellos))) = outcome {
            for hello in hellos {
                let HelloOutcome::Quarantined(identity) = hello else { continue };
                tracing::warn!(
                    gateway = %self.gateway,
                    node = identity.node.as_str(),
                    serial = identity.certificate_serial,
                    "a certificate is quarantined, since two machines use it in turn: see node_certs where \
                     revoked_reason = 'duplicate-identity'"
                );
            }
        }
        if let Outcome::Lease(Ok(lease)) = outcome {
            self.note_lease(lease);
        }
    }

    fn note_all_clear(&mut self) {
        // A queue that fails for a reason of its own still does.
        let Some(since) = self.failing_since.take() else { return };
        let is_aftermath =
            self.cleared_at.is_some_and(|cleared| since.saturating_duration_since(cleared) < AFTERMATH)
                && since.elapsed() < AFTERMATH;
        self.cleared_at = Some(Instant::now());
        if !is_aftermath {
            let seconds = since.elapsed().as_secs();
            tracing::info!(
                gateway = %self.gateway,
                seconds,
                "all clear: the database is back after {seconds} s"
            );
        }
    }

    fn note_lease(&mut self, lease: &LeaseOutcome) {
        match lease {
            LeaseOutcome::HeldByOther { owner, expires_in } => {
                if self.other_owner.as_ref() != Some(owner) {
                    tracing::warn!(
                        gateway = %self.gateway,
                        owner,
                        expires_in_ms = expires_in.as_millis() as u64,
                        "another process holds this gateway's lease; waiting for it to end. Two gateways must not \
                         have the same gateway.id"
                    );
                    self.other_owner = Some(owner.clone());
                }
            }
            LeaseOutcome::Held { .. } | LeaseOutcome::Released => self.other_owner = None,
        }
    }

    /// Whether this gateway sweeps for all may have changed.
    pub(crate) fn note_lead(&mut self, leads: bool) {
        match (self.leads_sweeps, leads) {
            (false, true) => tracing::info!(gateway = %self.gateway, "sweeping for all gateways"),
            (true, false) => tracing::info!(gateway = %self.gateway, "no longer sweeping for all gateways"),
            _ => {}
        }
        self.leads_sweeps = leads;
    }

    /// More certificates may be revoked than are remembered.
    pub(crate) fn note_left_out(&mut self, left_out: usize) {
        if left_out > 0 && self.left_out == 0 {
            tracing::error!(
                gateway = %self.gateway,
                left_out,
                "more certificates are revoked than are remembered: Hellos of those left out are refused, but their \
                 sessions are not ended; delete the rows of node_certs that have expired"
            );
        }
        self.left_out = left_out;
    }

    /// The writer's phase may have changed. Gives whether it has.
    pub(crate) fn note_phase(&mut self, phase: Phase) -> bool {
        if phase == self.phase {
            return false;
        }
        match (self.phase, phase) {
            (Phase::Draining, Phase::Serving) => {
                tracing::info!(gateway = %self.gateway, "undrained: new sessions are taken again");
            }
            (_, Phase::Serving) => tracing::info!(gateway = %self.gateway, "lease held; serving"),
            (_, Phase::Draining) => {
                tracing::info!(
                    gateway = %self.gateway,
                    "draining: nodes are told to move to another gateway, new sessions are refused"
                );
            }
            (Phase::Serving | Phase::Draining, Phase::Waiting) => {
                tracing::error!(
                    gateway = %self.gateway,
                    "fenced: the lease could not be renewed in time; every session was closed, and a new lease is \
                     being asked for"
                );
            }
            (_, Phase::Stopping) => tracing::info!(gateway = %self.gateway, "stopping"),
            (_, Phase::Stopped) => tracing::info!(gateway = %self.gateway, "stopped"),
            (_, Phase::Waiting) => {}
        }
        self.phase = phase;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::{Sender, channel};

    use gateway_core::ids::NodeId;
    use gateway_core::seam::Identity;

    use super::*;

    struct Line(Sender<Vec<u8>>);

    impl Write for Line {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            self.0.send(line.to_owned()).expect("the test listens");
            Ok(line.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn lines_of(said: impl FnOnce(&mut LogLines)) -> Vec<String> {
        let (sender, lines) = channel();
        let log =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || Line(sender.clone())).finish();
        tracing::subscriber::with_default(log, || {
            said(&mut LogLines::new(GatewayId::new("g").expect("a gateway")));
        });
        lines.try_iter().map(|line| String::from_utf8(line).expect("text")).collect()
    }

    #[test]
    fn an_outage_ends_with_one_line_though_a_queue_has_nothing_left_to_succeed_with() {
        let away = || StoreError::Retry("away".into());
        let renewed = || Outcome::Lease(Ok(LeaseOutcome::Released));
        let all_clear = |lines: &[String]| lines.iter().filter(|line| line.contains("all clear")).count();
        let lines = lines_of(|lines| {
            lines.note_outcome(&renewed());
            lines.note_outcome(&Outcome::Statuses(Err(away())));
            lines.note_outcome(&Outcome::Lease(Err(away())));
            lines.note_outcome(&Outcome::Lease(Err(away())));
        });
        assert_eq!((lines.len(), all_clear(&lines)), (2, 0), "{lines:?}");
        let lines = lines_of(|lines| {
            lines.note_outcome(&Outcome::Statuses(Err(away())));
            lines.note_outcome(&Outcome::Lease(Err(away())));
            lines.note_outcome(&renewed());
            lines.note_outcome(&Outcome::Statuses(Ok(Vec::new())));
        });
        assert_eq!(all_clear(&lines), 1, "the lease is renewed: {lines:?}");
        let lines = lines_of(|lines| {
            lines.note_outcome(&Outcome::Statuses(Err(away())));
            lines.note_outcome(&Outcome::Updates(Err(away())));
            lines.note_outcome(&Outcome::Statuses(Ok(Vec::new())));
            assert!(lines.failing_since.is_some(), "one fails still");
            lines.note_outcome(&Outcome::Updates(Ok(Vec::new())));
            lines.note_outcome(&Outcome::Updates(Ok(Vec::new())));
        });
        assert_eq!(all_clear(&lines), 1, "none fails: {lines:?}");
    }

    #[test]
    fn what_fails_right_after_an_outage_is_of_it_and_a_later_outage_has_its_own_end() {
        let away = || StoreError::Retry("away".into());
        let all_clear = |lines: &[String]| lines.iter().filter(|line| line.contains("all clear")).count();
        let outage = |lines: &mut LogLines| {
            lines.note_outcome(&Outcome::Lease(Err(away())));
            lines.note_outcome(&Outcome::Lease(Ok(LeaseOutcome::Released)));
        };
        let aftermath = |lines: &mut LogLines| {
            lines.note_outcome(&Outcome::Statuses(Err(away())));
            lines.note_outcome(&Outcome::Statuses(Ok(Vec::new())));
        };
        let told = lines_of(|lines| {
            outage(lines);
            aftermath(lines);
        });
        assert_eq!(all_clear(&told), 1, "{told:?}");
        assert!(told.iter().any(|line| line.contains("the database is back after 0 s")), "{told:?}");
        let told = lines_of(|lines| {
            outage(lines);
            lines.cleared_at = Instant::now().checked_sub(AFTERMATH);
            aftermath(lines);
        });
        assert_eq!(all_clear(&told), 2, "it was long ago: {told:?}");
        let told = lines_of(|lines| {
            outage(lines);
            lines.note_outcome(&Outcome::Statuses(Err(away())));
            lines.failing_since = Instant::now().checked_sub(AFTERMATH);
            lines.note_outcome(&Outcome::Statuses(Ok(Vec::new())));
        });
        assert_eq!(all_clear(&told), 2, "it took long: {told:?}");
    }

    #[test]
    fn a_quarantine_names_the_node_and_the_certificate() {
        let identity = Identity {
            node: NodeId::new("n-7").expect("a node"),
            site: String::new(),
            certificate_serial: "5A07".to_owned(),
        };
        let outcome = HelloOutcome::Quarantined(Box::new(identity));
        let lines = lines_of(|lines| {
            lines.note_outcome(&Outcome::Hellos(Ok(Routed::Committed(vec![outcome]))));
        });
        let [line] = &lines[..] else { panic!("one line alone: {lines:?}") };
        assert!(line.contains("node=\"n-7\"") && line.contains("serial=\"5A07\""), "{line}");
    }
}
