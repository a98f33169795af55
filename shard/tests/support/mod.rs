//! What the stories of this crate share: shards on loopback, a stand-in for the writer that answers
//! at once and records all that it was told, a throw-away PKI, and a plain HTTP/2 client.
//!
//! Whatever must happen has a deadline here, so that a story fails instead of hanging. It reads no
//! database and decides nothing: what the writer would refuse is for the story to say.
#![allow(dead_code, unreachable_pub, missing_debug_implementations, clippy::unwrap_used)]

pub mod client;
pub mod pki;
pub mod relays;
pub mod writer;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway_core::admission::Admission;
use gateway_core::ids::ShardId;
use gateway_core::limits::Limits;
use gateway_core::mail::{Inbox, Post, mailbox};
use gateway_core::seam::ToShard;
use gateway_core::time::Moment;
use gateway_core::tunnel::ToTunnels;
use gateway_shard::local::{LocalPeer, Visitors, visitors};
use gateway_shard::tls::TlsMaterial;
use gateway_shard::{
    IdentityRules, ShardConfig, ShardCounters, ShardHandle, TlsNews, bind_reuse_port, spawn,
};

use client::Client;
use pki::{NodeCertificate, Pki};
use relays::Relays;
use writer::Writer;

/// How long anything that must happen may take here.
pub const SOON: Duration = Duration::from_secs(20);

/// Shards with all that is around them.
pub struct Gateway {
    pub addr: SocketAddr,
    pub pki: Pki,
    pub writer: Writer,
    pub relays: Relays,
    /// What the tunnels' room is told.
    pub tunnels: Inbox<ToTunnels>,
    pub admission: Arc<Admission>,
    pub counters: Vec<Arc<ShardCounters>>,
    pub posts: Vec<Post<ToShard>>,
    pub tls_posts: Vec<Post<TlsNews>>,
    pub visitors: Arc<Visitors>,
    shards: Vec<ShardHandle>,
}

impl Gateway {
    /// One serving shard with these limits.
    pub fn start(limits: Limits) -> Self {
        Self::start_shards(limits, 1)
    }

    /// That many serving shards on one port. To be called within a tokio runtime.
    pub fn start_shards(limits: Limits, count: u16) -> Self {
        Self::start_with(limits, count, Duration::ZERO, &[])
    }

