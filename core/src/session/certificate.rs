//! What becomes of a session whose certificate does not count any more.
//!
//! 1. A revoked certificate ends its session at once, whatever it waits for; a node that was welcomed is sent
//!    `RevocationNotice` before the end, and nothing else of what waited.
//! 2. A certificate's expiry ends its session at that moment, whatever passes on it; the moment may move, since
//!    it is a time of day.

use super::{Phase, Session};
use crate::close::CloseReason;
use crate::frame::GatewayFrame;
use crate::revocation::Revocation;
use crate::time::Moment;

impl Session {
    /// The same session, of a certificate that ends then.
    #[must_use]
    pub fn with_expiry(mut self, expires_at: Moment) -> Self {
        self.expires_at = Some(expires_at);
        self
    }

    /// The certificate ends then, as the host's clock tells it now. Time that this machine slept, or by which its
    /// clock was set, does not pass for `Moment`: so it is told anew now and then.
    pub fn handle_expiry(&mut self, expires_at: Moment, now: Moment) {
        self.expires_at = Some(expires_at);
        self.check_expiry(now);
    }

    /// The session's certificate is revoked.
    pub fn handle_revoked(&mut self, revocation: &Revocation, now: Moment) {
        let hears = matches!(self.phase, Phase::Live | Phase::Finishing | Phase::Farewell);
        self.handle_close(revocation.close_reason(), now);
        if hears {
            self.outbox.push(GatewayFrame::RevocationNotice {
                reason: revocation.reason.clone(),
                serials: vec![revocation.serial.clone()],
            });
        }
    }

    pub(super) fn check_expiry(&mut self, now: Moment) {
        if self.expires_at.is_some_and(|at| now >= at) {
            self.handle_close(CloseReason::Expired, now);
        }
    }
}
