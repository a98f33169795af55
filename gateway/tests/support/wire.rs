//! A wire that can fall silent: a relay of bytes to one address whose connections stay open at both ends and carry nothing
//! more, as those of a peer whose machine has lost its network.
//!
//! 1. Whoever dials after the silence is relayed as before.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub struct Wire {
    /// Where to dial.
    pub address: SocketAddr,
    silences: watch::Sender<usize>,
    dialled: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Wire {
    pub async fn to(address: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own = listener.local_addr().expect("it is bound");
        let (silences, dialled, mut tasks) = (watch::Sender::new(0), Arc::default(), JoinSet::new());
        let (heard, count) = (silences.clone(), Arc::<AtomicUsize>::clone(&dialled));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let Ok(mut far) = TcpStream::connect(&address).await else { return };
                count.fetch_add(1, Ordering::SeqCst);
                let mut silence = heard.subscribe();
                connections.spawn(async move {
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = silence.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Self { address: own, silences, dialled, _tasks: tasks }
    }

    /// What is connected now carries nothing more.
    pub fn fall_silent(&self) {
        self.silences.send_modify(|silences| *silences += 1);
    }

    /// How many connections there were.
    pub fn dialled(&self) -> usize {
        self.dialled.load(Ordering::SeqCst)
    }
}
