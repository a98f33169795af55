//! What the writer says, brought to the sessions that it is for, and what the relays answer, to their calls. What the
//! control API asks is answered here.
//!
//! 1. Mail is left in a session's slot and its connection is woken; what it means is the session's.
//! 2. Others have their turn every `MAIL_PER_TURN` messages.
//! 3. A writer that is gone is a reason to stop.
//! 4. While the shard stops its mail is taken and dropped, so that the writer never finds it full.

use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Context;

use gateway_core::mail::{Inbox, Weigh};
use gateway_core::revocation::{Revocation, SerialKey};
use gateway_core::seam::ToShard;

use crate::bell::Wish;
use crate::executor;
use crate::rest::RousingWaker;
use crate::shard::{Mail, Shard, Stage};

const MAIL_PER_TURN: usize = 64;

/// Why a shard stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopCause {
    Asked,
    WriterGone,
}

/// Delivers until the shard is to stop.
pub(crate) async fn run(shard: &Rc<Shard>, inbox: &Inbox<ToShard>) -> StopCause {
    let (mut taken, mut rousing) = (0, RousingWaker::default());
    loop {
        let next = match inbox.take() {
            Some(message) => Some(message),
            None => {
                inbox.announce_space();
                poll_fn(|context| {
                    shard.counters.mail_looks.one_more();
                    shard.counters.mail_waiting.set(inbox.len() as u64);
                    let rousing = rousing.of(context.waker(), &shard.rest);
                    inbox.poll_take(&mut Context::from_waker(rousing))
                })
                .await
            }
        };
        shard.rest.note_activity();
        let Some(message) = next else { return StopCause::WriterGone };
        inbox.release_bytes(message.weight_bytes());
        match message {
            ToShard::Session { key, news } => shard.deliver(key, Mail::News(news)),
            ToShard::Serving(true) => shard.set_stage(Stage::Serving),
            ToShard::Serving(false) => shard.set_stage(Stage::Closed),
            ToShard::CloseAll(reason) => tell_all(shard, || Mail::End(reason.clone())).await,
            ToShard::Revoked { set, added } => {
                shard.listener_tls.set_revoked(set);
                revoke(shard, &added).await;
            }
            ToShard::Drain(order) => {
                shard.set_stage(Stage::Draining(order));
                tell_all(shard, || Mail::Drain(order)).await;
                // After the sessions have their mail: each connection then first carries what they say.
                shard.ask_connections(Wish::Renounce);
            }
            ToShard::Cut(order) => tell_all(shard, || Mail::Cut(order)).await,
            ToShard::Relayed(answer) => shard.relays.deliver(*answer),
            ToShard::Tunnel(word) => shard.tunnels.deliver(shard, word),
            ToShard::Vitals(ask) => shard.answer_vitals(*ask),
            ToShard::Stop => return StopCause::Asked,
        }
        shard.counters.mail_taken.one_more();
        taken += 1;
        if taken % MAIL_PER_TURN == 0 {
            shard.counters.mail_waiting.set(inbox.len() as u64);
            inbox.announce_space();
            executor::yield_now().await;
        }
    }
}

/// Drops what comes, for ever.
pub(crate) async fn drain(inbox: &Inbox<ToShard>) {
    while let Some(message) = poll_fn(|context| inbox.poll_take(context)).await {
        inbox.release_bytes(message.weight_bytes());
        inbox.announce_space();
    }
    std::future::pending().await
}

/// Ends the tunnels and the sessions of these certificates. New ones are refused by the set, which came before.
async fn revoke(shard: &Rc<Shard>, added: &[Revocation]) {
    let added: HashMap<SerialKey, &Revocation> =
        added.iter().map(|revocation| (SerialKey::of(&revocation.serial), revocation)).collect();
    shard.tunnels.revoke(&added.keys().copied().collect());
    let revoked: Vec<_> =
        shard.sessions().into_iter().filter_map(|(key, serial)| Some((key, *added.get(&serial)?))).collect();
    for some in revoked.chunks(MAIL_PER_TURN) {
        for (key, revocation) in some {
            shard.deliver(*key, Mail::Revoked(Box::new((*revocation).clone())));
        }
        executor::yield_now().await;
    }
}

/// Leaves mail for every session that there is now.
pub(crate) async fn tell_all(shard: &Rc<Shard>, mail: impl Fn() -> Mail) {
    for keys in shard.sessions().chunks(MAIL_PER_TURN) {
        for (key, _) in keys {
            shard.deliver(*key, mail());
        }
        executor::yield_now().await;
    }
}
