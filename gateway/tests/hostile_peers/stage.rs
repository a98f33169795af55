//! What stories of hostile peers share: a gateway with one shard, a node that behaves on it, and what
//! both must look like when the hostile peers are gone.
//!
//! 1. The node that behaves executes commands and beats all the time; each story ends only after a
//!    command of it was settled and a heartbeat acked that came after the story's begin.
//! 2. It has one session from the first to the last moment.
//! 3. At the end the gateway holds no more descriptors, connections and sessions than at the begin.

use std::pin::Pin;
use std::time::Duration;

use gateway_proto::framing::PREFIX_BYTES;
use gateway_proto::path;
use gateway_proto::v1::{Heartbeat, Hello, Lane, Welcome, gateway_frame, node_frame::Frame};
use gateway_testbed::clock::monotonic_ns;
use gateway_testbed::gateway_process::GatewayProcess;
use gateway_testbed::node::{End, Node, Target};
use gateway_testbed::raw::RawCall;
use http::HeaderMap;
use serde_json::Value;
use uuid::Uuid;

use crate::support::health::{control_address, get, health};
use crate::support::load::Load;
use crate::support::{SOON, World, asked_until, measured, within};

/// gRPC codes that these stories look for.
pub const OK: u32 = 0;
pub const INVALID_ARGUMENT: u32 = 3;
pub const UNIMPLEMENTED: u32 = 12;
pub const UNAUTHENTICATED: u32 = 16;

/// Commands a second for the node that behaves.
const COMMANDS_PER_SECOND: usize = 40;
/// Three without an ack and it gives its gateway up: its own thread may be busy for a while.
const BEAT: Duration = Duration::from_millis(250);
/// The longest that the node that behaves may see nothing of its gateway, on a machine that others
/// use too.
const LONGEST_GAP: Duration = Duration::from_secs(4);

/// One gateway, one node that behaves.
pub struct Stage {
    pub world: World,
    pub gateway: GatewayProcess,
    pub control: String,
    good: Node,
    load: Load,
    opened_ns: u64,
    baseline: Held,
}

/// What a gateway holds for its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    connections: u64,
    sessions: u64,
}

impl Stage {
    /// With `extra` TOML; the shard is one, so that all peers are on it.
    pub async fn open(story: &str, extra: &str) -> Self {
        let world = World::new(story).await;
        // The first sweep opens a connection that the baseline below would not know.
        let mut options = world.options("g", &format!("{extra}\n[sweeps]\nevery = '300s'\n"));
        options.shards = Some(1);
        let gateway = world.start(options).await;
        let mut database = world.connect().await;
        let control = control_address(&mut database, "g").await;
        let good = world.node("good", "g", |options| options.heartbeat = Some(BEAT)).await;
        let load = Load::start(database, vec![good.name().to_owned()], COMMANDS_PER_SECOND, b"done".to_vec());
        let nothing = Held { descriptors: 0, connections: 0, sessions: 0 };
        let mut stage =
            Self { world, gateway, control, good, load, opened_ns: monotonic_ns(), baseline: nothing };
        // A session that came and went has opened all that is opened once.
        let target = stage.peer("first").await;
        stage
            .story("a session comes and goes", async {
                let (mut call, _) = welcomed(&target, hello()).await;
                call.half_close();
                ends(&mut call, OK, "").await;
            })
            .await;
        stage.baseline = asked_until(SOON, "the gateway holds the one session alone", async || {
            let held = stage.held().await;
            (held.connections == 1 && held.sessions == 1).then_some(held)
        })
        .await;
        stage
    }

    /// A registered node; where and as whom it dials.
    pub async fn peer(&self, name: &str) -> Target {
        let identity = self.world.register(name).await;
        self.world.target("g", &identity)
    }

