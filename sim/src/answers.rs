//! What sessions must be told of their updates.
//!
//! Owns the outcomes that a writer has heard and not told yet, in their order. Changes nothing.
//!
//! 1. What became of an update is told as it was committed, each in its turn, also of those that were stored by one
//!    write.

use std::collections::{BTreeMap, VecDeque};

use gateway_core::frame::RejectCode;
use gateway_core::ids::SessionKey;
use gateway_core::seam::{SessionNews, ToShard};
use gateway_core::store::UpdateOutcome;

use crate::check::must;

/// Of one writer. What is for a session that a fence has ended stays, and is never asked for.
#[derive(Debug, Default)]
pub(crate) struct Answers(BTreeMap<SessionKey, VecDeque<UpdateOutcome>>);

impl Answers {
    /// The writer hears what became of an update.
    pub(crate) fn expect(&mut self, key: SessionKey, outcome: &UpdateOutcome) {
        self.0.entry(key).or_default().push_back(outcome.clone());
    }

    /// The writer tells a shard this.
    pub(crate) fn check(&mut self, message: &ToShard) {
        let ToShard::Session { key, news } = message else { return };
        let is_of_update = match news {
            SessionNews::Stored { state } => state.is_some(),
            // For any other reason it is told of what was not committed.
            SessionNews::NotStored { code, .. } => {
                matches!(code, RejectCode::UnknownCommand | RejectCode::OldAttempt)
            }
            _ => false,
        };
        if !is_of_update {
            return;
        }
        let outcome = self.0.get_mut(key).and_then(VecDeque::pop_front);
        let right = match (&outcome, news) {
            (Some(UpdateOutcome::Stored { state: is, .. }), SessionNews::Stored { state }) => {
                *state == Some(*is)
            }
            (Some(UpdateOutcome::UnknownCommand), SessionNews::NotStored { code, .. }) => {
                *code == RejectCode::UnknownCommand
            }
            (Some(UpdateOutcome::OldAttempt { .. }), SessionNews::NotStored { code, .. }) => {
                *code == RejectCode::OldAttempt
            }
            _ => false,
        };
        must("what became of an update is told as it was committed", right, || {
            format!("{news:?}, not {outcome:?}")
        });
    }

    /// The session is over.
    pub(crate) fn forget(&mut self, key: SessionKey) {
        self.0.remove(&key);
    }
}
