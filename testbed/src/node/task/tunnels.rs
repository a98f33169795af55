//! What a node does about offers of tunnels: it refuses them on its session, or starts their tasks.
//!
//! 1. The ticket is looked at before anything is dialled.

use gateway_proto::v1::{OpenTunnel, TunnelRefused, node_frame::Frame};

use super::{NodeTask, Phase};
use crate::node::observer::NodeEvent;
use crate::node::tunnel;

impl NodeTask {
    pub(super) fn handle_offer(&mut self, open: OpenTunnel) {
        while self.tunnels.try_join_next().is_some() {}
        let Some(taker) = &self.options.tunnels else { return };
        if taker.ignores {
            return;
        }
        if let Some(reason) = taker.refusal(&open, &self.options.name) {
            self.tell(NodeEvent::TunnelRefused { reason: reason.clone() });
            return self.send(Frame::TunnelRefused(TunnelRefused { tunnel_id: open.tunnel_id, reason }));
        }
        let (name, observer) = (self.name.clone(), self.options.observer.clone());
        let (target, enrolment) = (self.session_target(), self.options.enrolment.clone());
        self.tunnels.spawn(async move {
            let target = match enrolment {
                Some(enrolment) => enrolment.dressed(&target).await.unwrap_or(target),
                None => target,
            };
            Box::pin(tunnel::serve(target, name, open, observer)).await;
        });
    }

    /// What `Hello` names.
    pub(super) fn features(&self) -> Vec<String> {
        let tunnels = self.options.tunnels.is_some() && !matches!(self.phase, Phase::Stopped);
        if tunnels { vec!["tunnels".to_owned()] } else { Vec::new() }
    }
}
