//! Dead rows: with a transaction that lets no vacuum clean up, what is read does not grow.
//!
//! Each hot statement is measured in buffers before and after twenty thousand commands went through
//! their whole life while a snapshot is held open, and so are the storing of events, and a Hello that names
//! their journal. The expiry is in `sweeps`, that no plan scans a table at all in `plans`.
//!
//! The whole measure, a hundred thousand commands on five thousand lanes:
//! `cargo test --release -p gateway-db-writer --test dead_rows -- --ignored --nocapture`

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use gateway_core::command::CommandState;
use gateway_core::frame::{Event, EventBatch};
use gateway_core::ids::*;
use gateway_core::seam::EventsRequest;
use gateway_core::store::*;
use support::*;

/// Of each node one lane; of each lane ten commands a round.
#[derive(Debug, Clone, Copy)]
struct Scale {
    nodes: u32,
    /// Of each lane, before anything is measured.
    earlier: u32,
    warm_up: usize,
    rounds: usize,
}

const SHORT: Scale = Scale { nodes: 50, earlier: 1200, warm_up: 6, rounds: 40 };
const WHOLE: Scale = Scale { nodes: 5_000, earlier: 12, warm_up: 1, rounds: 2 };
/// Lanes of a pass: what they have due is as much as a pass claims.
const PASS: usize = 100;
/// Nodes whose events are stored.
const NODES: u32 = 50;

#[derive(Debug)]
struct Reading {
    dispatch: u64,
    poll: u64,
    hello: u64,
    enqueue: u64,
}

/// What each hot statement reads now, for the same work.
async fn read_all(db: &mut Db, proof: &LeaseProof, wants: &[LaneWant]) -> Reading {
    let mut sql = db.client("reader").await;
    run(&mut sql, PLANNING).await;
    for (name, query) in [
        ("pass", DISPATCH),
        ("sessions", include_str!("../queries/hello_sessions.sql")),
        ("known", include_str!("../queries/hello_commands.sql")),
        ("granting", include_str!("../queries/hello_write.sql")),
    ] {
        run(&mut sql, &format!("PREPARE {name} AS {query}")).await;
    }
    let pass = format!("EXECUTE pass({})", dispatch_arguments(proof, &wants[..1]));
    let poll = format!("EXECUTE pass({})", dispatch_arguments(proof, &wants[1..]));
    let hello = [
        format!(
            "EXECUTE sessions('g1', 'o1', {}, ARRAY['n1'], ARRAY['01'], ARRAY['m'], ARRAY['b'])",
            proof.epoch
        ),
        "EXECUTE known(ARRAY['n1'], '{}', '{}', '{}')".to_owned(),
        format!(
            "EXECUTE granting('g1', {}, ARRAY['n1'], ARRAY['b'], ARRAY['m'], ARRAY['v'], ARRAY['r'], ARRAY['01'], \
             ARRAY[''], ARRAY['{{default}}'], ARRAY['{{9}}'], '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', \
             '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', 'no')",
            proof.epoch
        ),
    ];
    let enqueue = "SELECT enqueue_command('n1', 'work')".to_owned();
    // One command waits on the first lane alone.
    run(&mut db.sql, &enqueue).await;
    for statement in [&pass, &poll, &hello[0], &hello[1], &hello[2], &enqueue] {
        buffers(&mut sql, statement).await;
    }
    let mut hello_buffers = 0;
    for statement in &hello {
        hello_buffers += buffers(&mut sql, statement).await;
    }
    let reading = Reading {
        dispatch: buffers(&mut sql, &pass).await,
        poll: buffers(&mut sql, &poll).await,
        hello: hello_buffers,
        enqueue: buffers(&mut sql, &enqueue).await,
    };
    // It goes, so that both readings find the same.
    let claims = dispatch(&mut db.runner(Queue::Dispatch), proof, wants[..1].to_vec()).await;
    finish(db, claims).await;
    reading
}

async fn finish(db: &mut Db, claims: Vec<Claim>) {
    let mut updates = db.runner(Queue::Updates);
    finish_with(&mut updates, claims).await;
}

async fn finish_with(updates: &mut gateway_db_writer::QueueRunner, claims: Vec<Claim>) {
    for state in [CommandState::Accepted, CommandState::Running, CommandState::Succeeded] {
        let entries =
            claims.iter().map(|claim| update(claim.node.as_str(), claim.command.id, 1, state)).collect();
        updated(updates.run(&Job::Updates { entries }).await);
    }
}

