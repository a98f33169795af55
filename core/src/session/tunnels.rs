//! What a session has to do with tunnels: its node is told of one, and may refuse it.
//!
//! The tunnel itself is a stream of its own; what a session knows is what it was offered.
//!
//! 1. A node is offered tunnels only while it is live, and only if it named the feature.
//! 2. A refusal counts once, and only of what was offered here; any other is dropped.
//! 3. What is remembered is bounded; a session that was never offered a tunnel keeps nothing.

use std::collections::VecDeque;

use super::{Phase, Session};
use crate::frame::{GatewayFrame, Welcome};
use crate::time::Moment;
use crate::tunnel::close::MAX_REASON_BYTES;
use crate::tunnel::{MAX_OFFERS_REMEMBERED, OpenTunnel, TUNNELS_FEATURE, TunnelId, TunnelRefused};

#[derive(Debug, Default)]
pub(super) struct SessionTunnels {
    /// The node named the feature, and the gateway offers it.
    takes: bool,
    offers: Option<Box<Offers>>,
}

#[derive(Debug, Default)]
struct Offers {
    open: VecDeque<TunnelId>,
    refused: VecDeque<TunnelRefused>,
}

impl SessionTunnels {
    pub(super) fn handle_hello(&mut self, features: &[String], are_offered: bool) {
        self.takes = are_offered && features.iter().any(|feature| feature == TUNNELS_FEATURE);
    }

    /// What `Welcome` names of it: nothing to who did not name it.
    pub(super) fn fill_in(&self, welcome: &mut Welcome) {
        if self.takes {
            welcome.features.push(TUNNELS_FEATURE);
        } else {
            welcome.tunnel_address = None;
        }
    }

    pub(super) fn handle_refused(&mut self, mut refused: TunnelRefused) {
        let Some(offers) = &mut self.offers else { return };
        let Some(at) = offers.open.iter().position(|id| *id == refused.id) else { return };
        offers.open.remove(at);
        refused.reason.truncate(refused.reason.floor_char_boundary(MAX_REASON_BYTES));
        offers.refused.push_back(refused);
    }
}

impl Session {
    /// The node may open this tunnel. Whether it is told so.
    pub fn handle_offer(&mut self, open: OpenTunnel, now: Moment) -> bool {
        if !self.takes_tunnels() {
            return false;
        }
        let offers = self.tunnels.offers.get_or_insert_default();
        if offers.open.len() == MAX_OFFERS_REMEMBERED {
            offers.open.pop_front();
        }
        offers.open.push_back(open.id);
        self.outbox.push(GatewayFrame::OpenTunnel(Box::new(open)));
        self.settle(now);
        true
    }

    /// A refusal of the node's, to be told to the tunnels' room.
    pub fn poll_to_tunnels(&mut self) -> Option<TunnelRefused> {
        self.tunnels.offers.as_mut()?.refused.pop_front()
    }

    /// Whether the node may be offered tunnels now.
    pub fn takes_tunnels(&self) -> bool {
        self.tunnels.takes && self.phase == Phase::Live
    }
}
