//! The boxes between the threads of a gateway, made together.
//!
//! 1. A shard's box has one post for the writer, one for the relays, one for the tunnels, one for the control
//!    API, and one that only rings it.
//! 2. A shard learns that its writer is gone only when all of them are: whoever holds one lets go of it when
//!    the gateway ends.

use gateway_core::limits::{Limits, MAX_RELAY_BYTES};
use gateway_core::mail::{Inbox, Post, mailbox};
use gateway_core::relay::RelayRequest;
use gateway_core::seam::{ToShard, ToWriter};
use gateway_core::tunnel::ToTunnels;
use gateway_db_writer::{DeskInbox, DeskPost, desk};
use gateway_shard::TlsNews;
use gateway_shard::local::{Visitors, VisitorsInbox, visitors};

/// Calls that may wait until the relays look; those that wait for a service wait elsewhere.
const RELAY_MESSAGES: usize = 1024;

/// What shards have for the tunnels' room: a few turns' worth, beyond which their tunnels wait.
const TUNNEL_MESSAGES: usize = 4096;
const TUNNEL_BYTES: usize = 16 << 20;

/// Sets of TLS files on their way to one shard.
const TLS_NEWS_AT_ONCE: usize = 4;

pub(super) struct Mail {
    pub(super) writer: WriterMail,
    pub(super) rooms: RoomMail,
    /// Sets of TLS files that were read anew.
    pub(super) tls_posts: Vec<Post<TlsNews>>,
    /// Sessions of nodes in this process.
    pub(super) visitors: Visitors,
    /// To ring the shards, for the watchdog; nothing is posted through them.
    pub(super) bells: Vec<Post<ToShard>>,
    /// One for each shard, in order.
    pub(super) seats: Vec<Seat>,
}

/// What the writer has of the boxes.
pub(super) struct WriterMail {
    pub(super) inbox: Inbox<ToWriter>,
    pub(super) desk: DeskInbox,
    pub(super) to_shards: Vec<Post<ToShard>>,
}

/// What the rooms of the control thread have of them.
pub(super) struct RoomMail {
    pub(super) relay_inbox: Inbox<RelayRequest>,
    pub(super) relays_to_shards: Vec<Post<ToShard>>,
    pub(super) tunnel_inbox: Inbox<ToTunnels>,
    pub(super) tunnels_to_shards: Vec<Post<ToShard>>,
    /// Where the control API asks the writer.
    pub(super) desk: DeskPost,
    pub(super) control_to_shards: Vec<Post<ToShard>>,
}

/// What one shard has of the boxes.
pub(super) struct Seat {
    pub(super) inbox: Inbox<ToShard>,
    pub(super) to_writer: Post<ToWriter>,
    pub(super) to_relays: Post<RelayRequest>,
    pub(super) to_tunnels: Post<ToTunnels>,
    pub(super) tls_news: Inbox<TlsNews>,
    pub(super) visitors: VisitorsInbox,
}

impl Mail {
    pub(super) fn new(limits: &Limits, shards: usize) -> Self {
        let (to_writer, writer_inbox) = mailbox(limits.to_writer_messages, limits.to_writer_bytes, shards);
        let (to_relays, relay_inbox) = mailbox(RELAY_MESSAGES, MAX_RELAY_BYTES, shards);
        let (mut to_shards, mut relays_to_shards, mut bells) = (Vec::new(), Vec::new(), Vec::new());
        let (to_tunnels, tunnel_inbox) = mailbox(TUNNEL_MESSAGES, TUNNEL_BYTES, shards);
        let (mut control_to_shards, mut tls_posts) = (Vec::new(), Vec::new());
        let mut tunnels_to_shards = Vec::new();
        let (visitors, visits) = visitors(shards);
        let rooms = to_writer.into_iter().zip(to_relays).zip(to_tunnels).zip(visits);
        let seats = rooms.map(|(((to_writer, to_relays), to_tunnels), visitors)| {
            let (mut posts, inbox) = mailbox(limits.to_shard_messages, usize::MAX, 5);
            tunnels_to_shards.extend(posts.pop());
            bells.extend(posts.pop());
            control_to_shards.extend(posts.pop());
            relays_to_shards.extend(posts.pop());
            to_shards.extend(posts.pop());
            let (posts, tls_news) = mailbox(TLS_NEWS_AT_ONCE, usize::MAX, 1);
            tls_posts.extend(posts);
            Seat { inbox, to_writer, to_relays, to_tunnels, tls_news, visitors }
        });
        let seats = seats.collect();
        let (desk, desk_inbox) = desk();
        Self {
            writer: WriterMail { inbox: writer_inbox, desk: desk_inbox, to_shards },
            rooms: RoomMail {
                relay_inbox,
                relays_to_shards,
                tunnel_inbox,
                tunnels_to_shards,
                desk,
                control_to_shards,
            },
            tls_posts,
            visitors,
            bells,
            seats,
        }
    }
}