async fn sessions(db: &mut Db, proof: &LeaseProof, nodes: u32) -> Vec<LaneWant> {
    let names: Vec<String> = (1..=nodes).map(|i| format!("n{i}")).collect();
    let entries = names.iter().map(|name| hello(name, &[("default", 10)], &[])).collect();
    let job = Job::Hellos { proof: proof.clone(), entries };
    let grants = granted(db.runner(Queue::Hellos).run(&job).await);
    names
        .iter()
        .zip(grants)
        .map(|(name, grant)| LaneWant { cursor: grant.cursors[0], ..want(name, grant.epoch, "default", 10) })
        .collect()
}

/// So many rounds of ten commands for each node, through their whole life.
async fn live(db: &mut Db, proof: &LeaseProof, wants: &mut [LaneWant], rounds: usize) {
    let (mut dispatcher, mut updates, mut lease) =
        (db.runner(Queue::Dispatch), db.runner(Queue::Updates), db.runner(Queue::Lease));
    let enqueue = format!(
        "SELECT count(*) FROM enqueue_commands((SELECT array_agg('n' || i) FROM generate_series(1, {}) i, \
         generate_series(1, 10)), ARRAY['work'])",
        wants.len()
    );
    for round in 0..rounds {
        run(&mut db.sql, &enqueue).await;
        for wants in wants.chunks_mut(PASS) {
            let claims = dispatch(&mut dispatcher, proof, wants.to_vec()).await;
            assert_eq!(claims.len(), 10 * wants.len());
            for want in wants.iter_mut() {
                let last = claims.iter().rfind(|claim| claim.node == want.node).unwrap();
                want.cursor = LaneSeq(last.command.seq.0);
            }
            finish_with(&mut updates, claims).await;
        }
        if round % 4 == 0 {
            lease.run(&renew(proof)).await;
        }
    }
}

#[tokio::test]
async fn twenty_thousand_commands_later_the_same_work_reads_the_same() {
    reads_the_same(SHORT).await;
}

#[tokio::test]
#[ignore = "takes a minute or two"]
async fn a_hundred_thousand_commands_later_on_five_thousand_lanes_the_same_work_reads_the_same() {
    reads_the_same(WHOLE).await;
}

