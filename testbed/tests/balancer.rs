//! What `configs/haproxy.cfg` promises of HAProxy, held against HAProxy itself: who gets sessions, who keeps
//! them, and whose are cut.
//!
//! Behind it stand three listeners that say their number and then say back what they hear, each with a
//! control port whose answer the story sets. A gateway is not needed to see what the balancer does.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use gateway_testbed::balancer::{Balancer, BalancerOptions, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const SOON: Duration = Duration::from_secs(20);

struct Behind {
    server: Server,
    /// The HTTP status of its control port.
    code: Arc<AtomicU16>,
    tasks: Vec<JoinHandle<()>>,
}

async fn behind(number: u8) -> Behind {
    let (sessions, control) =
        (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let server = Server { address: sessions.local_addr().unwrap(), control: control.local_addr().unwrap() };
    let code = Arc::new(AtomicU16::new(200));
    let answer = Arc::clone(&code);
    let answering = tokio::spawn(async move {
        while let Ok((mut stream, _)) = control.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            let text = format!("HTTP/1.1 {} x\r\ncontent-length: 0\r\n\r\n", answer.load(Ordering::Relaxed));
            let _ = stream.write_all(text.as_bytes()).await;
        }
    });
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = sessions.accept().await {
            tokio::spawn(async move {
                let _ = stream.write_all(&[number]).await;
                let mut heard = [0];
                while stream.read_exact(&mut heard).await.is_ok() {
                    let _ = stream.write_all(&heard).await;
                }
            });
        }
    });
    Behind { server, code, tasks: vec![answering, serving] }
}

/// A session, and whose it is.
async fn session(address: SocketAddr) -> (TcpStream, usize) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut number = [0];
    stream.read_exact(&mut number).await.unwrap();
    (stream, usize::from(number[0]))
}

async fn stands(stream: &mut TcpStream) -> bool {
    let mut heard = [0];
    stream.write_all(b"?").await.is_ok() && stream.read_exact(&mut heard).await.is_ok()
}

// HAProxy tells nobody when it has changed its mind, so this asks.
async fn until_status(balancer: &Balancer, server: usize, wanted: &str) {
    let started = Instant::now();
    loop {
        let states = balancer.servers().await.unwrap();
        if states[server].status.starts_with(wanted) {
            return;
        }
        assert!(started.elapsed() < SOON, "server {server} is not {wanted}: {states:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn who_is_not_ready_keeps_its_sessions_and_who_is_gone_has_them_cut() {
    let folder = tempfile::tempdir().unwrap();
    let mut behinds = [behind(0).await, behind(1).await, behind(2).await];
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let servers = behinds.iter().map(|one| one.server).collect();
    let options = BalancerOptions { dir: folder.path().to_owned(), listen: free, servers };
    let balancer = Balancer::start(options).await.unwrap();
    let mut sessions = Vec::new();
    for _ in 0..6 {
        sessions.push(session(balancer.address()).await);
    }
    for number in 0..3 {
        let count = sessions.iter().filter(|one| one.1 == number).count();
        assert_eq!(count, 2, "each new one goes to who has the fewest");
    }

    // It says 503, as a gateway that is fenced or stops.
    behinds[0].code.store(503, Ordering::Relaxed);
    until_status(&balancer, 0, "NOLB").await;
    for _ in 0..6 {
        assert_ne!(session(balancer.address()).await.1, 0, "one that is not ready gets no new session");
    }
    for (stream, number) in &mut sessions {
        assert!(stands(stream).await, "a session of {number} ended");
    }
    behinds[0].code.store(200, Ordering::Relaxed);
    until_status(&balancer, 0, "UP").await;

    // It is gone without a word to those that it had: its ports are closed, its sockets stand.
    for task in behinds[1].tasks.drain(..) {
        task.abort();
    }
    until_status(&balancer, 1, "DOWN").await;
    for (stream, number) in &mut sessions {
        assert_eq!(stands(stream).await, *number != 1, "those of the one that is gone are cut, no others");
    }
    assert_ne!(session(balancer.address()).await.1, 1);
}
