//! How a shard ends: listener first, then sessions, connections, and what is owed to the writer. Or at once.
//!
//! 1. Nothing is accepted once it began, and no connection outlives it.
//! 2. Peers get `FAREWELL_TIMEOUT` to take their last frames; then they are cut.
//! 3. `ShardStopped` is the last message to the writer, after every `Closed`.
//! 4. A shard that dies tells nobody anything: its peers see their connections end, as when a process is killed.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, select};
use gateway_core::close::CloseReason;
use gateway_core::seam::ToWriter;

use crate::bell::Wish;
use crate::executor::{self, ListenerKey};
use crate::mailbox;
use crate::shard::{Mail, Shard, Stage};

/// What peers may take to read their last frames.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);
/// What the writer may take to make room for the last messages.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(5);

/// The writer made no room for what was owed to it.
#[derive(Debug)]
pub(crate) struct HandoverFailed;

/// Ends all that a shard does.
pub(crate) async fn run(shard: &Rc<Shard>, listener: ListenerKey) -> Result<(), HandoverFailed> {
    shard.set_stage(Stage::Stopping);
    // The accept that is under way ends with an error, and the kernel forgets the listener.
    listener.close();
    shard.handshakes.wake_acceptor();
    mailbox::tell_all(shard, || Mail::End(CloseReason::Stopping)).await;
    shard.ask_connections(Wish::Leave);
    if !in_time(FAREWELL_TIMEOUT, shard.connections_gone()).await {
        tracing::info!(shard = shard.id.0, "peers that did not take their farewell are cut");
        shard.ask_connections(Wish::Quit);
        shard.connections_gone().await;
    }
    shard.outbound.send(ToWriter::ShardStopped { shard: shard.id });
    let handed_over = in_time(HANDOVER_TIMEOUT, shard.outbound.flushed()).await;
    shard.outbound.ring();
    if handed_over { Ok(()) } else { Err(HandoverFailed) }
}

/// Ends all that a shard does as the end of its process would.
pub(crate) async fn die(shard: &Rc<Shard>, listener: ListenerKey) {
    shard.set_stage(Stage::Stopping);
    listener.close();
    shard.handshakes.wake_acceptor();
    shard.ask_connections(Wish::Quit);
    shard.connections_gone().await;
}

async fn in_time(limit: Duration, work: impl Future<Output = ()>) -> bool {
    let (work, sleep) = (std::pin::pin!(work), std::pin::pin!(executor::sleep(limit)));
    matches!(select(work, sleep).await, Either::Left(_))
}
