//! Simulated nodes in the process of their gateway: the testbed's nodes over `gateway::local`.
//!
//! 1. Nodes dial whichever gateway is there now; where none is, the dial fails as one to a closed port does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use gateway::GatewayHandle;
use gateway::local::{CallEnd, FrameConnection, FromGateway, LocalPeer, Taken};
use gateway_testbed::node::{Arrival, End, EndKind, LocalCall, LocalGateway, Sent};

/// A gateway in this process, perhaps another one later, and the serials of its nodes' certificates.
#[derive(Default)]
pub struct InProcess {
    gateway: Mutex<Option<GatewayHandle>>,
    serials: Mutex<HashMap<String, String>>,
}

impl InProcess {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// This one is dialled from now on; `None`: nobody is there.
    pub fn set(&self, gateway: Option<GatewayHandle>) {
        *self.gateway.lock().unwrap_or_else(PoisonError::into_inner) = gateway;
    }

    /// The serial of a node's certificate.
    pub fn know(&self, node: &str, serial: &str) {
        let mut serials = self.serials.lock().unwrap_or_else(PoisonError::into_inner);
        serials.insert(node.to_owned(), serial.to_owned());
    }
}

impl LocalGateway for InProcess {
    fn call(&self, node: &str) -> Result<Box<dyn LocalCall>, End> {
        let gateway = self.gateway.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let gateway = gateway.ok_or_else(|| lost("no gateway is there"))?;
        let serials = self.serials.lock().unwrap_or_else(PoisonError::into_inner);
        let peer = LocalPeer {
            node: node.to_owned(),
            certificate_serial: serials.get(node).cloned().unwrap_or_default(),
            ends_at: SystemTime::now() + Duration::from_secs(3600),
        };
        let connection = gateway.connect(peer).map_err(|refused| lost(&refused.to_string()))?;
        Ok(Box::new(Connection(connection)))
    }
}

#[derive(Debug)]
struct Connection(FrameConnection);

impl LocalCall for Connection {
    fn poll_send(&mut self, message: Bytes, cx: &mut Context<'_>) -> Sent {
        match self.0.sender.poll_send(message, cx) {
            Taken::Yes => Sent::Yes,
            Taken::Later(message) => Sent::Later(message),
            Taken::Gone => Sent::Gone,
        }
    }

    fn half_close(&mut self) {
        self.0.sender.finish();
    }

    fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<Arrival> {
        self.0.receiver.poll_recv(cx).map(|came| match came {
            FromGateway::Frame(frame) => Arrival::Message(frame),
            FromGateway::Ended(end) => Arrival::Ended(ended(end)),
        })
    }
}

fn ended(end: CallEnd) -> End {
    let kind = end.status.map_or(EndKind::Transport, |status| EndKind::Status(status.into()));
    End { kind, message: end.message, pushback: end.pushback, was_welcomed: false }
}

fn lost(message: &str) -> End {
    End { kind: EndKind::Transport, message: message.to_owned(), pushback: None, was_welcomed: false }
}
