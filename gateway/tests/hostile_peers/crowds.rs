//! Too many at once: who is refused is told when to come back and gets in then, those being served
//! stay served, and sockets that only stand there keep nobody out.
//!
//! 1. A delay that was given is kept to the millisecond, and is enough.

use std::time::Duration;

use gateway_proto::health::HealthCheckRequest;
use gateway_proto::{framing, path};
use gateway_testbed::node::{Arrival, End, Target};
use gateway_testbed::raw::RawCall;
use http::HeaderMap;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::stage::{OK, Stage, end_of, ends, hello, opened, still_stands, welcomed};
use crate::support::{RESOURCE_EXHAUSTED, SOON, asked_until, measured, within};
use gateway_proto::v1::{gateway_frame, node_frame::Frame};

const TOO_FAST: &str = "too many sessions are being opened; retry after the given delay";
const FULL: &str = "the gateway holds as many sessions as it may; retry after the given delay";
const PENDING: &str = "too many Hellos wait for the database; retry after the given delay";

const HERD: usize = 300;
const HALF_OPEN: usize = 2_000;

/// A session, or how it was refused.
async fn knock(target: &Target) -> Result<RawCall, End> {
    let mut call = opened(target).await;
    call.send(Frame::Hello(hello()));
    match call.frame(2 * SOON).await.expect("an answer to the Hello") {
        Ok(frame) => match frame.frame {
            Some(gateway_frame::Frame::Welcome(_)) => Ok(call),
            other => panic!("the first frame is {other:?}, not a Welcome"),
        },
        Err(end) => Err(end),
    }
}

fn is_refused(end: &End, sentence: &str) -> Duration {
    assert_eq!((end.status(), end.message.as_str()), (Some(RESOURCE_EXHAUSTED), sentence), "{end:?}");
    end.pushback.expect("a refusal says when to come back")
}

