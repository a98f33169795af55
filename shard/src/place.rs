//! A connection's place among those that its peer may have.
//!
//! 1. A place is given back once, when the connection is over.

use std::rc::Rc;

use gateway_core::revocation::SerialKey;

use crate::shard::Shard;
use crate::stream::Peer;

pub(crate) struct Place {
    shard: Rc<Shard>,
    /// `None`: of those who showed no certificate of a node.
    certificate: Option<SerialKey>,
}

impl Place {
    /// Takes one for a connection of this peer, if one is free.
    pub(crate) fn take(shard: &Rc<Shard>, peer: &Peer) -> Option<Self> {
        let certificate = match peer {
            Peer::Node(certificate) => Some(certificate.serial),
            Peer::Anonymous | Peer::Unproven(_) => None,
        };
        let may_stay = match certificate {
            Some(serial) => shard.crowd.borrow_mut().handle_arrival(serial),
            None => shard.admission.handle_anonymous(shard.clock.now()),
        };
        if !may_stay {
            shard.counters.refused_connections.one_more();
            return None;
        }
        Some(Self { shard: Rc::clone(shard), certificate })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        match self.certificate {
            Some(serial) => self.shard.crowd.borrow_mut().handle_departure(serial),
            None => self.shard.admission.handle_anonymous_left(),
        }
    }
}
