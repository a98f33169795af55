//! Identities and counters. One newtype each, so that an epoch can't be passed for a seq.
//!
//! Text ids are `Arc<str>`: they are cloned onto every message that crosses a thread, and are
//! validated once, at construction.
//!
//! 1. A text id holds 1 to its maximum of bytes, none of them a control character (so PostgreSQL
//!    stores it and a log line shows it as it is).

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

/// Why a text is no id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("{what} is empty")]
    Empty { what: &'static str },
    #[error("{what} is {bytes} bytes long; at most {max} are allowed")]
    TooLong { what: &'static str, bytes: usize, max: usize },
    #[error("{what} holds a control character")]
    ControlCharacter { what: &'static str },
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Longest allowed, in bytes.
            pub const MAX_BYTES: usize = $max;

            /// Checks and takes `text`.
            pub fn new(text: &str) -> Result<Self, IdError> {
                if text.is_empty() {
                    return Err(IdError::Empty { what: $what });
                }
                if text.len() > Self::MAX_BYTES {
                    return Err(IdError::TooLong { what: $what, bytes: text.len(), max: Self::MAX_BYTES });
                }
                if text.chars().any(char::is_control) {
                    return Err(IdError::ControlCharacter { what: $what });
                }
                Ok(Self(Arc::from(text)))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?})", stringify!($name), &*self.0)
            }
        }
    };
}

text_id!(
    /// A node, by the SPIFFE URI of its certificate.
    NodeId, "a node id", 128
);
text_id!(
    /// A gateway, by its configuration. Short enough that `gw:<id>` is a channel name.
    GatewayId, "a gateway id", 48
);
text_id!(
    /// A lane of a node.
    LaneName, "a lane name", 64
);
text_id!(
    /// A node's journal of events.
    JournalId, "a journal id", 128
);
text_id!(
    /// A spec of a node.
    SpecName, "a spec name", 64
);
text_id!(
    /// A part of a node's inventory.
    SectionName, "a section name", 64
);

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter!(
    /// Which try of a command this is; the first is 1.
    Attempt(u32)
);
counter!(
    /// Bumped by every Hello of a node; fences what belongs to an older session.
    SessionEpoch(u64)
);
counter!(
    /// Bumped whenever the owner of a gateway's lease changes.
    LeaseEpoch(u64)
);
counter!(
    /// A command's place among its node's commands. Seq order is commit order for a node.
    LaneSeq(u64)
);
counter!(
    /// How many commands; of a lane: its capacity or what is free of it.
    Credits(u32)
);
counter!(
    /// The node's own name for one of its durable frames; the answer repeats it.
    FrameRef(u64)
);
counter!(
    /// A seq in a journal of events.
    EventSeq(u64)
);
counter!(
    /// Which body of a spec this is; the first is 1, and each change of it makes the next.
    Generation(u64)
);
counter!(
    /// A shard of this process.
    ShardId(u16)
);

/// A command, everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub Uuid);

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommandId({})", self.0)
    }
}

/// Where a session lives: its shard, its slot there, and the slot's serial, which tells a session
/// from the one that had the slot before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey {
    pub shard: ShardId,
    pub slot: u32,
    pub serial: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ids_refuse_what_could_not_be_stored_or_shown() {
        assert_eq!(NodeId::new(""), Err(IdError::Empty { what: "a node id" }));
        assert_eq!(LaneName::new("a\0b"), Err(IdError::ControlCharacter { what: "a lane name" }));
        assert!(LaneName::new(&"x".repeat(64)).is_ok());
        assert!(matches!(LaneName::new(&"x".repeat(65)), Err(IdError::TooLong { bytes: 65, max: 64, .. })));
    }
}