    /// Plays a story: what the hostile do, while the node that behaves must go on.
    ///
    /// Boxed, since stories are large and many are awaited in one function.
    pub fn story<'a, T: 'a>(
        &'a self,
        what: &'a str,
        hostile: impl Future<Output = T> + 'a,
    ) -> Pin<Box<dyn Future<Output = T> + 'a>> {
        Box::pin(self.play(what, hostile))
    }

    async fn play<T>(&self, what: &str, hostile: impl Future<Output = T>) -> T {
        let since = monotonic_ns();
        let sentence = format!("while {what}, the node that behaves is acked and its command is done");
        let goes_on = self.world.watch.until(SOON, &sentence, |seen| {
            let name = self.good.name();
            let beat = seen.beats.iter().rev().find(|(node, ..)| &**node == name);
            let done = seen.settled.iter().rev().find(|one| &*one.node == name);
            (beat?.1 > since && done?.at_ns > since).then_some(())
        });
        let (outcome, ()) = tokio::join!(hostile, goes_on);
        assert_eq!(self.drops(), 0, "while {what}, the session of the node that behaves ended");
        outcome
    }

    /// A counter of the shard.
    pub async fn counter(&self, name: &str) -> u64 {
        counter(&health(&self.control).await.1, name)
    }

    /// Waits until a counter of the shard is at least `least`.
    pub async fn counted(&self, name: &str, least: u64) {
        asked_until(SOON, &format!("{name} reaches {least}"), async || {
            (self.counter(name).await >= least).then_some(())
        })
        .await;
    }

    /// Waits until at least so many sessions have ended for this reason.
    pub async fn closed(&self, reason: &str, least: u64) {
        let label = format!("reason=\"{reason}\"");
        asked_until(SOON, &format!("{least} sessions end as {reason}"), async || {
            let metrics = get(&self.control, "/metrics").await.1;
            let counts = metrics.lines().filter(|line| line.contains(&label));
            let sum: f64 = counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum();
            (sum >= least as f64).then_some(())
        })
        .await;
    }

    /// The end: nothing of the hostile is left, and the node that behaves missed nothing.
    pub async fn close(self) {
        let left = asked_until(SOON, "what hostile peers held is given back", async || {
            let held = self.held().await;
            let is_back = held.descriptors <= self.baseline.descriptors
                && held.connections <= self.baseline.connections
                && held.sessions <= self.baseline.sessions;
            is_back.then_some(held)
        });
        let left = tokio::time::timeout(SOON, left).await;
        match left {
            Ok(left) => assert_eq!((left.connections, left.sessions), (1, 1), "{left:?}"),
            Err(_) => panic!("at first the gateway held {:?}, now {:?}", self.baseline, self.held().await),
        }
        assert_eq!(self.counter("panics").await, 0, "a panic was contained; see the log");

        let ids = self.load.stop().await;
        let watch = &self.world.watch;
        watch.all_settled(&ids, SOON).await;
        let name = self.good.name();
        watch.look(|seen| {
            let mut started: Vec<Uuid> =
                seen.started.iter().filter(|(node, ..)| &**node == name).map(|(_, id, _)| *id).collect();
            let count = started.len();
            started.sort_unstable();
            started.dedup();
            assert_eq!((count, started.len()), (ids.len(), ids.len()), "every command ran once");
            let mut at: Vec<u64> = vec![self.opened_ns];
            at.extend(seen.beats.iter().filter(|(node, ..)| &**node == name).map(|(_, at, _)| *at));
            let gap = at.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0);
            let gap = Duration::from_nanos(gap);
            measured("longest time between two acks of the node that behaves", format!("{gap:?}"));
            assert!(gap < LONGEST_GAP, "the node that behaves heard nothing for {gap:?}");
        });
        let usage = self.gateway.usage().unwrap();
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        measured("resident memory, peak", format!("{}, {}", mib(usage.rss_bytes), mib(usage.rss_peak_bytes)));
    }

    fn drops(&self) -> usize {
        let name = self.good.name();
        self.world.watch.look(|seen| seen.drops().filter(|ended| &*ended.node == name).count())
    }

    async fn held(&self) -> Held {
        let health = health(&self.control).await.1;
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.gateway.pid())).unwrap().count();
        Held {
            descriptors,
            connections: counter(&health, "connections"),
            sessions: counter(&health, "sessions"),
        }
    }
}

fn counter(health: &Value, name: &str) -> u64 {
    let counters = &health["shards"][0]["counters"];
    counters[name].as_u64().unwrap_or_else(|| panic!("no counter {name} in {counters}"))
}

/// A Hello that nothing is wrong with, with one lane that takes no command.
pub fn hello() -> Hello {
    Hello {
        protocol: 1,
        boot_id: Uuid::new_v4().to_string(),
        machine: "machine".to_owned(),
        lanes: vec![Lane { name: "default".to_owned(), capacity: 0 }],
        ..Hello::default()
    }
}

/// A gRPC prefix.
pub fn prefix(flag: u8, length: u32) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = length.to_be_bytes();
    [flag, a, b, c, d]
}

/// Opens a session that says nothing yet.
pub async fn opened(target: &Target) -> RawCall {
    let opening = RawCall::open(target, path::SESSION, HeaderMap::new());
    within(SOON, "a stream is opened", opening).await.unwrap()
}

/// Opens a session and says Hello.
pub async fn welcomed(target: &Target, hello: Hello) -> (RawCall, Welcome) {
    let mut call = opened(target).await;
    call.send(Frame::Hello(hello));
    match answer(&mut call).await {
        gateway_frame::Frame::Welcome(welcome) => (call, welcome),
        other => panic!("the first frame is {other:?}, not a Welcome"),
    }
}

/// The next frame of the gateway.
pub async fn answer(call: &mut RawCall) -> gateway_frame::Frame {
    match call.frame(SOON).await {
        Some(Ok(frame)) => frame.frame.expect("a known arm"),
        Some(Err(end)) => panic!("the session ended instead of an answer: {end:?}"),
        None => panic!("no answer within {SOON:?}"),
    }
}

/// The session still stands: a heartbeat of it is acked.
pub async fn still_stands(call: &mut RawCall, sequence: u64) {
    call.send(Frame::Heartbeat(Heartbeat { sequence, ..Heartbeat::default() }));
    match answer(call).await {
        gateway_frame::Frame::HeartbeatAck(ack) => assert_eq!(ack.sequence, sequence),
        other => panic!("a heartbeat was answered by {other:?}"),
    }
}

/// How the call ends.
pub async fn end_of(call: &mut RawCall) -> End {
    call.end(SOON).await.unwrap_or_else(|| panic!("the stream goes on after {SOON:?}"))
}

/// The call ends with this status and sentence.
pub async fn ends(call: &mut RawCall, code: u32, sentence: &str) {
    let end = end_of(call).await;
    assert_eq!((end.status(), end.message.as_str()), (Some(code), sentence), "{end:?}");
}
