//! Why a session has ended: the reason, until its driver takes it, and the reason's label for ever after.
//!
//! The label is what the writer is told, which may come after the driver has taken the reason.
//!
//! 1. It takes no more room than the reason.

use crate::close::CloseReason;

#[derive(Debug, Default)]
pub(super) enum LastWord {
    #[default]
    Unsaid,
    Due(CloseReason),
    Said(&'static str),
}

impl LastWord {
    /// The reason, once.
    pub(super) fn poll(&mut self) -> Option<CloseReason> {
        let label = self.label();
        match std::mem::replace(self, Self::Said(label)) {
            Self::Due(reason) => Some(reason),
            before => {
                *self = before;
                None
            }
        }
    }

    /// Of a session that comes to its end by itself: that it has finished.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Unsaid => CloseReason::Finished.label(),
            Self::Due(reason) => reason.label(),
            Self::Said(label) => label,
        }
    }
}

const _: () = assert!(size_of::<LastWord>() == size_of::<CloseReason>());