    /// The same with this leeway for certificates out of their time, and with further node roots (PEM).
    pub fn start_with(limits: Limits, count: u16, leeway: Duration, more_roots: &[u8]) -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter("gateway_shard=debug,warn")
            .with_test_writer()
            .try_init();
        let pki = Pki::new();
        let limits = Arc::new(limits);
        let started = Instant::now();
        let admission = Arc::new(Admission::new(&limits, Moment::default()));
        let (writer_posts, writer_inbox) =
            mailbox(limits.to_writer_messages, limits.to_writer_bytes, usize::from(count));
        let (mut relay_posts, relay_inbox) = mailbox(4, 1 << 20, usize::from(count));
        let (mut tunnel_posts, tunnels) = mailbox(4, 1 << 20, usize::from(count));
        let roots = [&pki.roots, more_roots].concat();
        let tls = TlsMaterial::new(&pki.server_chain, &pki.server_key, &roots, leeway).unwrap();
        let tls = Arc::new(tls);
        let mut addr: SocketAddr = ([127, 0, 0, 1], 0).into();
        let (mut shards, mut counters) = (Vec::new(), Vec::new());
        let (mut posts, mut writers_posts, mut relays_posts) = (Vec::new(), Vec::new(), Vec::new());
        let mut tls_posts = Vec::new();
        let (visitors, mut visits) = visitors(usize::from(count));
        visits.reverse();
        for (index, writer) in writer_posts.into_iter().enumerate() {
            let listener = bind_reuse_port(addr, 8192).unwrap();
            addr = listener.local_addr().unwrap();
            let (mut shard_posts, inbox) = mailbox(limits.to_shard_messages, 1 << 20, 3);
            posts.push(shard_posts.pop().unwrap());
            writers_posts.push(shard_posts.pop().unwrap());
            relays_posts.push(shard_posts.pop().unwrap());
            let (mut news, tls_news) = mailbox(4, usize::MAX, 1);
            tls_posts.push(news.pop().unwrap());
            counters.push(Arc::<ShardCounters>::default());
            let config = ShardConfig {
                shard: ShardId(index as u16),
                cpu: None,
                started,
                limits: Arc::clone(&limits),
                admission: Arc::clone(&admission),
                tls: Arc::clone(&tls),
                websocket: true,
                tls_news,
                visitors: visits.pop().unwrap(),
                identity: Arc::new(
                    IdentityRules::new(Some("test.example"), gateway_shard::DEFAULT_PATH).unwrap(),
                ),
                listener,
                writer,
                inbox,
                relays: relay_posts.pop().unwrap(),
                tunnels: tunnel_posts.pop().unwrap(),
                counters: Arc::clone(&counters[index]),
                spin: Duration::ZERO,
                doze: Duration::from_millis(40),
            };
            shards.push(spawn(config).unwrap());
        }
        let gateway = Self {
            addr,
            pki,
            writer: Writer::start(writer_inbox, writers_posts),
            relays: Relays::new(relay_inbox, relays_posts),
            tunnels,
            admission,
            counters,
            posts,
            tls_posts,
            visitors: Arc::new(visitors),
            shards,
        };
        gateway.tell_all(|| ToShard::Serving(true));
        let begun = Instant::now();
        while gateway.sum(|counters| counters.mail_taken.get()) < u64::from(count) {
            assert!(
                begun.elapsed() < SOON,
                "the shards take their mail: {:?}",
                gateway.sum(|counters| counters.mail_looks.get())
            );
            std::thread::yield_now();
        }
        gateway
    }

    /// Posts the same to every shard.
    pub fn tell_all(&self, message: impl Fn() -> ToShard) {
        for post in &self.posts {
            post.post(message()).unwrap();
            post.ring();
        }
    }

    /// Posts the same to every shard and waits until it was taken.
    pub async fn tell_all_and_wait(&self, message: impl Fn() -> ToShard) {
        let before = self.sum(|counters| counters.mail_taken.get());
        self.tell_all(message);
        let all = before + self.posts.len() as u64;
        until("the mail is taken", || self.sum(|counters| counters.mail_taken.get()) >= all).await;
    }

    /// A connection of a node with a good certificate.
    pub async fn node(&self, name: &str) -> Client {
        self.connect(Some(&self.pki.node(name))).await
    }

    /// A node in this process, with a certificate of the same serial as those of `Pki`.
    pub fn peer(&self, name: &str) -> LocalPeer {
        LocalPeer {
            node: format!("spiffe://test.example/site/lab/node/{name}"),
            certificate_serial: "ABC01".to_owned(),
            ends_at: std::time::SystemTime::now() + Duration::from_secs(3600),
        }
    }

    pub async fn connect(&self, certificate: Option<&NodeCertificate>) -> Client {
        Client::connect(self.addr, &self.pki.roots, certificate).await.unwrap()
    }

    /// Stops the shards and gives the outcome of each.
    pub async fn stop(mut self) -> (Vec<Result<(), gateway_shard::ShardError>>, Writer) {
        self.tell_all(|| ToShard::Stop);
        let shards = std::mem::take(&mut self.shards);
        let joined = Self::joined(shards);
        (soon(joined).await, self.writer)
    }

    /// The shards die; gives the outcome of each.
    pub async fn crash(&mut self) -> Vec<Result<(), gateway_shard::ShardError>> {
        self.visitors.crash();
        soon(Self::joined(std::mem::take(&mut self.shards))).await
    }

    async fn joined(shards: Vec<ShardHandle>) -> Vec<Result<(), gateway_shard::ShardError>> {
        let joined = tokio::task::spawn_blocking(|| shards.into_iter().map(ShardHandle::join).collect());
        joined.await.unwrap()
    }

    pub fn sum(&self, of: impl Fn(&ShardCounters) -> u64) -> u64 {
        self.counters.iter().map(|counters| of(counters)).sum()
    }
}

/// Runs a story on a runtime of one thread.
pub fn story(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, work);
}

/// What must come soon.
pub async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("it must come soon")
}

/// Waits until a condition that another thread brings about holds. Counters ring no bell.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < SOON, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
