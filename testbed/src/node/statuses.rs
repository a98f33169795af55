//! What a node wants known outside of its journal: kept until answered, over sessions, and sent again.
//!
//! Its refs begin with the bits 001: those of events begin with 1, of specs with 010, of sections with 011.
//!
//! 1. A status is kept until it is acked or rejected; after each `Welcome` all that are kept go again.
//! 2. Within a session each is sent once.

use bytes::Bytes;
use gateway_proto::v1::Status;

/// Marks refs of statuses.
const REF_BIT: u64 = 1 << 61;

/// The statuses of one node that were not answered yet.
#[derive(Debug, Default)]
pub(super) struct Statuses {
    kept: Vec<Status>,
    /// How many of them were sent in this session.
    sent: usize,
    last_ref: u64,
}

impl Statuses {
    /// Adds one, to be sent.
    pub(super) fn add(&mut self, id: String, kind: String, body: Bytes) {
        self.last_ref += 1;
        self.kept.push(Status { r#ref: REF_BIT | self.last_ref, id, kind, body });
    }

    /// `Welcome` came: all that are kept go again.
    pub(super) fn handle_welcome(&mut self) {
        self.sent = 0;
    }

    /// The next to be sent in this session.
    pub(super) fn next(&mut self) -> Option<Status> {
        let status = self.kept.get(self.sent)?.clone();
        self.sent += 1;
        Some(status)
    }

    /// An answer came; gives the id if it is that of a status.
    pub(super) fn settle(&mut self, frame_ref: u64) -> Option<String> {
        let place = self.kept.iter().position(|status| status.r#ref == frame_ref)?;
        self.sent -= usize::from(place < self.sent);
        Some(self.kept.remove(place).id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_answered_goes_again_in_the_next_session() {
        let mut statuses = Statuses::default();
        statuses.add("a".into(), "kind".into(), Bytes::new());
        statuses.add("b".into(), "kind".into(), Bytes::new());
        let first = statuses.next().expect("a status");
        let second = statuses.next().expect("a status");
        assert_eq!(statuses.next(), None);
        assert_eq!(statuses.settle(first.r#ref).as_deref(), Some("a"));
        assert_eq!(statuses.settle(7), None, "an update's ref");
        statuses.add("c".into(), "kind".into(), Bytes::new());
        assert_eq!(statuses.next().map(|status| status.id).as_deref(), Some("c"));
        statuses.handle_welcome();
        assert_eq!(statuses.next(), Some(second), "under the same ref");
    }
}
