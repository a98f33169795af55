//! Which node has its live session where.
//!
//! Owns the map node → session of this gateway, both ways. Never decides who supersedes whom: it is
//! told, in the order in which Hellos became durable.
//!
//! 1. A node has at most one live session here: the one of its last durable Hello.
//! 2. A session enters with its Hello's commit and leaves with `Closed`, a newer Hello, another
//!    gateway's Hello, or the fence; a key that left never comes back.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use super::lanes::LaneId;
use crate::ids::{NodeId, SessionEpoch, SessionKey};

#[derive(Debug)]
pub(super) struct LiveSession {
    pub(super) key: SessionKey,
    pub(super) node: NodeId,
    pub(super) epoch: SessionEpoch,
    pub(super) lanes: Vec<LaneId>,
    /// Entries of this session that no batch could store.
    pub(super) bad_entries: u32,
}

#[derive(Debug, Default)]
pub(super) struct Directory {
    sessions: BTreeMap<SessionKey, LiveSession>,
    // Only looked up, never iterated: its order is not deterministic.
    keys: HashMap<NodeId, SessionKey>,
}

impl Directory {
    /// Enters a session whose Hello is durable; gives the one of the same node that it supersedes.
    pub(super) fn enter(&mut self, session: LiveSession) -> Option<LiveSession> {
        let superseded = self.keys.get(&session.node).and_then(|key| self.sessions.remove(key));
        self.keys.insert(session.node.clone(), session.key);
        self.sessions.insert(session.key, session);
        superseded
    }

    pub(super) fn remove(&mut self, key: SessionKey) -> Option<LiveSession> {
        let session = self.sessions.remove(&key)?;
        self.keys.remove(&session.node);
        Some(session)
    }

    /// Empties the directory, in order of keys.
    pub(super) fn take_all(&mut self) -> Vec<LiveSession> {
        self.keys.clear();
        std::mem::take(&mut self.sessions).into_values().collect()
    }

    pub(super) fn get(&self, key: SessionKey) -> Option<&LiveSession> {
        self.sessions.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: SessionKey) -> Option<&mut LiveSession> {
        self.sessions.get_mut(&key)
    }

    pub(super) fn of_node(&self, node: &NodeId) -> Option<&LiveSession> {
        self.keys.get(node).and_then(|key| self.sessions.get(key))
    }

    /// The node's session, if its epoch is this one.
    pub(super) fn of_epoch(&self, node: &NodeId, epoch: SessionEpoch) -> Option<&LiveSession> {
        self.of_node(node).filter(|session| session.epoch == epoch)
    }

    /// The session that follows this key, or the first.
    pub(super) fn following(&self, after: Option<SessionKey>) -> Option<&LiveSession> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.sessions.range((from, Bound::Unbounded)).next().map(|(_, session)| session)
    }

    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ShardId;

    fn session(node: &str, slot: u32, epoch: u64) -> LiveSession {
        LiveSession {
            key: SessionKey { shard: ShardId(0), slot, serial: 1 },
            node: NodeId::new(node).expect("a node id"),
            epoch: SessionEpoch(epoch),
            lanes: Vec::new(),
            bad_entries: 0,
        }
    }

    #[test]
    fn a_newer_session_of_a_node_takes_the_place_of_the_older() {
        let mut directory = Directory::default();
        let (old, new) = (session("n", 1, 1), session("n", 2, 2));
        let (old_key, new_key) = (old.key, new.key);
        assert!(directory.enter(old).is_none());
        assert_eq!(directory.enter(new).map(|session| session.key), Some(old_key));
        assert!(directory.remove(old_key).is_none(), "the late Closed of the old session");
        let node = NodeId::new("n").expect("a node id");
        assert_eq!(directory.of_node(&node).map(|session| session.key), Some(new_key));
        assert!(directory.of_epoch(&node, SessionEpoch(1)).is_none());
        assert!(directory.remove(new_key).is_some());
        assert_eq!(directory.len(), 0);
        assert!(directory.of_node(&node).is_none());
    }
}