async fn targets(stage: &Stage, prefix: &str, count: usize) -> Vec<Target> {
    let names: Vec<String> = (0..count).map(|index| format!("{prefix}-{index}")).collect();
    let identities = stage.world.register_all(&names).await;
    identities.iter().map(|identity| stage.world.target("g", identity)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_told_to_wait_gets_in_after_exactly_that() {
    let stage = Stage::open("bucket", "[admission]\nopens_per_second = 10\nopens_burst = 5").await;
    // Opening the stage took tokens: wait until the bucket is full.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let crowd = targets(&stage, "crowd", 20).await;
    let admitted = stage.story("more open than may", async {
        let begun = Instant::now();
        let mut visits = JoinSet::new();
        for target in crowd {
            visits.spawn(async move {
                let refusal = match knock(&target).await {
                    Ok(call) => return (0, call),
                    Err(end) => is_refused(&end, TOO_FAST),
                };
                tokio::time::sleep(refusal).await;
                match knock(&target).await {
                    Ok(call) => (1, call),
                    Err(end) => panic!("it waited the {refusal:?} that it was told, and still: {end:?}"),
                }
            });
        }
        let visits = within(2 * SOON, "all of the crowd get in", visits.join_all()).await;
        let refused: usize = visits.iter().map(|(refusals, _)| refusals).sum();
        measured(
            "a crowd of 20, bucket of 5, 10/s",
            format!("{refused} told to wait, {:?}", begun.elapsed()),
        );
        assert!((10..=16).contains(&refused), "{refused} of 20 were refused");
        assert!(begun.elapsed() >= Duration::from_millis(1300), "10/s were let in: {:?}", begun.elapsed());
        visits
    });
    for (_, mut call) in admitted.await {
        call.half_close();
        ends(&mut call, OK, "").await;
    }
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_gateway_refuses_and_those_served_stay_served() {
    let limits = "[admission]\nmax_streams = 5\nmax_pending_hellos = 2\n[sessions]\nhello_timeout = '60s'";
    let stage = Stage::open("full", limits).await;
    let crowd = targets(&stage, "crowd", 6).await;
    stage
        .story("two Hellos are owed", async {
            let mut owing = [opened(&crowd[0]).await, opened(&crowd[1]).await];
            for call in &mut owing {
                // Reads what there is: the headers alone, so that the stream is known to be open.
                assert!(call.frame(Duration::from_millis(200)).await.is_none());
            }
            is_refused(&knock(&crowd[2]).await.unwrap_err(), PENDING);
            for call in &mut owing {
                call.half_close();
                ends(call, OK, "").await;
            }
            let (mut call, _) = welcomed(&crowd[2], hello()).await;
            call.half_close();
            ends(&mut call, OK, "").await;
        })
        .await;
    stage
        .story("all places are taken", async {
            let mut served = Vec::new();
            for target in &crowd[..4] {
                served.push(welcomed(target, hello()).await.0);
            }
            let pushback = is_refused(&knock(&crowd[4]).await.unwrap_err(), FULL);
            assert!(pushback <= Duration::from_secs(60), "{pushback:?}");
            is_refused(&knock(&crowd[5]).await.unwrap_err(), FULL);
            for (call, sequence) in served.iter_mut().zip(1..) {
                still_stands(call, sequence).await;
            }
            // One leaves: one gets in.
            let mut leaving = served.remove(0);
            leaving.half_close();
            ends(&mut leaving, OK, "").await;
            let mut entered = knock(&crowd[4]).await.unwrap();
            is_refused(&knock(&crowd[5]).await.unwrap_err(), FULL);
            still_stands(&mut entered, 1).await;
            for mut call in served.into_iter().chain([entered]) {
                call.half_close();
                assert_eq!(end_of(&mut call).await.status(), Some(OK));
            }
        })
        .await;
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_that_only_stand_there_keep_nobody_out() {
    let stage = Stage::open("half_open", "").await;
    let honest = targets(&stage, "honest", 20).await;
    let standing = stage
        .story("two thousand sockets are opened and say nothing", async {
            let mut standing = Vec::with_capacity(HALF_OPEN);
            for _ in 0..HALF_OPEN {
                standing.push(TcpStream::connect(stage.gateway.address()).await.unwrap());
            }
            standing
        })
        .await;
    let slowest = stage
        .story("nodes dial behind two thousand silent sockets", async {
            let mut dials = JoinSet::new();
            for target in honest {
                dials.spawn(async move {
                    let begun = Instant::now();
                    let mut call = knock(&target).await.unwrap();
                    let took = begun.elapsed();
                    still_stands(&mut call, 1).await;
                    call.half_close();
                    ends(&mut call, OK, "").await;
                    took
                });
            }
            let took = dials.join_all().await;
            took.into_iter().max().unwrap()
        })
        .await;
    measured("slowest dial behind 2,000 silent sockets", format!("{slowest:?}"));
    assert!(slowest < SOON, "a dial behind silent sockets took {slowest:?}");
    drop(standing);
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_herd_of_three_hundred_all_get_in() {
    let stage = Stage::open("herd", "").await;
    let begun = Instant::now();
    stage
        .story("three hundred nodes dial at once", async {
            let nodes = stage.world.nodes("herd", HERD, "g", |_| {}).await;
            measured("a herd of 300 has its Welcomes", format!("{:?}", begun.elapsed()));
            let refused = stage.world.watch.look(|seen| {
                seen.ended
                    .iter()
                    .inspect(|one| assert_eq!(one.end.status(), Some(RESOURCE_EXHAUSTED), "{:?}", one.end))
                    .filter(|one| one.end.pushback.is_some())
                    .count()
            });
            measured("of them told to come back", refused);
            let mut leaving = JoinSet::new();
            for node in nodes {
                leaving.spawn(node.goodbye());
            }
            within(SOON, "the herd says Goodbye", leaving.join_all()).await;
        })
        .await;
    stage.close().await;
}

/// A connection that stands as long as its peer likes: it watches the health.
async fn watching(target: &Target) -> Result<RawCall, End> {
    let mut call = RawCall::open(target, path::HEALTH_WATCH, HeaderMap::new()).await?;
    call.send_bytes(framing::encode(&HealthCheckRequest::default()));
    match call.next(SOON).await.expect("an answer to a watch") {
        Arrival::Message(_) => Ok(call),
        Arrival::Ended(end) => Err(end),
    }
}

/// Of `bound` connections all stand, one more is told that it is too much, and gets in when one has left.
async fn full_at(stage: &Stage, bound: usize, target: &Target) {
    let mut standing = Vec::new();
    for _ in 0..bound {
        standing.push(watching(target).await.expect("within the bound"));
    }
    let refused = stage.counter("refused_connections").await;
    let end = watching(target).await.expect_err("one over the bound");
    assert!(end.message.contains("detected excessive load generating behavior"), "{end:?}");
    stage.counted("refused_connections", refused + 1).await;
    drop(standing.pop());
    standing.push(asked_until(SOON, "who left makes room", async || watching(target).await.ok()).await);
    // Those that stood before were not touched by it.
    for call in &mut standing {
        assert!(call.next(Duration::from_millis(50)).await.is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_peer_takes_the_connections_of_the_others() {
    let bounds = "[admission]\nconnections_per_certificate = 3\nanonymous_connections = 2";
    let stage = Stage::open("connections", bounds).await;
    let (greedy, other) = (stage.peer("greedy").await, stage.peer("other").await);
    let nobody = Target::new(stage.gateway.address(), stage.world.pki.client_config(None).unwrap());
    stage.story("a certificate has all its connections", full_at(&stage, 3, &greedy)).await;
    stage.story("peers without a certificate have all of theirs", full_at(&stage, 2, &nobody)).await;
    let mut call = stage.story("another node dials", knock(&other)).await.unwrap();
    still_stands(&mut call, 1).await;
    drop(call);
    stage.close().await;
}