async fn reads_the_same(scale: Scale) {
    let mut db = database().await;
    db.nodes(scale.nodes).await;
    let proof = db.lease().await;
    run(&mut db.sql, "UPDATE leases SET expires_at = 'infinity'").await;
    let mut pin = db.client("pin").await;
    run(&mut pin, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM nodes").await;
    // Sixty thousand that came and went, all dead rows kept: the indexes have the height by now that
    // they will have, since that grows with the logarithm alone.
    run(
        &mut db.sql,
        &format!(
            "SELECT count(*) FROM enqueue_commands((SELECT array_agg('n' || i) FROM generate_series(1, {}) i, \
             generate_series(1, {})), ARRAY['work'])",
            scale.nodes, scale.earlier
        ),
    )
    .await;
    run(
        &mut db.sql,
        "UPDATE commands SET state = 'dispatched', dispatched_at = now(), session_epoch = 1, lane_floor = seq; \
         UPDATE commands SET state = 'succeeded', finished_at = now(); ANALYZE",
    )
    .await;
    // What the last pass of a lane left is always there: as many dead rows as the lane has credit.
    let mut wants = sessions(&mut db, &proof, scale.nodes).await;
    live(&mut db, &proof, &mut wants, scale.warm_up).await;
    let mut wants = sessions(&mut db, &proof, scale.nodes).await;
    let before = read_all(&mut db, &proof, &wants).await;
    live(&mut db, &proof, &mut wants, scale.rounds).await;
    let mut wants = sessions(&mut db, &proof, scale.nodes).await;
    let after = read_all(&mut db, &proof, &wants).await;
    eprintln!("before {before:?}\nafter  {after:?}");
    let commands =
        i64::from(scale.nodes) * (i64::from(scale.earlier) + 10 * (scale.rounds + scale.warm_up) as i64) + 2;
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM commands").await, commands);
    for (what, before, after) in [
        ("dispatch", before.dispatch, after.dispatch),
        ("poll", before.poll, after.poll),
        ("hello", before.hello, after.hello),
        ("enqueue", before.enqueue, after.enqueue),
    ] {
        assert!(after * 10 <= before * 11, "{what} reads {after} buffers after, {before} before");
    }
    wants.clear();
    run(&mut pin, "COMMIT").await;
}

// -- events --------------------------------------------------------------------------------------

/// Of each node a run of so many events, in one batch.
async fn append(runner: &mut gateway_db_writer::QueueRunner, from: u64, count: u64) {
    let entry = |node_number: u32| {
        let event = |seq| Event {
            seq: EventSeq(seq),
            kind: "kind".to_owned(),
            body: "body".into(),
            attested: None,
            refused: None,
        };
        EventsRequest {
            key: SessionKey { shard: ShardId(0), slot: 1, serial: 1 },
            node: node(&format!("n{node_number}")),
            batch: Arc::new(EventBatch {
                frame_ref: FrameRef(1),
                journal: JournalId::new("j").unwrap(),
                boot_id: "boot".to_owned(),
                events: (from..from + count).map(event).collect(),
            }),
        }
    };
    let outcome = runner.run(&Job::Events { entries: (1..=NODES).map(entry).collect() }).await;
    let Outcome::Events(Ok(outcomes)) = outcome else { panic!("{outcome:?}") };
    assert!(outcomes.iter().all(|outcome| outcome.acked.0 == from + count - 1), "{outcomes:?}");
}

/// What storing four events of one journal reads, and a Hello that names the journal.
async fn read_flush(db: &mut Db, proof: &LeaseProof, acked: u64) -> [(&'static str, u64); 4] {
    let mut sql = db.client("reader").await;
    run(&mut sql, PLANNING).await;
    for (name, query) in [
        ("locking", include_str!("../queries/events_lock.sql")),
        ("cursors", include_str!("../queries/events_cursors.sql")),
        ("writing", include_str!("../queries/events_write.sql")),
        ("granting", include_str!("../queries/hello_write.sql")),
    ] {
        run(&mut sql, &format!("PREPARE {name} AS {query}")).await;
    }
    let four = |value: &str| format!("array_fill({value}, ARRAY[4])");
    let texts = four("'x'::text");
    let writing = format!(
        "EXECUTE writing({}, {}, ARRAY[{}, {}, {}, {}], {texts}, {}, {texts}, {}, {texts}, {}, {texts})",
        four("'n1'::text"),
        four("'j'::text"),
        acked + 1,
        acked + 2,
        acked + 3,
        acked + 4,
        four("'x'::bytea"),
        four("'x'::bytea"),
        four("'x'::bytea"),
    );
    let granting = format!(
        "EXECUTE granting('g1', {}, ARRAY['n1'], ARRAY['b'], ARRAY['m'], ARRAY['v'], ARRAY['r'], ARRAY['01'], \
         ARRAY['j'], ARRAY['{{default}}'], ARRAY['{{9}}'], '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', \
         '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', 'no')",
        proof.epoch
    );
    let statements = [
        ("locking", "EXECUTE locking(ARRAY['n1'], ARRAY['j'])".to_owned()),
        ("cursors", "EXECUTE cursors(ARRAY['n1'], ARRAY['j'])".to_owned()),
        ("writing", writing),
        ("hello", granting),
    ];
    let mut read = Vec::new();
    for (name, statement) in statements {
        buffers(&mut sql, &statement).await;
        read.push((name, buffers(&mut sql, &statement).await));
    }
    read.try_into().unwrap()
}

#[tokio::test]
async fn a_hundred_thousand_events_later_storing_more_reads_the_same() {
    const EARLIER: u64 = 2_000;
    const FLUSHES: u64 = 50;
    const RUN: u64 = 40;
    let mut db = database().await;
    db.nodes(NODES).await;
    let proof = db.lease().await;
    let mut pin = db.client("pin").await;
    run(&mut pin, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM nodes").await;
    let mut runner = db.runner(Queue::Events);
    // As many came before: the indexes have the height that they will have.
    for flush in 0..10 {
        append(&mut runner, 1 + flush * EARLIER / 10, EARLIER / 10).await;
    }
    let before = read_flush(&mut db, &proof, EARLIER).await;
    for flush in 0..FLUSHES {
        append(&mut runner, EARLIER + 1 + flush * RUN, RUN).await;
    }
    let last = EARLIER + FLUSHES * RUN;
    let after = read_flush(&mut db, &proof, last).await;
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM events").await as u64, u64::from(NODES) * last);
    eprintln!("before {before:?}\nafter  {after:?}");
    for ((what, before), (_, after)) in before.into_iter().zip(after) {
        assert!(after * 10 <= before * 11, "{what} reads {after} buffers after, {before} before");
    }
    run(&mut pin, "COMMIT").await;
}
