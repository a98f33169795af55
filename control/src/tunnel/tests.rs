//! Stories of the room by itself.
//!
//! 1. No shard and no socket is needed: what it would send is read from its channels.

use gateway_core::mail::mailbox;

use super::*;

#[tokio::test]
async fn a_caller_that_breaks_the_protocol_is_told_how_as_its_node_is() {
    let (_posts, inbox) = mailbox::<ToTunnels>(16, 1 << 20, 1);
    let (_door, mut room) = Room::new(TunnelConfig {
        inbox,
        to_shards: Vec::new(),
        limits: Arc::default(),
        started: Instant::now(),
        keys: None,
        iam: None,
        audience: "gateway".to_owned(),
        keys_max_age: Duration::from_secs(60),
        keys_timeout: Duration::from_secs(1),
        taken_within: Duration::from_secs(1),
        status: Arc::default(),
    });
    let id = TunnelId([1; 16]);
    let ((frames, _of_node), (grants, _granted)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let (cut, is_cut) = oneshot::channel();
    room.hands.live.insert(id, Live { opening: None, frames, cut: Some(cut), grants, receivers: None });
    let close = broken("a message is no TunnelFrame");
    room.hands.handle_ask(Ask::Ended(id, close.clone()));
    assert_eq!(is_cut.await, Ok(close));
    assert!(room.hands.live.is_empty());
}
