//! What a caller gets from the control thread, over a real socket.
//!
//! The numbers come from a fixed `Status`; the thread, its HTTP and its text formats are the real ones.
//!
//! Stories: a gateway that serves, one that does not, a scrape, callers that break HTTP, the end.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gateway_control::{
    ControlConfig, ControlHandle, Distribution, Family, Headroom, Health, Label, LeaseHealth, LoopHealth,
    Points, QueueHealth, Room, ShardHealth, Status, SweepHealth, Unit, spawn,
};
use gateway_core::ids::ShardId;
use gateway_core::store::Queue;
use gateway_core::writer::Phase;

#[derive(Default)]
struct Gateway {
    fenced: AtomicBool,
}

impl Status for Gateway {
    fn health(&self) -> Health {
        let fenced = self.fenced.load(Ordering::SeqCst);
        Health {
            gateway: "g1".to_owned(),
            version: "1.2.3",
            phase: if fenced { Phase::Waiting } else { Phase::Serving },
            serving: !fenced,
            reasons: if fenced { vec!["it is fenced".to_owned()] } else { Vec::new() },
            fenced,
            lease: LeaseHealth { held: !fenced, epoch: Some(4), age_seconds: Some(0.5), ttl_seconds: 20.0 },
            headroom: Headroom {
                streams: Room { used: 3, of: 10 },
                pending_hellos: Room { used: 1, of: 5 },
                writer_messages: Room { used: 0, of: 9 },
                shard_messages: vec![Room { used: 0, of: 9 }],
            },
            listening: true,
            uptime_seconds: 1.5,
            sessions: 2,
            streams: 3,
            pending_hellos: 1,
            sweeps: SweepHealth {
                leads: true,
                runs: 8,
                last_run_at: Some(9),
                commands_expired: 10,
                sessions_reaped: 11,
            },
            queues: vec![QueueHealth {
                queue: Queue::Dispatch,
                jobs: 6,
                consecutive_failures: 4,
                failures: 5,
                last_error: Some("the database is away".to_owned()),
                last_error_at: Some(7.5),
            }],
            loops: vec![LoopHealth {
                name: "listener".to_owned(),
                clean_runs: 3,
                consecutive_failures: 1,
                failures: 2,
                last_clean_run_at: Some(1.25),
                running_seconds: None,
                last_error: Some("lost".to_owned()),
                last_error_at: Some(8.5),
            }],
            shards: vec![ShardHealth { shard: 0, cpu: None, counters: BTreeMap::from([("frames_in", 7)]) }],
        }
    }

    fn families(&self) -> Vec<Family> {
        let buckets = vec![(0.1, 1), (f64::INFINITY, 1)];
        vec![
            Family {
                name: "frames_in",
                help: "Frames from nodes",
                unit: None,
                points: Points::Counters(vec![
                    (vec![Label::Shard(ShardId(0))], 7.0),
                    (vec![Label::Shard(ShardId(1)), Label::Word("kind", "heartbeat")], 8.0),
                ]),
            },
            Family::gauge("held", "Bytes in mailboxes", 9).in_unit(Unit::Bytes),
            Family {
                name: "flush",
                help: "How long commits took",
                unit: Some(Unit::Seconds),
                points: Points::Histograms(vec![(
                    vec![Label::Queue(Queue::Updates)],
                    Distribution { sum: 0.5, count: 2, buckets },
                )]),
            },
        ]
    }
}

fn start() -> (Arc<Gateway>, ControlHandle) {
    let gateway = Arc::new(Gateway::default());
    let status: Arc<dyn Status> = Arc::<Gateway>::clone(&gateway);
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let handle = spawn(ControlConfig { listen, cpu: None, status, api: None, relays: None, tunnels: None })
        .expect("a free port");
    (gateway, handle)
}

fn get(address: SocketAddr, path: &str) -> String {
    exchange(address, format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
}

fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("the thread listens");
    stream.write_all(request).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer to its end");
    answer
}

#[test]
fn health_is_503_while_the_gateway_does_not_serve() {
    let (gateway, handle) = start();
    let answer = get(handle.address(), "/v1/health");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(json["phase"], "serving");
    assert_eq!(json["queues"][0]["queue"], "dispatch");
    assert_eq!(json["queues"][0]["consecutive_failures"], 4);
    assert_eq!(json["queues"][0]["last_error"], "the database is away");
    assert_eq!(json["queues"][0]["last_error_at"], 7.5);
    assert_eq!(json["shards"][0]["counters"]["frames_in"], 7);
    let listener = serde_json::json!({
        "loop": "listener", "clean_runs": 3, "consecutive_failures": 1, "failures": 2, "last_clean_run_at": 1.25,
        "running_seconds": null, "last_error": "lost", "last_error_at": 8.5
    });
    assert_eq!(json["loops"][0], listener);

    gateway.fenced.store(true, Ordering::SeqCst);
    let answer = get(handle.address(), "/v1/health");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("\"fenced\":true"), "{answer}");
    handle.stop();
    handle.join().expect("a clean end");
}

#[test]
fn metrics_are_text_that_prometheus_reads() {
    let (_, handle) = start();
    let answer = get(handle.address(), "/metrics");
    assert!(answer.contains("content-type: application/openmetrics-text"), "{answer}");
    for line in [
        "# TYPE gateway_frames_in counter",
        "gateway_frames_in_total{shard=\"0\"} 7.0",
        "gateway_frames_in_total{shard=\"1\",kind=\"heartbeat\"} 8.0",
        "# UNIT gateway_held_bytes bytes",
        "gateway_held_bytes 9.0",
        "gateway_flush_seconds_sum{queue=\"updates\"} 0.5",
        "gateway_flush_seconds_bucket{le=\"+Inf\",queue=\"updates\"} 2",
        "# TYPE gateway_process_cpu_seconds counter",
        "# EOF",
    ] {
        assert!(answer.lines().any(|found| found == line), "no line {line:?} in {answer}");
    }
    let resident: f64 = answer
        .lines()
        .find_map(|line| line.strip_prefix("gateway_process_resident_memory_bytes "))
        .and_then(|value| value.parse().ok())
        .expect("the process's memory");
    assert!(resident > 100_000.0);
    handle.stop();
    handle.join().expect("a clean end");
}

#[test]
fn a_caller_that_breaks_http_or_says_nothing_hurts_nobody_else() {
    let (_, handle) = start();
    let silent = TcpStream::connect(handle.address()).expect("the thread listens");
    let mut garbage = TcpStream::connect(handle.address()).expect("the thread listens");
    garbage.write_all(b"\x16\x03\x01\x00\x00 no http\r\n\r\n").expect("sent");
    assert!(get(handle.address(), "/v1/health").starts_with("HTTP/1.1 200 OK"));
    assert!(get(handle.address(), "/elsewhere").starts_with("HTTP/1.1 404"));
    assert!(
        exchange(handle.address(), b"POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .starts_with("HTTP/1.1 405")
    );
    handle.stop();
    handle.join().expect("a clean end, with a silent caller connected");
    drop(silent);
}

#[test]
fn an_address_that_others_could_reach_is_refused() {
    let status: Arc<dyn Status> = Arc::new(Gateway::default());
    let listen = SocketAddr::from(([0, 0, 0, 0], 0));
    let error = spawn(ControlConfig { listen, cpu: None, status, api: None, relays: None, tunnels: None })
        .expect_err("not loopback");
    assert!(error.to_string().contains("not a loopback address"), "{error}");
}
