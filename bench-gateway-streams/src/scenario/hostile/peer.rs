//! The process of hostile peers: a few at once, each attacking again and again, until its standard input is
//! closed. Then it tells on its standard output what it saw.
//!
//! It is a process of its own so that its work is no load on the nodes that are measured, and it yields the
//! processor to them and to the gateway: what is measured is the gateway, not who gets a core.
//!
//! 1. Its last line is one JSON object: how often each end was seen, and calls that were counted.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::time::Duration;

use gateway_testbed::node::Target;
use gateway_testbed::pki::client_config_of;
use gateway_testbed::raw::{RawConnection, call_on, frame_type, http2_frame, small_hello};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::attacks::{attack, how, pause};
use crate::arguments::{Attack, Calls, HostilePeerArguments};
use crate::progress::print;

/// Attacks of one kind at once.
const AT_ONCE: usize = 4;
/// Opens on one connection: more requests in a row are a flood.
const OPENS_A_CONNECTION: u32 = 150;
const END_STREAM: u8 = 1;
const NICE: i32 = 10;
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// What the peers saw.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// How attacks ended, or calls, and how often.
    pub(crate) ends: BTreeMap<String, u64>,
    /// TLS handshakes that were done for it.
    pub(crate) handshakes: u64,
}

/// Runs until standard input is closed.
pub(crate) async fn serve(arguments: HostilePeerArguments) -> anyhow::Result<bool> {
    crate::host::allow_files(4096)?;
    // Where it may not, it competes as any other.
    let _ = rustix::process::nice(NICE);
    let tls = client_config_of(&arguments.server_ca, &arguments.certificate, &arguments.key)?;
    let target = Target::new(arguments.connect, tls);
    let (tell, mut told) = mpsc::unbounded_channel::<Seen>();
    let mut workers = JoinSet::new();
    for number in 0..AT_ONCE {
        let (target, tell) = (target.clone(), tell.clone());
        match (arguments.attack, arguments.calls) {
            // One worker holds all its connections, and one node has one session.
            (Some(Attack::IdleTcp), _) | (None, Some(Calls::Opens)) if number > 0 => {}
            (Some(kind), _) => drop(workers.spawn(attack_on(kind, target, number, tell))),
            (None, Some(Calls::Handshakes)) => drop(workers.spawn(shake(target, tell))),
            (None, Some(Calls::Opens)) => drop(workers.spawn(open(target, tell))),
            (None, None) => anyhow::bail!("--attack or --calls must be given"),
        }
    }
    let (closed, mut is_closed) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = closed.send(());
    });
    let mut tally = Tally::default();
    loop {
        tokio::select! {
            seen = told.recv() => {
                let Some(Seen { end, handshakes }) = seen else { break };
                tally.handshakes += handshakes;
                if let Some(end) = end {
                    *tally.ends.entry(end).or_default() += 1;
                }
            }
            _ = &mut is_closed => break,
        }
    }
    print(&serde_json::to_string(&tally)?);
    Ok(true)
}

struct Seen {
    end: Option<String>,
    handshakes: u64,
}

async fn attack_on(kind: Attack, target: Target, number: usize, tell: mpsc::UnboundedSender<Seen>) {
    for turn in 0.. {
        let end = Some(Box::pin(attack(kind, &target, number + AT_ONCE * turn)).await);
        if tell.send(Seen { end, handshakes: 0 }).is_err() {
            return;
        }
        pause().await;
    }
}

async fn shake(target: Target, tell: mpsc::UnboundedSender<Seen>) {
    loop {
        let end = match Box::pin(RawConnection::open(&target)).await {
            // A client of TLS 1.3 is through before its certificate was looked at: one round trip more tells.
            Ok(mut connection) => {
                let _ = connection.start_http2().await;
                match connection.read_some(ANSWER_WITHIN).await {
                    Ok(_) => "served".to_owned(),
                    Err(end) => how(&end),
                }
            }
            Err(end) => how(&end),
        };
        if tell.send(Seen { end: Some(end), handshakes: 1 }).is_err() {
            return;
        }
    }
}

/// Sessions of one node, one after the other, on as few connections as may be.
async fn open(target: Target, tell: mpsc::UnboundedSender<Seen>) {
    loop {
        let Ok(mut connection) = Box::pin(RawConnection::open(&target)).await else {
            pause().await;
            continue;
        };
        if connection.start_http2().await.is_err() || tell.send(Seen { end: None, handshakes: 1 }).is_err() {
            return;
        }
        let mut frames = Vec::new();
        for index in 0..OPENS_A_CONNECTION {
            let stream = 2 * index + 1;
            let mut bytes = call_on(stream);
            bytes.extend(http2_frame(frame_type::DATA, END_STREAM, stream, &small_hello()));
            if connection.write(&bytes).await.is_err() {
                break;
            }
            let Some(end) = end_of(&mut connection, stream, &mut frames).await else { break };
            if tell.send(Seen { end: Some(end.to_owned()), handshakes: 0 }).is_err() {
                return;
            }
        }
    }
}

/// How a stream ended: a refusal is its first and only frame.
async fn end_of(connection: &mut RawConnection, stream: u32, left: &mut Vec<u8>) -> Option<&'static str> {
    let mut has_headers = false;
    loop {
        while let [a, b, c, kind, flags, s0, s1, s2, s3, rest @ ..] = &left[..] {
            let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            if rest.len() < length {
                break;
            }
            if u32::from_be_bytes([*s0, *s1, *s2, *s3]) == stream {
                match (*kind, flags & END_STREAM != 0) {
                    (frame_type::HEADERS, true) if has_headers => return Some("welcomed"),
                    (frame_type::HEADERS, true) => return Some("refused"),
                    (frame_type::RST_STREAM, _) => return Some("reset"),
                    (frame_type::HEADERS, false) => has_headers = true,
                    _ => {}
                }
            }
            let whole = 9 + length;
            left.drain(..whole);
        }
        left.extend(connection.read_some(ANSWER_WITHIN).await.ok()?);
    }
}
